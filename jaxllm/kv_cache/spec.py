"""What the cache holds per token: ``KVSpec`` names what a layer keeps, ``KVGroup`` the layers that share tables."""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, cast

import jax
import jax.numpy as jnp
from jaxtyping import DTypeLike

from jaxllm.models.config import DecoderConfig
from pallas_kernels import Float8Pool, Int8Pool

_POOLS = {jnp.dtype(jnp.int8): Int8Pool, jnp.dtype(jnp.float8_e4m3fn): Float8Pool}
"""Of numbers that have scales."""


@dataclasses.dataclass(frozen=True)
class KVEntry:
    """What a layer keeps under a name: ``heads`` x ``size`` numbers of ``dtype`` per slot, ``[P, heads, S, size]``.

    Numbers in int8 and float8_e4m3fn have a scale of ``scale_dtype`` for each slot and head beside them,
    ``[P, heads, S]``.
    """

    heads: int
    size: int
    dtype: DTypeLike

    scale_dtype: ClassVar[DTypeLike] = jnp.float32

    @property
    def dtype_name(self) -> str:
        """As ``kv_cache_dtype`` names it."""
        name = jnp.dtype(self.dtype).name
        return "fp8" if name == "float8_e4m3fn" else name

    @property
    def quantized(self) -> bool:
        """Whether there are scales."""
        return jnp.dtype(self.dtype) in _POOLS

    @property
    def bytes_per_slot(self) -> int:
        """Bytes that one token takes, scales included."""
        scale = jnp.dtype(self.scale_dtype).itemsize if self.quantized else 0
        return self.heads * (self.size * jnp.dtype(self.dtype).itemsize + scale)

    def abstract(self, num_blocks: int, block_size: int) -> Any:
        """Shapes and dtypes of what is kept: an array, or a pool of two."""
        slots = (num_blocks, self.heads, block_size)
        values = jax.ShapeDtypeStruct((*slots, self.size), jnp.dtype(self.dtype))
        if not self.quantized:
            return values
        scales: Any = jax.ShapeDtypeStruct(slots, jnp.dtype(self.scale_dtype))
        return _POOLS[jnp.dtype(self.dtype)](cast(Any, values), scales)


@dataclasses.dataclass(frozen=True)
class KVGroup:
    """Layers with the same kind of attention, which share a block table; ``window`` is ``None`` for full attention."""

    layers: tuple[int, ...]
    window: int | None = None


@dataclasses.dataclass(frozen=True)
class KVSpec:
    """The cache of a whole model, or of some of its layers (``of_layers``).

    entries: by name, what every layer stores. groups: partition of the layers; the array at a position within a group
    is shared by the layers of all groups at that position. A block is as many slots in each of the arrays; where groups
    have fewer layers than others, a part of their blocks is unused.
    """

    entries: Mapping[str, KVEntry]
    groups: tuple[KVGroup, ...]

    @property
    def arrays_per_group(self) -> int:
        """Layers of the largest group, which is the number of distinct pool positions."""
        return max(len(group.layers) for group in self.groups)

    @property
    def windows(self) -> tuple[int | None, ...]:
        """Of each group."""
        return tuple(group.window for group in self.groups)

    @functools.cached_property
    def places(self) -> tuple[tuple[int, int], ...]:
        """Each layer's group, and its position in it; up to the last layer that there is, whatever of those missing."""
        place = {layer: (number, position) for number, group in enumerate(self.groups)
                 for position, layer in enumerate(group.layers)}
        return tuple(place.get(layer, (0, 0)) for layer in range(max(place) + 1))

    @functools.cached_property
    def layers(self) -> tuple[int, ...]:
        """The layers that there are."""
        return tuple(sorted(layer for group in self.groups for layer in group.layers))

    def of_layers(self, layers: Sequence[int]) -> KVSpec:
        """The cache of some layers, with the same groups, and the tables that they have for all."""
        return dataclasses.replace(self, groups=tuple(
            KVGroup(tuple(layer for layer in group.layers if layer in layers), group.window) for group in self.groups))

    @property
    def bytes_per_block_slot(self) -> int:
        """Bytes of one slot of one block, over the arrays of all pool positions."""
        return self.arrays_per_group * self._bytes_per_layer

    @property
    def bytes_per_token(self) -> int:
        """Bytes a token takes while every layer keeps it."""
        return len(self.layers) * self._bytes_per_layer

    def context_bytes(self, num_tokens: int) -> int:
        """Bytes that so many tokens of a sequence take while every layer keeps what its window sees."""
        return self._bytes_per_layer * sum(
            len(group.layers) * min(num_tokens, group.window or num_tokens) for group in self.groups)

    @property
    def _bytes_per_layer(self) -> int:
        return sum(entry.bytes_per_slot for entry in self.entries.values())

    def block_bytes(self, block_size: int) -> int:
        """Bytes of one physical block of ``block_size`` slots."""
        return self.bytes_per_block_slot * block_size


def kv_spec(config: DecoderConfig, dtype: DTypeLike, max_model_len: int | None = None) -> KVSpec:
    """Keys and values of every layer in ``dtype``, which may be int8 or float8_e4m3fn. Latents are both at once, and
    kept once.

    max_model_len: the longest sequence; the model's context by default. A window that is no shorter is none.
    """
    length = config.max_position_embeddings if max_model_len is None else max_model_len
    windows = tuple(None if window is None or window >= length else window
                    for window in map(config.window_of, range(config.num_layers)))
    entry = KVEntry(config.num_kv_heads, config.head_dim, dtype)
    entries = {"k": entry} if config.latent is not None else {"k": entry, "v": entry}
    return KVSpec(entries, kv_groups(windows, length))


def kv_groups(windows: Sequence[int | None], max_model_len: int) -> tuple[KVGroup, ...]:
    """The groups of layers with these windows: few of them, of about one size.

    As in vLLM's hybrid KV cache manager, a kind of layers makes up several groups where another has fewer layers. A
    group is as large as the largest kind, or the smallest, or an equal part of that: the first that wastes no more than
    a seventh of the memory that is needed, be sequences short or of full length. Where the pattern of layers repeats,
    layers at the same place of the pattern go into one group, so that runs of layers that repeat it have the same
    places in the cache, and can share a program.
    """
    layers = range(len(windows))
    kinds = sorted(set(windows), key=lambda window: (window is not None, window or 0))
    counts = Counter(windows)

    def wastes(size: int) -> bool:
        padded = {kind: -(-count // size) * size for kind, count in counts.items()}
        return any(7 * sum(padded[kind] * tokens(kind) for kind in kinds)
                   > 8 * sum(counts[kind] * tokens(kind) for kind in kinds)
                   for tokens in (lambda kind: 1, lambda kind: max_model_len if kind is None else kind))

    fewest = min(counts.values())
    sizes = [max(counts.values()), *(-(-fewest // parts) for parts in range(1, fewest + 1))]
    size = next(size for size in sizes if not wastes(size))
    period = next(period for period in range(1, len(windows) + 1) if windows[period:] == windows[:-period])
    groups = []
    for kind in kinds:
        # What is left over at each place of the pattern makes up groups together.
        left: list[int] = []
        for place in range(period):
            alike = [layer for layer in layers[place::period] if windows[layer] == kind]
            whole = len(alike) // size * size
            groups += [KVGroup(tuple(alike[first:first + size]), kind) for first in range(0, whole, size)]
            left += alike[whole:]
        left.sort()
        groups += [KVGroup(tuple(left[first:first + size]), kind) for first in range(0, len(left), size)]
    return tuple(groups)
