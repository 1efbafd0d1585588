"""What the layers of a step share, and what each has to itself.

Compiled programs that are kept name these types: loading them must not need Flax."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
from jaxtyping import Array, Bool, Float, Int

from pallas_kernels import Float8Pool, Int8Pool

Rotary = tuple[tuple[Float[Array, "T half"], Float[Array, "T half"]], ...]
LayerCache = dict[str, Array | Int8Pool | Float8Pool]
"""One layer's share of the pool: ``k`` and ``v``, each ``[P, K, S, H]``; ``k`` alone where it holds latents."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class StepContext:
    """What the layers of one group share in a step.

    rotary: cosines and sines of the step's positions, for each of ``DecoderConfig.ropes``. slots: where each token's
    keys and values go. positions: where each token is in its sequence. valid: which tokens there are; the others fill
    up the step. attention: the kernels' metadata (block tables, query ranges, lengths).
    """

    rotary: Rotary
    slots: Int[Array, " T"]
    positions: Int[Array, " T"]
    valid: Bool[Array, " T"]
    attention: Any


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class StepContexts:
    """What all layers of one step share, and by number of the group, what its layers do: ``slots`` and ``tables``.

    Positions and valid tokens are as in ``StepContext``. attention: the kernels' metadata, with ``None`` for the block
    tables.
    """

    rotary: Rotary
    positions: Int[Array, " T"]
    valid: Bool[Array, " T"]
    attention: Any
    slots: tuple[Int[Array, " T"], ...]
    tables: tuple[Int[Array, "R M"], ...]

    def select(self, groups: Sequence[int]) -> StepContexts:
        """For layers of these groups, which get the numbers 0, 1, ..."""
        return dataclasses.replace(self, slots=tuple(self.slots[group] for group in groups),
                                   tables=tuple(self.tables[group] for group in groups))

    def of(self, group: int) -> StepContext:
        """For the layers of one group."""
        return StepContext(self.rotary, self.slots[group], self.positions, self.valid,
                           dataclasses.replace(self.attention, tables=self.tables[group]))
