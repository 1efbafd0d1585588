"""``ConfigSource``: a checkpoint whose weights are elsewhere."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from jaxllm.weights import fp8, mxfp4
from jaxllm.weights.compressed_tensors import CompressedTensorsSource, is_compressed, plain_config
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
        elif fp8.is_fp8(self.config):
            self.config = fp8.plain_config(self.config, path / "config.json")
        elif mxfp4.is_mxfp4(self.config):
            self.config = mxfp4.plain_config(self.config)
        generation = path / "generation_config.json"
        self.generation_config = read_json(generation) if generation.exists() else {}
        self.tensors = {}

    def dtype(self, name: str) -> np.dtype:
        raise KeyError(name)

    def read_rows(self, name: str, start: int, stop: int, out: np.ndarray) -> None:
        raise KeyError(name)
