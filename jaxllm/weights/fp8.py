"""Checkpoints whose matrices are in FP8 with a scale for each block of them, as DeepSeek V3 is published: decoded where
they are read.

Source: README_WEIGHTS.md of DeepSeek-V3, and ``FineGrainedFP8Config`` of Hugging Face transformers: ``NAME`` is
float8_e4m3fn [out, in], ``NAME_scale_inv`` float32 [out / n, in / m], rounded up, where ``weight_block_size`` is
[n, m]. A number is what is stored times its block's scale.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from jaxllm.errors import CheckpointError, UnsupportedModelError
from jaxllm.weights.convert import cast, read_plain
from jaxllm.weights.files import open_unbuffered, read_into
from jaxllm.weights.safetensors import SafetensorsSource, Stored

METHOD = "fp8"
CONFIG_KEY = "quantization_config"

_E4M3 = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32)
"""The number of each byte."""


class Fp8Source(SafetensorsSource):
    """A Hugging Face folder with matrices in FP8, which appear under their names as plain numbers. ``config`` is that
    of the model before it was quantized.

    Raises ``UnsupportedModelError`` for FP8 of other kinds, ``CheckpointError`` for tensors that do not fit together.
    """

    def __init__(self, path: Path, name: str | None = None) -> None:
        super().__init__(path, name)
        self._block = _block_size(self.config[CONFIG_KEY], f"{path / 'config.json'}: {CONFIG_KEY}")
        self.config = plain_config(self.config, path / "config.json")
        self._scales = dict(self._matrices())
        if not self._scales:
            raise CheckpointError(f"{path / 'config.json'} says that the model is in FP8, and no tensor is")
        scales = {f"{name}_scale_inv" for name in self._scales}
        self.tensors = {name: info for name, info in self.tensors.items() if name not in scales}

    def dtype(self, name: str) -> np.dtype:
        return np.dtype(np.float32) if name in self._scales else super().dtype(name)

    def read_rows(self, name: str, start: int, stop: int, out: np.ndarray) -> None:
        if name not in self._scales:
            super().read_rows(name, start, stop, out)
            return
        stored, factors, (height, width) = self._stored[name], self._scales[name], self._block
        codes = np.empty(out.shape, np.uint8)
        with open_unbuffered(stored.path) as file:
            read_into(file, stored.offset + start * codes.shape[1], codes)
        first, last = start // height, -(-stop // height)
        columns = factors.info.shape[1]
        scales = np.empty((last - first, columns), np.float32)
        read_plain(factors.path, factors.offset + first * columns * factors.dtype.itemsize, factors.dtype, scales)
        values = _E4M3[codes]
        values *= scales[np.arange(start, stop) // height - first].repeat(width, axis=1)[:, :codes.shape[1]]
        cast(values, out)

    def _matrices(self) -> Iterator[tuple[str, Stored]]:
        """What is in FP8, and where its scales lie."""
        height, width = self._block
        for name, stored in self._stored.items():
            if stored.info.dtype != "F8_E4M3":
                continue
            rows, columns = stored.info.shape if len(stored.info.shape) == 2 else (0, 0)
            if not rows * columns:
                raise CheckpointError(f"{self.path}: {name!r} of shape {list(stored.info.shape)} is no matrix")
            needed = -(-rows // height), -(-columns // width)
            scales = self._stored.get(f"{name}_scale_inv")
            if scales is None or scales.info.shape != needed or scales.info.dtype not in ("F32", "BF16"):
                found = "none" if scales is None else f"{scales.info.dtype} {list(scales.info.shape)}"
                raise CheckpointError(f"{self.path}: {name!r} needs {name + '_scale_inv'!r}, floating-point numbers of "
                                      f"shape {list(needed)}; there is {found}")
            yield name, scales


def is_fp8(config: Mapping[str, Any]) -> bool:
    """Whether a ``config.json`` says that the checkpoint is in this format, supported or not."""
    found = config.get(CONFIG_KEY)
    return isinstance(found, Mapping) and found.get("quant_method") == METHOD


def plain_config(config: Mapping[str, Any], where: object) -> dict[str, Any]:
    """A ``config.json`` in this format without what it says of quantization; ``UnsupportedModelError`` unless that is
    FP8 of the weights in blocks."""
    _block_size(config[CONFIG_KEY], f"{where}: {CONFIG_KEY}")
    return {key: value for key, value in config.items() if key != CONFIG_KEY}


def _block_size(found: Mapping[str, Any], where: str) -> tuple[int, int]:
    for key, allowed in (("fmt", "e4m3"), ("activation_scheme", "dynamic")):
        if found.get(key, allowed) != allowed:
            raise UnsupportedModelError(f"{where}.{key}={found[key]!r} is not supported: {allowed!r} is")
    size = found.get("weight_block_size")
    if not isinstance(size, list) or len(size) != 2 or not all(type(each) is int and each > 0 for each in size):
        raise UnsupportedModelError(f"{where}.weight_block_size={size!r} is not supported: two positive integers, the "
                                    "rows and columns of a block, are")
    return size[0], size[1]
