"""What the layers of a step share, and what each has to itself.

Compiled programs that are kept name these types: loading them must not need Flax."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
from jaxtyping import Array, Bool, Float, Int

from pallas_kernels import Int8Pool

LayerCache = dict[str, Array | Int8Pool]
"""One layer's share of the pool: ``k`` and ``v``, each ``[P, K, S, H]``; ``k`` alone where it holds latents."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class StepContext:
    """What all layers of one step share.

    rotary: cosines and sines of the step's positions, for each of ``DecoderConfig.ropes``. slots: where each token's
    keys and values go. positions: where each token is in its sequence. valid: which tokens there are; the others fill
    up the step. attention: the kernels' metadata (block tables, query ranges, lengths).
    """

    rotary: tuple[tuple[Float[Array, "T half"], Float[Array, "T half"]], ...]
    slots: Int[Array, " T"]
    positions: Int[Array, " T"]
    valid: Bool[Array, " T"]
    attention: Any
