"""How a model's parameters are described before they exist: shape, dtype and logical axes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from jaxllm.errors import ParameterError


@dataclasses.dataclass(frozen=True)
class ParamSpec:
    """One parameter: its shape, its dtype and the logical name of each axis (``None`` for an axis never sharded)."""

    shape: tuple[int, ...]
    dtype: Any
    axes: tuple[str | None, ...]

    def __post_init__(self) -> None:
        if len(self.axes) != len(self.shape):
            raise ParameterError("axes", self.axes, f"one name or None for each dimension of shape {self.shape}")
        object.__setattr__(self, "dtype", np.dtype(self.dtype))

    @property
    def size(self) -> int:
        """Number of elements."""
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def nbytes(self) -> int:
        """Bytes of the whole parameter, before any sharding."""
        return self.size * int(self.dtype.itemsize)


@dataclasses.dataclass(frozen=True)
class Piece:
    """One checkpoint tensor's part in a parameter; pieces are concatenated along axis 0.

    transform: applied to the tensor as stored (a numpy array), e.g. a slice, a transpose or an added axis. It must not
    depend on the values for its shape: that is checked beforehand on an array of the stored shape without storage.
    """

    name: str
    transform: Callable[[np.ndarray], np.ndarray] | None = None
