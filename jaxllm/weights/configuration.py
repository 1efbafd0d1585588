"""``ConfigSource``: a checkpoint whose weights are elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from jaxllm.weights import fp8, mxfp4
from jaxllm.weights.compressed_tensors import CompressedTensorsSource, is_compressed, plain_config
from jaxllm.weights.safetensors import read_json
from jaxllm.weights.source import ModelSource


class ConfigSource(ModelSource):
    """A Hugging Face folder of which only the configuration is there, or a ``config.json`` alone; it has no tensors.

    stored_as: the ``quant_method`` that the configuration names, if it names one.

    Raises ``CheckpointError`` without a ``config.json``, or with a malformed one.
    """

    def __init__(self, path: Path, name: str | None = None) -> None:
        alone = path.suffix == ".json" and path.is_file()
        file = path if alone else path / "config.json"
        self.path = path
        self.name = name or (path.stem if alone and path.stem != "config" else file.resolve().parent.name)
        self._read(read_json(file), file)
        generation = file.parent / "generation_config.json"
        self.generation_config = read_json(generation) if generation.exists() else {}

    @classmethod
    def of(cls, config: Mapping[str, Any], name: str = "config") -> ConfigSource:
        """Of what is in a ``config.json``."""
        source = cls.__new__(cls)
        source.path, source.name, source.generation_config = Path(name), name, {}
        source._read(config, name)
        return source

    def _read(self, config: Mapping[str, Any], where: object) -> None:
        self.config, self.tensors = config, {}
        method = config.get(fp8.CONFIG_KEY)
        self.stored_as = method.get("quant_method") if isinstance(method, Mapping) else None
        if is_compressed(config):
            self.config = plain_config(config, where)
            self.quantization = CompressedTensorsSource.quantization
        elif fp8.is_fp8(config):
            self.config = fp8.plain_config(config, where)
        elif mxfp4.is_mxfp4(config):
            self.config = mxfp4.plain_config(config)

    def dtype(self, name: str) -> np.dtype:
        raise KeyError(name)

    def read_rows(self, name: str, start: int, stop: int, out: np.ndarray) -> None:
        raise KeyError(name)
