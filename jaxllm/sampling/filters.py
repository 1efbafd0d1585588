"""Top-k, min-p and top-p without a sort.

All three keep a prefix of the tokens in one order: logit descending, then id ascending. So each is decided by its last
kept token. Top-k finds that token exactly. Top-p (the smallest set whose probability, within what top-k and min-p
left, reaches p) need not: it draws, asks whether the drawn token lies in the set, and if not draws again among the
tokens before it. Drawing is the argmax of fixed scores, so this ends at the very token that filtering first would have
given, after about 1/p draws; a sort of the vocabulary costs 40 times as much on a CPU.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from jaxllm.sampling.reductions import argmax, count, isolated_exp, ordered_sum, top_k
from jaxllm.sampling.rows import SamplingRows

SHORT_LIST = 64
"""Up to this k, top-k reads its threshold off the sorted best; beyond, it bisects."""


def _ids(x: Float[Array, "B V"]) -> Int[Array, "B V"]:
    return lax.broadcasted_iota(jnp.int32, x.shape, 1)


def _before(x: Float[Array, "B V"], value: Float[Array, " B"], token: Int[Array, " B"]) -> Bool[Array, "B V"]:
    """Which tokens precede ``token``, whose logit is ``value``, in the order of preference."""
    value, token = value[:, None], token[:, None]
    return (x > value) | ((x == value) & (_ids(x) < token))


def keep_top_k_min_p(
    logits: Float[Array, "B V"], scaled: Float[Array, "B V"], rows: SamplingRows
) -> Bool[Array, "B V"]:
    """Which tokens min-p and top-k keep; all in rows that ask for neither.

    scaled: ``(logits - max) / temperature``, so that min_p times the largest probability is at ``log(min_p)``.
    """
    with jax.named_scope("top_k_min_p"):
        kept = scaled >= rows.log_min_p[:, None]
        wanted = rows.top_k > 0
        short = wanted & (rows.top_k <= SHORT_LIST)
        everything = (jnp.full(rows.top_k.shape, -jnp.inf), jnp.full(rows.top_k.shape, logits.shape[1], jnp.int32))
        last = lax.cond(jnp.any(short), lambda: _last_by_list(logits, rows.top_k), lambda: everything)
        last_long = lax.cond(
            jnp.any(wanted & ~short),
            lambda: _last_by_bisection(logits, jnp.where(short, 0, rows.top_k)),
            lambda: everything,
        )
        value = jnp.where(short, last[0], last_long[0])
        token = jnp.where(short, last[1], last_long[1])
        in_top_k = _before(logits, value, token) | (_ids(logits) == token[:, None])
        return kept & (in_top_k | ~wanted[:, None])


def _last_by_list(logits: Float[Array, "B V"], k: Int[Array, " B"]) -> tuple[Float[Array, " B"], Int[Array, " B"]]:
    values, ids = top_k(logits, min(SHORT_LIST, logits.shape[1]))
    index = jnp.clip(k - 1, 0, values.shape[1] - 1)[:, None]
    return jnp.take_along_axis(values, index, 1)[:, 0], jnp.take_along_axis(ids, index, 1)[:, 0]


def _image(x: Float[Array, " B"]) -> Int[Array, " B"]:
    """The float's bits as an integer of the same order (-0.0 next below 0.0)."""
    bits = lax.bitcast_convert_type(x, jnp.int32)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


def _preimage(image: Int[Array, " B"]) -> Float[Array, " B"]:
    return lax.bitcast_convert_type(image ^ ((image >> 31) & 0x7FFFFFFF), jnp.float32)


