"""Checkpoints: finding them by name, reading their headers, loading their tensors into JAX arrays."""

from jaxllm.weights.compressed_tensors import CompressedTensorsSource
from jaxllm.weights.configuration import ConfigSource
from jaxllm.weights.gguf import GGUFSource
from jaxllm.weights.load import WeightMap, check_checkpoint, load_params
from jaxllm.weights.locate import open_path, resolve
from jaxllm.weights.packaged import PACKAGED_MODELS, PackagedModel, default_model
from jaxllm.weights.safetensors import SafetensorsSource
from jaxllm.weights.source import ModelSource, TensorInfo
from jaxllm.weights.spec import ParamSpec, Piece

__all__ = [
    "PACKAGED_MODELS", "CompressedTensorsSource", "ConfigSource", "GGUFSource", "ModelSource", "PackagedModel",
    "ParamSpec", "Piece", "SafetensorsSource", "TensorInfo", "WeightMap", "check_checkpoint", "default_model",
    "load_params", "open_path", "resolve",
]
