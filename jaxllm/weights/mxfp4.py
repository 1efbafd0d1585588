"""Checkpoints whose experts are in MXFP4, as gpt-oss is published: decoded to bfloat16, which holds them exactly.

Source: OCP Microscaling Formats (MX) Specification 1.0, sections 5.3.3 (E2M1: a sign, two bits of exponent, one of
mantissa), 5.4.1 (E8M0: a power of two, biased by 127, 255 no number) and 6.3 (32 elements share a scale). In the
checkpoint ``NAME_blocks`` holds two elements per byte, the lower bits first, uint8 ``[experts, out, in / 32, 16]``, and
``NAME_scales`` uint8 ``[experts, out, in / 32]``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from jaxllm.errors import CheckpointError
from jaxllm.weights.convert import cast
from jaxllm.weights.files import open_unbuffered, read_into
from jaxllm.weights.safetensors import SafetensorsSource, Stored
from jaxllm.weights.source import TensorInfo

METHOD = "mxfp4"
CONFIG_KEY = "quantization_config"
BLOCK = 32
"""Elements that share a scale."""
NO_NUMBER = 255

_E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
_PAIRS = np.stack([np.tile(_E2M1, 16), np.repeat(_E2M1, 16)], axis=1)
"""The two elements of each byte, float32 [256, 2]."""


class Mxfp4Source(SafetensorsSource):
    """A Hugging Face folder with tensors in MXFP4, which appear as transformers has them when it decodes them: under
    their names, ``[experts, in, out]``. ``config`` is that of the model before it was quantized.

    Raises ``CheckpointError`` for blocks and scales that do not fit together, and, on reading, for scales that are no
    number.
    """

    def __init__(self, path: Path, name: str | None = None) -> None:
        super().__init__(path, name)
        self.config = plain_config(self.config)
        self._packed = dict(self._pairs())
        if not self._packed:
            raise CheckpointError(f"{path / 'config.json'} says that the model is in MXFP4, and no tensor is")
        used = {f"{name}{part}" for name in self._packed for part in ("_blocks", "_scales")}
        plain = {name: info for name, info in self.tensors.items() if name not in used}
        self.tensors = plain | {name: info for name, (info, *_) in self._packed.items()}

    def dtype(self, name: str) -> np.dtype:
        return np.dtype(ml_dtypes.bfloat16) if name in self._packed else super().dtype(name)

    def read_rows(self, name: str, start: int, stop: int, out: np.ndarray) -> None:
        if name not in self._packed:
            super().read_rows(name, start, stop, out)
            return
        info, blocks, scales = self._packed[name]
        _, size_in, size_out = info.shape
        packed = np.empty((size_out, size_in // BLOCK, BLOCK // 2), np.uint8)
        exponents = np.empty(packed.shape[:2], np.uint8)
        with open_unbuffered(blocks.path) as codes_file, open_unbuffered(scales.path) as scales_file:
            for expert in range(start, stop):
                read_into(codes_file, blocks.offset + expert * packed.nbytes, packed)
                read_into(scales_file, scales.offset + expert * exponents.nbytes, exponents)
                if (exponents == NO_NUMBER).any():
                    raise CheckpointError(f"{self.path}: {name + '_scales'!r} holds scales that are no number")
                cast(decode(packed, exponents).reshape(size_out, size_in).T, out[expert - start])

    def _pairs(self) -> Iterator[tuple[str, tuple[TensorInfo, Stored, Stored]]]:
        """What is in MXFP4: its name, what it appears as, where its blocks and its scales lie."""
        for stored_name, blocks in self._stored.items():
            if not stored_name.endswith("_blocks"):
                continue
            name = stored_name.removesuffix("_blocks")
            scales = self._stored.get(f"{name}_scales")
            shape = blocks.info.shape
            if len(shape) != 4 or shape[3] != BLOCK // 2 or blocks.info.dtype != "U8":
                raise CheckpointError(f"{self.path}: {stored_name!r} is {blocks.info.dtype} {list(shape)}; U8 "
                                      f"[experts, out, in / {BLOCK}, {BLOCK // 2}] is needed")
            if scales is None or scales.info.shape != shape[:3] or scales.info.dtype != "U8":
                found = "none" if scales is None else f"{scales.info.dtype} {list(scales.info.shape)}"
                raise CheckpointError(f"{self.path}: {stored_name!r} needs {name + '_scales'!r}, U8 of shape "
                                      f"{list(shape[:3])}; there is {found}")
            if name in self._stored:
                raise CheckpointError(f"{self.path}: {name!r} and {stored_name!r} are both there; one is needed")
            nbytes = blocks.info.nbytes + scales.info.nbytes
            yield name, (TensorInfo((shape[0], shape[2] * BLOCK, shape[1]), "MXFP4", nbytes), blocks, scales)


def decode(blocks: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """The numbers of blocks, uint8 ``[..., 16]``, and their scales, uint8 ``[...]``: float32 ``[..., 32]``."""
    values = _PAIRS[blocks].reshape(*blocks.shape[:-1], BLOCK)
    factors = np.ldexp(np.float32(1), scales.astype(np.int32) - 127)
    values *= factors[..., None]
    return values


def is_mxfp4(config: Mapping[str, Any]) -> bool:
    """Whether a ``config.json`` says that the checkpoint is in this format."""
    found = config.get(CONFIG_KEY)
    return isinstance(found, Mapping) and found.get("quant_method") == METHOD


def plain_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """A ``config.json`` in this format without what it says of quantization."""
    return {key: value for key, value in config.items() if key != CONFIG_KEY}
