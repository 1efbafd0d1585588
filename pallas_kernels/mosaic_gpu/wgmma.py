"""The warpgroup's matrix products, each with its wait: no kernel calls ``wgmma`` itself.

``wgmma`` is asynchronous: its accumulator may be read, and its operands in shared memory overwritten, only after
``wgmma.wait_group``. JAX's interpreter computes at once and takes a wait for nothing, so a missing one shows on a GPU
alone. Hence this rule: the functions below return values, never accumulators in flight, and whoever has such a value
may release the operands; `sum_of_products`, which keeps a product in flight, says itself which are done.
``tests/kernels/test_mosaic_compiled.py`` finds the waits in the compiled code.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Array, Float


def product(a: Any, b: Any) -> Float[Array, "M N"]:
    """``a @ b`` in float32, of two references in shared memory, 16-bit [M, I] and [I, N]; M is 64."""

    def multiply(accumulator: Any) -> Array:
        plgpu.wgmma(accumulator, a, b)
        return accumulator[...]  # waits for all products in flight

    return pl.run_scoped(multiply, plgpu.WGMMAAccumulatorRef((a.shape[0], b.shape[1]), jnp.float32))


def add_product(
    total: Float[Array, "M N"], a: Float[Array, "M I"], b: Any, *, interpret: bool
) -> Float[Array, "M N"]:
    """``total + a @ b`` in float32, of a in registers and a reference b in shared memory, both 16-bit; M is 64.

    interpret: the interpreter knows neither operands in registers nor accumulators that begin with a value; it is
        given a plain dot.
    """
    if interpret:
        read = b[...]
        plgpu.commit_smem()  # to the race detector this is a read like others; wgmma's goes where the copies go
        return total + jnp.dot(a.astype(jnp.float32), read.astype(jnp.float32), precision=jax.lax.Precision.HIGHEST)

    def multiply(accumulator: Any) -> None:
        plgpu.wgmma(accumulator, a, b)
        plgpu.wgmma_wait(0)

    return pl.run_state(multiply)(plgpu.WGMMAAccumulatorRef.init(total))


def sum_of_products(
    steps: Array, shape: tuple[int, int], operands: Callable[[Array], tuple[Any, Any]],
    release: Callable[[Array], None],
) -> Float[Array, "M N"]:
    """The sum of ``a @ b`` over steps, in their order, in float32; M is 64. Zeros for no steps.

    operands: of a step, references in shared memory, 16-bit [M, I] and [I, N], once they are there. release: called
    with each step, when its product has been waited for; the next one is under way then.
    """

    def multiply(accumulator: Any) -> Array:
        def one(step: Array, nothing: None) -> None:
            plgpu.wgmma(accumulator, *operands(step))
            plgpu.wgmma_wait(1)  # for all but the one just begun

            @pl.when(step > 0)
            def _() -> None:
                release(step - 1)

        lax.fori_loop(0, steps, one, None)
        total = accumulator[...]  # waits for all products in flight

        @pl.when(steps > 0)
        def _() -> None:
            release(steps - 1)

        return total

    return pl.run_scoped(multiply, plgpu.WGMMAAccumulatorRef(shape, jnp.float32))
