"""How a model's parameters are described before they exist: shape, dtype and logical axes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxllm.errors import ParameterError

if TYPE_CHECKING:
    from jaxllm.weights.rows import StoredRows


@dataclasses.dataclass(frozen=True)
class ParamSpec:
    """One parameter: its shape, its dtype and the logical name of each axis (``None`` for an axis never sharded).

    parts: how the rows of a matrix are kept where they are not one plain array of that dtype.
    stack: of how many layers the arrays are kept as one, of which this parameter is a slice; 0 where it has its own.
    """

    shape: tuple[int, ...]
    dtype: Any
    axes: tuple[str | None, ...]
    parts: tuple[StoredRows, ...] = ()
    stack: int = 0

    def __post_init__(self) -> None:
        if len(self.axes) != len(self.shape):
            raise ParameterError("axes", self.axes, f"one name or None for each dimension of shape {self.shape}")
        object.__setattr__(self, "dtype", np.dtype(self.dtype))

    @property
    def is_matrix(self) -> bool:
        """Whether it can be kept quantized: a matrix, though not a router's, whose few rows decide which experts there
        are for a token."""
        return len(self.shape) == 2 and self.axes[0] != "router"

    @property
    def is_of_experts(self) -> bool:
        """Whether it holds the rows of several experts' matrices, which are computed with as one array."""
        return self.axes[:1] in (("expert_gate_up",), ("expert_down",))

    @property
    def size(self) -> int:
        """Number of elements."""
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def nbytes(self) -> int:
        """Bytes of the whole parameter, before any sharding."""
        itemsize = int(self.dtype.itemsize)
        if self.parts:
            return sum(part.nbytes(self.shape[1], itemsize) for part in self.parts)
        return self.size * itemsize

    @property
    def kinds(self) -> str:
        """How its rows are kept, for people."""
        return " and ".join(dict.fromkeys(part.kind or self.dtype.name for part in self.parts)) or str(self.dtype.name)

    def abstract(self) -> Any:
        """Its arrays as shapes and dtypes: one, or a tree where it is kept in parts or as a slice."""
        import jax

        from jaxllm.weights.rows import StackedLayer, joined

        if self.stack:
            array: Any = jax.ShapeDtypeStruct((self.stack, *self.shape), self.dtype)
            return StackedLayer(array, jax.ShapeDtypeStruct((), np.int32))  # type: ignore[arg-type]
        if not self.parts:
            return jax.ShapeDtypeStruct(self.shape, self.dtype)
        return joined([part.abstract(self.shape[1], self.dtype) for part in self.parts])


@dataclasses.dataclass(frozen=True)
class Piece:
    """One checkpoint tensor's part in a parameter; pieces are concatenated along axis 0.

    transform: applied to the tensor as stored (a numpy array), e.g. a slice, a transpose or an added axis. It must not
    depend on the values for its shape: that is checked beforehand on an array of the stored shape without storage.
    inverse: what undoes it, where that is known. part: the number of what it gives then, of a tensor that several
    pieces make up, which are joined along their second axis; the first two axes become one.
    """

    name: str
    transform: Callable[[np.ndarray], np.ndarray] | None = None
    inverse: Callable[[np.ndarray], np.ndarray] | None = None
    part: int | None = None
