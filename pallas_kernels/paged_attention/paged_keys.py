"""Reading groups of consecutive keys and values of some rows out of the pools."""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, DTypeLike, Float, Int32

from pallas_kernels.paged_attention.metadata import PagedAttentionMetadata
from pallas_kernels.paged_attention.online_softmax import Keys
from pallas_kernels.paged_attention.tiles import blocks_per_group
from pallas_kernels.scaled_pool import Pool, ScaledPool


class PagedKeys:
    """The pools and tables of one attention layer, read in groups of ``group_size`` slots of whole blocks, which cover
    ``group_stride`` positions: as many, unless the pools hold a part of every block."""

    def __init__(self, k_pool: Pool, v_pool: Pool, metadata: PagedAttentionMetadata, dtype: DTypeLike) -> None:
        """dtype: of the queries, to which bytes are converted; a value's scale goes into its weights, which in float16
        could become too small, so that there values become float32."""
        self.num_blocks, self.num_kv_heads, self.block_size, self.head_dim = k_pool.shape
        self.blocks = blocks_per_group(self.block_size)
        self.group_size = self.blocks * self.block_size
        self._dtypes = jnp.dtype(dtype), jnp.dtype(jnp.float32 if dtype == jnp.float16 else dtype)
        self._stride = metadata.stride or self.block_size
        self._offset = metadata.offset
        self.group_stride = self.blocks * self._stride
        self._tables = metadata.tables
        (self._k, self._k_scales), (self._v, self._v_scales) = self._by_head(k_pool), self._by_head(v_pool)

    def num_groups(self, length: Int32[Array, ""]) -> Int32[Array, ""]:
        """Groups that a context of this length touches."""
        return (length + self.group_stride - 1) // self.group_stride

    def read(
        self, rows: Int32[Array, " B"], group: Int32[Array, ""], first: Int32[Array, " B"], end: Int32[Array, " B"]
    ) -> Keys:
        """Group number ``group`` of each row, batch and kv heads in one axis, as the dots want it; values outside
        positions ``first .. end - 1``, and their scales, come back as zero.

        They may be anything in the pool, NaN included, and a weight of zero does not remove a NaN.
        """
        batch, last = rows.shape[0], self._tables.shape[1] - 1
        column = jnp.minimum(group * self.blocks + jnp.arange(self.blocks, dtype=jnp.int32), last)
        blocks = self._tables[rows[:, None], column[None, :]]
        blocks = jnp.clip(blocks, 0, self.num_blocks - 1)
        head = jnp.arange(self.num_kv_heads, dtype=jnp.int32)
        index = blocks[:, None, :] * self.num_kv_heads + head[None, :, None]
        positions = self._positions(group)
        owned = (positions >= first[:, None]) & (positions < end[:, None])
        merged = (batch * self.num_kv_heads, self.group_size)
        k = self._k.at[index].get(mode="promise_in_bounds").reshape(*merged, self.head_dim)
        v = self._v.at[index].get(mode="promise_in_bounds")
        v = _zero_unless(owned[:, None, :, None],
                         v.reshape(batch, self.num_kv_heads, self.group_size, self.head_dim))
        v = v.reshape(*merged, self.head_dim)
        if self._k_scales is None or self._v_scales is None:
            return Keys(k, v, positions)
        k_scales, v_scales = (
            jnp.where(owned[:, None], pool.at[index].get(mode="promise_in_bounds").reshape(
                batch, self.num_kv_heads, self.group_size), 0).reshape(merged)
            for pool in (self._k_scales, self._v_scales))
        return Keys(k.astype(self._dtypes[0]), v.astype(self._dtypes[1]), positions, k_scales, v_scales)

    def _positions(self, group: Int32[Array, ""]) -> Int32[Array, " G"]:
        slots = jnp.arange(self.group_size, dtype=jnp.int32)
        if self._offset is None:
            return group * self.group_size + slots
        begins = group * self.group_stride + slots // self.block_size * self._stride
        return begins + self._offset + slots % self.block_size

    def _by_head(self, pool: Pool) -> tuple[Array, Array | None]:
        """Numbers, and scales if they have any, one line for each block and kv head."""
        lines = self.num_blocks * self.num_kv_heads
        if isinstance(pool, ScaledPool):
            return pool.values.reshape(lines, -1), pool.scales.reshape(lines, -1)
        return pool.reshape(lines, -1), None


def _zero_unless(keep: Bool[Array, "B 1 G 1"], x: Float[Array, "B K G H"]) -> Float[Array, "B K G H"]:
    """``where(keep, x, 0)`` by masking bits, which CPUs do several times as fast as selecting by a broadcast bool."""
    bits = jnp.dtype(f"uint{8 * x.dtype.itemsize}")
    every = jnp.array(jnp.iinfo(bits).max, bits)
    mask = lax.optimization_barrier(jnp.where(keep, every, jnp.zeros_like(every)))
    return lax.bitcast_convert_type(lax.bitcast_convert_type(x, bits) & mask, x.dtype)
