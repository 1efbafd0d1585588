"""What a step needs of rotary embeddings: its positions' angles, and a head's dimensions in the kernels' order."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxllm.models.rope import RopeConfig


@jax.named_scope("rope")
def rope_tables(positions: Int[Array, " T"], rope: RopeConfig | None, head_dim: int
                ) -> tuple[Float[Array, "T half"], Float[Array, "T half"]]:
    """Cosines and sines of each position's angles, float32. Angles of zero turn nothing: so it is without ``rope``."""
    half = head_dim // 2
    frequencies = np.zeros(half, np.float32) if rope is None else rope.inverse_frequencies(head_dim)
    angles = positions.astype(jnp.float32)[:, None] * frequencies
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    if rope is None or rope.attention_factor == 1:
        return cos, sin
    factors = rope.factors(head_dim)
    return cos * factors, sin * factors


def turns_halves(rope: RopeConfig | None, head_dim: int) -> bool:
    """Whether a head's dimensions lie as the kernels rotate them: the first half against the second."""
    return rope is None or (rope.rotated(head_dim) == head_dim and not rope.interleaved)


def in_halves(x: Float[Array, "T N H"], rope: RopeConfig | None) -> Float[Array, "T N H"]:
    """The dimensions of queries or keys put so. Scores do not depend on their order."""
    if rope is None:
        return x
    size = rope.rotated(x.shape[2])
    rotated, others = x[..., :size], x[..., size:]
    if rope.interleaved:
        first, second = rotated[..., 0::2], rotated[..., 1::2]
    else:
        first, second = jnp.split(rotated, 2, axis=-1)
    left, right = jnp.split(others, 2, axis=-1)
    return jnp.concatenate([first, left, second, right], axis=-1)
