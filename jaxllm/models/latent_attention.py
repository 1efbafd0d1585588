"""Multi-head latent attention (DeepSeek-AI 2024, DeepSeek-V2, section 2.1) over a paged cache of latents."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, DTypeLike, Float

from jaxllm.models.config import DecoderConfig, LatentConfig
from jaxllm.models.layers import HeadLinear, Linear, RMSNorm
from jaxllm.models.rope_tables import in_halves, turns_halves
from jaxllm.models.step import LayerCache, StepContext
from pallas_kernels import paged_attention
from pallas_kernels.kv_write import write_pool
from pallas_kernels.rope_kv_write import rotate

_NORM_EPS = 1e-6
"""Of the norms of latents, whatever the others have."""


class LatentAttention(nnx.Module):
    """Attention of all heads to one head of keys: the latents and beside them the rotated keys.

    A head's key is ``k_up @ latent``, so that its score with a query is the latent's with ``k_up.T @ query``; its value
    is ``v_up @ latent``, so that the weighted sum of values is ``v_up`` times that of latents. Neither is ever made
    ("absorption"). Prefills are computed in the same way as decodes: their bits are equal, and scores and sums of a
    prompt cost ``2 * cached_dim`` products per pair of tokens and head instead of ``plain_dim + rope_dim + v_dim``.
    """

    def __init__(self, config: DecoderConfig, latent: LatentConfig, layer: int, dtype: DTypeLike) -> None:
        heads, width, bias = config.num_heads, config.hidden_size, config.attention_bias
        assert config.attention_scale is not None
        self.sizes, self.heads, self.scale = latent, heads, config.attention_scale
        self.table = config.rope_of(layer)
        self.rope = config.ropes[self.table]
        query = heads * (latent.plain_dim + latent.rope_dim)
        if latent.q_rank is None:
            self.q = Linear(width, query, ("heads", "embed"), dtype)
        else:
            self.q_down = Linear(width, latent.q_rank, (None, "embed"), dtype, bias=bias)
            self.q_norm = RMSNorm(latent.q_rank, _NORM_EPS, dtype)
            self.q_up = Linear(latent.q_rank, query, ("heads", None), dtype)
        self.kv_down = Linear(width, latent.cached_dim, (None, "embed"), dtype, bias=bias)
        self.kv_norm = RMSNorm(latent.kv_rank, _NORM_EPS, dtype)
        self.k_up = HeadLinear(heads, latent.plain_dim, latent.kv_rank, dtype)
        self.v_up = HeadLinear(heads, latent.kv_rank, latent.v_dim, dtype)
        self.out = Linear(heads * latent.v_dim, width, ("embed", "heads"), dtype, bias=config.attention_output_bias,
                          shard=config.shard)

    def __call__(self, x: Float[Array, "T D"], step: StepContext, cache: LayerCache
                 ) -> tuple[Float[Array, "T D"], LayerCache]:
        sizes = self.sizes
        q_plain, q_turned = jnp.split(self._queries(x), (sizes.plain_dim,), axis=2)
        latent, k_turned = jnp.split(_apart(self.kv_down(x))[:, None], (sizes.kv_rank,), axis=2)
        query = jnp.concatenate([self.k_up(q_plain), self._turn(q_turned, step)], axis=2)
        key = jnp.concatenate([self.kv_norm(latent), self._turn(k_turned, step)], axis=2)
        pool = write_pool(cache["k"], _apart(key), step.slots)
        attended = paged_attention(_apart(query), pool, pool, step.attention, scale=self.scale)[..., :sizes.kv_rank]
        values = self.v_up(attended)
        return self.out(values.reshape(x.shape[0], -1)), {"k": pool}

    def _queries(self, x: Float[Array, "T D"]) -> Float[Array, "T N H"]:
        flat = self.q(x) if self.sizes.q_rank is None else self.q_up(self.q_norm(_apart(self.q_down(x))))
        return flat.reshape(x.shape[0], self.heads, -1)

    def _turn(self, x: Float[Array, "T N R"], step: StepContext) -> Float[Array, "T N R"]:
        """Rotary embedding; the tables of angles are for all of a cached head, whose first dimensions these are not."""
        cos, sin = (table[:, :self.sizes.rope_dim // 2] for table in step.rotary[self.table])
        return rotate(x if turns_halves(self.rope, x.shape[2]) else in_halves(x, self.rope), cos, sin)


def _apart(x: Array) -> Array:
    """As it is. How XLA rounds what it makes part of other operations would depend on the batch."""
    return jax.lax.optimization_barrier(x)
