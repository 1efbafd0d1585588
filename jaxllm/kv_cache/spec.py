"""What the cache holds per token: ``KVSpec`` names the arrays of a layer, ``KVGroup`` the layers that share tables."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import jax.numpy as jnp
from jaxtyping import DTypeLike

from jaxllm.models.config import DecoderConfig


@dataclasses.dataclass(frozen=True)
class KVEntry:
    """One array of a layer's cache, ``[P, heads, S, size]``: ``heads`` x ``size`` numbers of ``dtype`` per slot."""

    heads: int
    size: int
    dtype: DTypeLike

    @property
    def bytes_per_slot(self) -> int:
        """Bytes that one token takes in this array."""
        return self.heads * self.size * jnp.dtype(self.dtype).itemsize


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
    """Keys and values of every layer in ``dtype``, one group over all layers, which keeps what any of them sees."""
    entry = KVEntry(config.num_kv_heads, config.head_dim, dtype)
    layers = tuple(range(config.num_layers))
    window = None if config.full_layers else config.sliding_window
    return KVSpec({"k": entry, "v": entry}, (KVGroup(layers, window),))
