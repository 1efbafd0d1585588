"""Launching Triton kernels from JAX: through jax-triton on a GPU, in Triton's interpreter with TRITON_INTERPRET=1.

The interpreter needs no GPU and runs a program of the grid after the other in numpy: for tests and for looking into a
kernel. Triton reads the variable when it is imported.
"""

from __future__ import annotations

import functools
import importlib.util
import os
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, DTypeLike

FLOATS = (jnp.bfloat16, jnp.float16)
"""What tensor cores multiply here."""
OLDEST_WITH_FLOAT8 = 89
"""Compute capability, ten times: where GPUs convert it."""


def unavailable() -> str | None:
    """Why Triton kernels cannot be launched here, or ``None``."""
    missing = [name for name in ("triton", "jax_triton") if importlib.util.find_spec(name) is None]
    return f"{' and '.join(missing)} not installed (the cuda13 extra)" if missing else None


def interpreted() -> bool:
    """Whether kernels run in Triton's interpreter in this process."""
    return os.environ.get("TRITON_INTERPRET", "0") == "1"


def compute_capability() -> int:
    """Of the GPU that the program being traced is for, such as 90; 0 in the interpreter.

    Raises RuntimeError or ValueError where there is no GPU and no description of one.
    """
    if interpreted():
        return 0
    from jax_triton import triton_lib

    return int(triton_lib.make_cuda_target(None, 1).arch)


def float8_unsupported(what: str, dtype: DTypeLike) -> str | None:
    """Why ``what``, numbers of that dtype, cannot be read or written on the GPU being traced for, or ``None``.

    Older GPUs have no instruction that converts float8, and Triton's compiler refuses it there.
    """
    if dtype != jnp.float8_e4m3fn or not 0 < (capability := compute_capability()) < OLDEST_WITH_FLOAT8:
        return None
    return (f"{what} in float8 need a GPU of compute capability 8.9 or newer, and this has "
            f"{capability // 10}.{capability % 10}")


def launch(
    kernel: Any,
    operands: Mapping[str, Any],
    *,
    grid: tuple[int, ...],
    constants: Mapping[str, Any],
    outputs: Mapping[str, jax.ShapeDtypeStruct] | None = None,
    updated: tuple[str, ...] = (),
    warps: int,
) -> tuple[Array, ...]:
    """Run a kernel and return what it wrote: of operands those in ``updated``, in that order, then the outputs.

    operands: by parameter; arrays, numbers, or ``None`` for a pointer that the kernel's constants leave unused. Updated
    ones are written in place where XLA may give up their old contents, and are copied first where it may not.
    outputs: parameters that only the kernel writes; what it leaves out is undefined.
    constants: its ``constexpr`` parameters.
    """
    outputs = outputs or {}
    if interpreted():
        from pallas_kernels.triton_interpreter import interpret

        return interpret(kernel, operands, grid, constants, outputs, updated)
    import jax_triton

    fit_jax_triton()
    given = dict(operands)
    for name in updated:
        given[name] = jax.new_ref(given[name])
    parameters = [name for name in kernel.arg_names if name in outputs]
    written = jax_triton.triton_call(
        kernel=kernel, grid=grid, name=kernel.fn.__name__, num_warps=warps,
        out_type=tuple(outputs[name] for name in parameters),
        # Contracted or not would depend on the surroundings of an expression, and with it the last bit.
        backend_options={"enable_fp_fusion": False}, **given, **constants)
    by_name = dict(zip(parameters, written, strict=True))
    return (*(jax.freeze(given[name]) for name in updated), *(by_name[name] for name in outputs))


@functools.cache
def fit_jax_triton() -> None:
    """jax-triton 0.4.1 was made for JAX 0.11; 0.12 calls the rule of dead code with one argument more."""
    from jax._src.interpreters import partial_eval
    from jax_triton import triton_lib

    partial_eval.dce_rules[triton_lib.triton_kernel_call_p] = lambda used, *rest: (
        [True] * len(rest[-1].invars), rest[-1])


def power_of_two(size: int) -> int:
    """The smallest that is not less, as the sizes of Triton's tiles have to be."""
    return 1 << (size - 1).bit_length()
