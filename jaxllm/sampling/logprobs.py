"""Log-probabilities of chosen and most likely tokens, on the device, and their form for the user, on the host."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int

from jaxllm.outputs import Logprob
from jaxllm.sampling.reductions import count, top_k
from jaxllm.sampling.tiles import map_row_tiles
from pallas_kernels.reductions import isolated_exp, row_sum


class TokenLogprobs(NamedTuple):
    """Of each row: the target's log-probability and rank, and the most likely tokens in order."""

    logprob: Float[Array, " C"]
    rank: Int[Array, " C"]
    top_ids: Int[Array, "C K"]
    top_logprobs: Float[Array, "C K"]


def token_logprobs(logits: Float[Array, "C V"], targets: Int[Array, " C"], k: int) -> TokenLogprobs:
    """Float32 log-softmax of raw logits at the targets and at the ``min(k, V)`` most likely tokens.

    A row's results depend on that row alone, bit for bit, for any number of rows. rank is 1 + the number of tokens
    with a strictly larger logit. Ties among the most likely are in order of their ids. A negative target (a row for
    which no token could be chosen) gives NaN.
    """
    with jax.named_scope("token_logprobs"):
        return map_row_tiles(functools.partial(_token_logprobs, k=min(k, logits.shape[1])), logits, targets)


def _token_logprobs(logits: Float[Array, "C V"], targets: Int[Array, " C"], *, k: int) -> TokenLogprobs:
    best = jnp.max(logits, axis=-1)
    total = row_sum(isolated_exp(logits - best[:, None]))
    log_total = lax.optimization_barrier(jnp.log(lax.optimization_barrier(total)))
    target_logits = jnp.take_along_axis(logits, jnp.maximum(targets, 0)[:, None], axis=1)[:, 0]
    logprob = (target_logits - best) - log_total
    rank = 1 + count(logits > target_logits[:, None])
    top_logits, top_ids = top_k(logits, k)
    top_logprobs = (top_logits - best[:, None]) - log_total[:, None]
    return TokenLogprobs(jnp.where(targets < 0, jnp.nan, logprob), rank, top_ids, top_logprobs)


def mask_padded_vocab(logits: Float[Array, "B V"], num_valid: int) -> Float[Array, "B V"]:
    """Logits with -inf from ``num_valid`` (a static number) on: ids that exist in the weights but name no token."""
    if num_valid >= logits.shape[-1]:
        return logits
    ids = lax.broadcasted_iota(jnp.int32, logits.shape, logits.ndim - 1)
    return jnp.where(ids < num_valid, logits, -jnp.inf)


def to_logprobs(
    token_id: int,
    logprob: float,
    rank: int,
    top_ids: Sequence[int] | np.ndarray,
    top_logprobs: Sequence[float] | np.ndarray,
    k: int,
    decode: Callable[[int], str | None] = lambda token_id: None,
) -> dict[int, Logprob]:
    """One position's ``Logprob`` by token id: the chosen token first, then the ``k`` most likely without it twice.

    decode: the text of one id.
    """
    result = {int(token_id): Logprob(float(logprob), int(rank), decode(int(token_id)))}
    top_rank = 1
    for index in range(min(k, len(top_ids))):
        if index and top_logprobs[index] < top_logprobs[index - 1]:
            top_rank = index + 1
        top_id = int(top_ids[index])
        if top_id not in result:
            result[top_id] = Logprob(float(top_logprobs[index]), top_rank, decode(top_id))
    return result