def _last_by_bisection(
    logits: Float[Array, "B V"], k: Int[Array, " B"]
) -> tuple[Float[Array, " B"], Int[Array, " B"]]:
    """The k-th token's (logit, id), for k > 0, by bisection on the floats' ordered bits, then on the ids of ties.

    Where a threshold splits off exactly k tokens before the bits are used up, that threshold and an id past the last
    stand for the token: they keep the same set.
    """
    vocab_size = logits.shape[1]
    off = k <= 0
    low = jnp.full(k.shape, _image(jnp.float32(-jnp.inf)))
    high = _image(jnp.max(logits, axis=-1)) + 1

    def unsettled(carry: tuple[Array, Array, Array]) -> Array:
        low, high, exact = carry
        return jnp.any(~exact & (high - low != 1))

    def halve(carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        low, high, exact = carry
        middle = (low & high) + ((low ^ high) >> 1)  # the average, rounded down, without overflow
        found = count(logits >= _preimage(middle)[:, None])
        enough = found >= k
        active = ~exact & (high - low != 1)
        return (
            jnp.where(active & enough, middle, low),
            jnp.where(active & ~enough, middle, high),
            exact | (active & (found == k)),
        )

    low, high, exact = lax.while_loop(unsettled, halve, (low, high, off))
    value = _preimage(low)
    tied = logits == value[:, None]
    wanted = k - count(logits > value[:, None])
    settled = exact | (value == -jnp.inf) | (count(tied) <= wanted)

    def unsettled_ties(carry: tuple[Array, Array]) -> Array:
        return jnp.any(carry[0] != carry[1])

    def halve_ties(carry: tuple[Array, Array]) -> tuple[Array, Array]:
        first, last = carry
        middle = (first + last) // 2
        enough = count(tied & (_ids(logits) <= middle[:, None])) >= wanted
        return jnp.where(enough, first, jnp.minimum(middle + 1, last)), jnp.where(enough, middle, last)

    first = jnp.where(settled, vocab_size, 0)
    last = jnp.where(settled, vocab_size, vocab_size - 1)
    _, token = lax.while_loop(unsettled_ties, halve_ties, (first, last))
    return value, token


def draw_top_p(
    logits: Float[Array, "B V"],
    scaled: Float[Array, "B V"],
    scores: Float[Array, "B V"],
    top_p: Float[Array, " B"],
) -> tuple[Int[Array, " B"], Float[Array, " B"]]:
    """The best-scored token within each row's top-p set, and its score; -1 where no score is a number.

    scores: -inf where top-k or min-p dropped the token; the probabilities are normalized over the others.
    A token is in the set while the probability of those strictly before it is below ``top_p`` of the total.
    """
    with jax.named_scope("top_p"):
        weights = isolated_exp(jnp.where(scores > -jnp.inf, scaled, -jnp.inf))
        # p = 1 must keep all, whatever the rounding of the sums.
        target = jnp.where(top_p < 1, top_p * ordered_sum(weights), jnp.inf)

        def undecided(carry: tuple[Array, Array, Array, Array, Array]) -> Array:
            return jnp.any(~carry[0])

        def draw(carry: tuple[Array, Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array, Array]:
            done, token, score, limit_value, limit_token = carry
            candidates = jnp.where(_before(logits, limit_value, limit_token), scores, -jnp.inf)
            drawn, best = argmax(candidates)
            value = jnp.take_along_axis(logits, jnp.maximum(drawn, 0)[:, None], axis=1)[:, 0]
            mass = ordered_sum(jnp.where(_before(logits, value, drawn), weights, 0))
            outside = (mass >= target) & (drawn >= 0)
            return (
                done | ~outside,
                jnp.where(done, token, drawn),
                jnp.where(done, score, best),
                jnp.where(done, limit_value, value),
                jnp.where(done, limit_token, drawn),
            )

        rows = top_p.shape
        start = (
            jnp.zeros(rows, bool),
            jnp.full(rows, -1, jnp.int32),
            jnp.full(rows, -jnp.inf),
            jnp.full(rows, -jnp.inf),
            jnp.full(rows, logits.shape[1], jnp.int32),
        )
        _, token, score, _, _ = lax.while_loop(undecided, draw, start)
        return token, score
