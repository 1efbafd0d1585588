"""What the cache holds per token: ``KVSpec`` names what a layer keeps, ``KVGroup`` the layers that share tables."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, cast

import jax
import jax.numpy as jnp
from jaxtyping import DTypeLike

from jaxllm.models.config import DecoderConfig
from pallas_kernels import Int8Pool


@dataclasses.dataclass(frozen=True)
class KVEntry:
    """What a layer keeps under a name: ``heads`` x ``size`` numbers of ``dtype`` per slot, ``[P, heads, S, size]``.

    Numbers in int8 have a scale of ``scale_dtype`` for each slot and head beside them, ``[P, heads, S]``.
    """

    heads: int
    size: int
    dtype: DTypeLike

    scale_dtype: ClassVar[DTypeLike] = jnp.float32

    @property
    def dtype_name(self) -> str:
        """As ``kv_cache_dtype`` names it."""
        return jnp.dtype(self.dtype).name

    @property
    def quantized(self) -> bool:
        """Whether there are scales."""
        return jnp.dtype(self.dtype) == jnp.int8

    @property
    def bytes_per_slot(self) -> int:
        """Bytes that one token takes, scales included."""
        scale = jnp.dtype(self.scale_dtype).itemsize if self.quantized else 0
        return self.heads * (self.size * jnp.dtype(self.dtype).itemsize + scale)

    def abstract(self, num_blocks: int, block_size: int) -> Any:
        """Shapes and dtypes of what is kept: an array, or an ``Int8Pool`` of two."""
        slots = (num_blocks, self.heads, block_size)
        values = jax.ShapeDtypeStruct((*slots, self.size), jnp.dtype(self.dtype))
        if not self.quantized:
            return values
        scales: Any = jax.ShapeDtypeStruct(slots, jnp.dtype(self.scale_dtype))
        return Int8Pool(cast(Any, values), scales)


@dataclasses.dataclass(frozen=True)
class KVGroup:
    """Layers with the same kind of attention, which share a block table; ``window`` is ``None`` for full attention."""

    layers: tuple[int, ...]
    window: int | None = None


@dataclasses.dataclass(frozen=True)
class KVSpec:
    """The cache of a whole model.

    entries: by name, what every layer stores. groups: partition of the layers, all of one length; the array at a
    position within a group is shared by the layers of all groups at that position.
    """

    entries: Mapping[str, KVEntry]
    groups: tuple[KVGroup, ...]

    @property
    def arrays_per_group(self) -> int:
        """Layers per group, which is the number of distinct pool positions."""
        return len(self.groups[0].layers)

    @property
    def bytes_per_block_slot(self) -> int:
        """Bytes of one slot of one block, over the arrays of all pool positions."""
        return self.arrays_per_group * sum(entry.bytes_per_slot for entry in self.entries.values())

    @property
    def bytes_per_token(self) -> int:
        """Bytes a token takes while every group keeps it."""
        return len(self.groups) * self.bytes_per_block_slot

    def block_bytes(self, block_size: int) -> int:
        """Bytes of one physical block of ``block_size`` slots."""
        return self.bytes_per_block_slot * block_size


def kv_spec(config: DecoderConfig, dtype: DTypeLike) -> KVSpec:
    """Keys and values of every layer in ``dtype``, which may be int8: one group over all layers, which keeps what any
    of them sees. Latents are keys and values at once, and kept once."""
    entry = KVEntry(config.num_kv_heads, config.head_dim, dtype)
    layers = tuple(range(config.num_layers))
    window = None if config.full_layers else config.sliding_window
    return KVSpec({"k": entry} if config.latent is not None else {"k": entry, "v": entry}, (KVGroup(layers, window),))
