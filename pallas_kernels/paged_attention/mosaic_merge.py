"""Merging the splits of decodes, in order: the operations by which `mosaic_kernel` merges the splits of whole rows."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Array, Float, Int32

from pallas_kernels.paged_attention.mosaic_kernel import Results
from pallas_kernels.paged_attention.mosaic_softmax import finish, merge, wide
from pallas_kernels.paged_attention.mosaic_work import ROWS_PER_WARPGROUP, Sizes

COLUMNS = 64
"""Of values that a thread block merges."""


def merge_splits(
    results: Results,
    merges: Int32[Array, "J 2"],
    sinks: Float[Array, "K G8"] | None,
    dtype: Any,
    *,
    sizes: Sizes,
    interpret: Any,
) -> tuple[Float[Array, "J K G8 H"], Float[Array, "J K G8"]]:
    """The finished values and log-sum-exp of each row that was split; undefined past the last."""
    num_rows = sizes.num_kv_heads * sizes.group_rows
    operands = [results.partial_values, results.partial_largest, results.partial_total, merges]
    if sinks is not None:
        operands.append(jnp.pad(sinks.reshape(num_rows), (0, sizes.slot_rows - num_rows)))
    num_merges = merges.shape[0]
    values, lse = plgpu.kernel(
        partial(_body, has_sinks=sinks is not None),
        out_type=(
            jax.ShapeDtypeStruct((num_merges, sizes.slot_rows, sizes.head_dim), dtype),
            jax.ShapeDtypeStruct((num_merges, sizes.slot_rows), jnp.float32),
        ),
        scratch_types=[plgpu.SMEM((ROWS_PER_WARPGROUP, COLUMNS), dtype)],
        grid=(sizes.head_dim // COLUMNS, sizes.slot_rows // ROWS_PER_WARPGROUP, num_merges),
        grid_names=("column", "tile", "merge"),
        kernel_name="merge_splits",
        compiler_params=plgpu.CompilerParams(approx_math=True, reduction_scratch_bytes=0),
        interpret=interpret,
    )(*operands)
    shape = (num_merges, sizes.num_kv_heads, sizes.group_rows)
    return values[:, :num_rows].reshape(*shape, sizes.head_dim), lse[:, :num_rows].reshape(shape)


def _body(*refs: Any, has_sinks: bool) -> None:
    partial_values, partial_largest, partial_total, merges, *rest = refs
    sinks = rest.pop(0) if has_sinks else None
    out, lse, staged = rest
    number = lax.axis_index("merge")
    column = lax.axis_index("column")
    rows = pl.ds(lax.axis_index("tile") * ROWS_PER_WARPGROUP, ROWS_PER_WARPGROUP)
    columns = pl.ds(column * COLUMNS, COLUMNS)
    begin, count = merges[number, 0], merges[number, 1]

    def read(slot: Array) -> tuple[Array, Array, Array]:
        return (
            plgpu.load(partial_largest.at[slot, rows], optimized=False),
            plgpu.load(partial_total.at[slot, rows], optimized=False),
            plgpu.load(partial_values.at[slot, rows, columns], layout=plgpu.Layout.WGMMA, optimized=False),
        )

    @pl.when(count > 0)
    def _() -> None:
        largest, total, values = lax.fori_loop(1, count, lambda i, state: merge(state, read(begin + i)), read(begin))
        factor, log_sum = finish(
            largest, total, None if sinks is None else plgpu.load(sinks.at[rows], optimized=False))
        staged[...] = (values * wide(factor, values.shape)).astype(staged.dtype)
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(staged, out.at[number, rows, columns])

        @pl.when(column == 0)
        def _() -> None:
            lse[number, rows] = log_sum

        plgpu.wait_smem_to_gmem(0)
