"""Masks that the host makes for a token: bits of 32-bit words, one for each id of the vocabulary."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float, UInt32

from pallas_kernels.sampling.columns import WHOLE, Columns

ALL_ALLOWED = 0xFFFFFFFF
"""A word whose 32 ids may all be chosen."""


def mask_words(vocab_size: int) -> int:
    """How many 32-bit words hold a bit for each id."""
    return -(-vocab_size // 32)


def apply_mask(logits: Float[Array, "B V"], mask: UInt32[Array, "B W"], columns: Columns = WHOLE
               ) -> Float[Array, "B V"]:
    """Logits with -inf where the mask's bit is 0: bit i of word j is token 32 j + i."""
    ids = columns.ids(logits).astype(jnp.uint32)
    words = jnp.repeat(mask, 32, axis=1, total_repeat_length=32 * mask.shape[1])[:, :columns.size(logits)]
    words = columns.own(words, logits)
    return jnp.where((words >> (ids & 31)) & 1 != 0, logits, -jnp.inf)
