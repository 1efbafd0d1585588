"""Triton's interpreter on numpy arrays.

It wants torch's tensors, of which it uses a pointer and a storage to copy: `_Memory` is that much of one. Its numbers
of bfloat16 and float8 are bits in unsigned integers, which it truncates where a GPU rounds, and multiplies as they are:
`_fit` converts and multiplies them as numbers (ml_dtypes), with products added up one after the other in float32, in
which a row's result does not depend on the rows beside it.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import jax
import ml_dtypes
import numpy as np
from jaxtyping import Array

_TRITON_NAMES = {
    "bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "float8_e4m3fn": "fp8e4nv", "int8": "i8",
    "int32": "i32", "int64": "i64", "uint8": "u8", "uint32": "u32", "bool": "i1",
}


class _Memory:
    """An array as the interpreter sees a tensor; it is its own storage, and already where it has to be."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array
        self.dtype = _TRITON_NAMES[array.dtype.name]

    def data_ptr(self) -> int:
        return self.array.ctypes.data

    def untyped_storage(self) -> _Memory:
        return self

    def cpu(self) -> _Memory:
        return self

    def new_empty(self, *size: int, device: str) -> _Memory:
        return _Memory(self.array)

    def set_(self, storage: _Memory, offset: int, size: tuple[int, ...], stride: tuple[int, ...]) -> None:
        self.array = storage.array

    def copy_(self, other: _Memory) -> None:
        if other.array is not self.array:
            raise AssertionError("the interpreter has run on another array")

    def storage_offset(self) -> int:
        return 0

    def size(self) -> tuple[int, ...]:
        return self.array.shape

    def stride(self) -> tuple[int, ...]:
        return self.array.strides


def interpret(
    kernel: Any,
    operands: Mapping[str, Any],
    grid: tuple[int, ...],
    constants: Mapping[str, Any],
    outputs: Mapping[str, jax.ShapeDtypeStruct],
    updated: tuple[str, ...],
) -> tuple[Array, ...]:
    """What `triton_launch.launch` does, on the CPU; what a kernel leaves out of its outputs is NaN, or -1."""
    _fit()
    arrays = {name: value for name, value in operands.items() if isinstance(value, jax.Array | np.ndarray)}
    others = {name: value for name, value in operands.items() if name not in arrays}
    like = [jax.ShapeDtypeStruct(arrays[name].shape, arrays[name].dtype) for name in updated] + list(outputs.values())

    def on_host(given: dict[str, Any]) -> list[np.ndarray]:
        held = {name: np.array(value) for name, value in given.items()}
        for name, struct in outputs.items():
            poison = -1 if np.issubdtype(struct.dtype, np.integer) else np.nan
            held[name] = np.full(struct.shape, poison, struct.dtype)
        named = {name: _Memory(array) for name, array in held.items()} | others | dict(constants)
        kernel[grid](**named)
        return [held[name] for name in (*updated, *outputs)]

    return tuple(jax.pure_callback(on_host, like, arrays))


@functools.cache
def _fit() -> None:
    """Make the interpreter's conversions and products those of numbers."""
    import triton.language as tl
    from triton.runtime import interpreter

    packed: dict[Any, Any] = {
        tl.bfloat16: ml_dtypes.bfloat16, tl.float8e4nv: ml_dtypes.float8_e4m3fn, tl.float8e5: ml_dtypes.float8_e5m2}

    def numbers(handle: Any) -> np.ndarray:
        kind = packed.get(handle.dtype.scalar)
        return handle.data if kind is None else handle.data.view(kind)

    def convert(self: Any, source: Any, kind: Any, rounding: Any = None) -> Any:
        kind = kind.scalar
        if kind in packed:
            bits = interpreter._get_np_dtype(kind)
            wide = numbers(source).astype(np.float32)
            return interpreter.TensorHandle(wide.astype(packed[kind]).view(bits), kind)
        return interpreter.TensorHandle(numbers(source).astype(interpreter._get_np_dtype(kind)), kind)

    def dot(self: Any, a: Any, b: Any, total: Any, *precision: Any) -> Any:
        left, right = (numbers(handle).astype(np.float32) for handle in (a, b))
        sums = np.array(total.data, np.float32)
        for column, row in zip(left.T, right, strict=True):
            sums += column[:, None] * row
        return interpreter.TensorHandle(sums, total.dtype.scalar)

    interpreter.InterpreterBuilder.cast_impl = convert
    interpreter.InterpreterBuilder.create_fp_to_fp = convert
    interpreter.InterpreterBuilder.create_dot = dot
