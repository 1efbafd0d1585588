"""``ModelSource``: a checkpoint on disk whose header is read and whose data is not, until asked for."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from jaxllm.weights.int8 import quantize_int8


@dataclasses.dataclass(frozen=True, slots=True)
class TensorInfo:
    """What a checkpoint's header says of one tensor.

    shape: in the order of Hugging Face checkpoints, ``[out, in]`` for a matrix.
    dtype: the stored type as its format names it: "F32", "F16", "BF16", "Q4_K", ...
    nbytes: bytes as stored.
    """

    shape: tuple[int, ...]
    dtype: str
    nbytes: int

    @property
    def rows(self) -> int:
        """How many rows ``read_rows`` counts: the first dimension of a matrix or larger, else one."""
        return self.shape[0] if len(self.shape) > 1 else 1


class ModelSource(abc.ABC):
    """A model's configuration and tensors, whatever file format they come from.

    Building one reads headers only and checks all that can be checked without the data: that files are whole, that
    shards are there, that types are supported.

    name: short, for people.
    path: the folder or file.
    config: as in a Hugging Face ``config.json``.
    generation_config: as in ``generation_config.json``; empty if there is none.
    tensors: every tensor, under its Hugging Face name.
    quantization: as what the checkpoint means its matrices to be computed with, where not as plain numbers.
    """

    quantization: str | None = None

    name: str
    path: Path
    config: Mapping[str, Any]
    generation_config: Mapping[str, Any]
    tensors: Mapping[str, TensorInfo]

    @abc.abstractmethod
    def dtype(self, name: str) -> np.dtype:
        """What ``read`` returns: the stored dtype, or float32 for quantized types."""

    @abc.abstractmethod
    def read_rows(self, name: str, start: int, stop: int, out: np.ndarray) -> None:
        """Read rows ``[start, stop)`` of a tensor, converted to the dtype of ``out``, which has those rows' shape.

        ``out`` is C-contiguous. A tensor of fewer than two dimensions is one row. Safe to call from several threads.
        """

    def read_stored(self, name: str, start: int, stop: int, out: np.ndarray) -> None:
        """Read rows ``[start, stop)`` of a matrix as they are stored, into uint8 [rows, bytes], C-contiguous.

        For quantized types; only formats that have any can do it. Safe to call from several threads.
        """
        raise NotImplementedError(f"{type(self).__name__} has no quantized tensors")

    def read_int8(self, name: str, start: int, stop: int, codes: np.ndarray, scale: np.ndarray) -> None:
        """Read rows ``[start, stop)`` of a matrix as signed bytes, into uint8 [rows, columns], and a factor for each,
        into float32 [rows]: as they are stored, or quantized here. Safe to call from several threads.

        Raises ``OverflowError`` where a value that is to be quantized is not finite.
        """
        rows = np.empty(codes.shape, np.float32)
        self.read_rows(name, start, stop, rows)
        quantize_int8(rows, codes, scale)

    def read(self, name: str) -> np.ndarray:
        """The whole tensor: float32 for quantized types, else its stored dtype."""
        info = self.tensors[name]
        out = np.empty(info.shape, self.dtype(name))
        self.read_rows(name, 0, info.rows, out)
        return out
