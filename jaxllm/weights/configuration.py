"""``ConfigSource``: a checkpoint whose weights are elsewhere."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from jaxllm.weights.compressed_tensors import CompressedTensorsSource, is_compressed, plain_config
from jaxllm.weights.mxfp4 import is_mxfp4
from jaxllm.weights.mxfp4 import plain_config as without_mxfp4
from jaxllm.weights.safetensors import read_json
from jaxllm.weights.source import ModelSource


class ConfigSource(ModelSource):
    """A Hugging Face folder of which only the configuration is there; it has no tensors.

    Raises ``CheckpointError`` without a ``config.json``, or with a malformed one.
    """

    def __init__(self, path: Path, name: str | None = None) -> None:
        self.path = path
        self.name = name or path.resolve().name
        self.config = read_json(path / "config.json")
        if is_compressed(self.config):
            self.config = plain_config(self.config, path / "config.json")
            self.quantization = CompressedTensorsSource.quantization
        elif is_mxfp4(self.config):
            self.config = without_mxfp4(self.config)
        generation = path / "generation_config.json"
        self.generation_config = read_json(generation) if generation.exists() else {}
        self.tensors = {}

    def dtype(self, name: str) -> np.dtype:
        raise KeyError(name)

    def read_rows(self, name: str, start: int, stop: int, out: np.ndarray) -> None:
        raise KeyError(name)
