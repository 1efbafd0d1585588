"""Top-k, min-p and top-p without a sort.

All three keep a prefix of the tokens in one order: logit descending, then id ascending. So each is decided by its last
kept token. Top-k finds that token exactly. Top-p (the smallest set whose probability, within what top-k and min-p
left, reaches p) need not: it draws, asks whether the drawn token lies in the set, and if not draws again among the
tokens before it. Drawing is the argmax of fixed scores, so this ends at the very token that filtering first would have
given, after about 1/p draws; a sort of the vocabulary costs 40 times as much on a CPU.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from pallas_kernels.reductions import isolated_exp
from pallas_kernels.sampling.api import DrawParameters
from pallas_kernels.sampling.columns import WHOLE, Columns

SHORT_LIST = 64
"""Up to this k, top-k reads its threshold off the sorted best; beyond, it bisects."""


def preceding(x: Float[Array, "B V"], value: Float[Array, " B"], token: Int[Array, " B"], columns: Columns = WHOLE
              ) -> Bool[Array, "B V"]:
    """Which tokens precede ``token``, whose logit is ``value``, in the order of preference."""
    value, token = value[:, None], token[:, None]
    return (x > value) | ((x == value) & (columns.ids(x) < token))


def scale(logits: Float[Array, "B V"], draws: DrawParameters, columns: Columns = WHOLE) -> Float[Array, "B V"]:
    """``(logits - max) / temperature``: with the largest at 0, no temperature overflows."""
    scaled = (logits - columns.max(logits)[:, None]) / draws.temperature[:, None]
    return lax.optimization_barrier(scaled)  # or it may be contracted with what is added to it, in some programs


def draw_filtered(
    logits: Float[Array, "B V"], scores: Float[Array, "B V"], draws: DrawParameters, columns: Columns = WHOLE
) -> tuple[Int[Array, " B"], Float[Array, " B"]]:
    """The best-scored token, and its score, among those that each row's filters keep."""
    scaled = scale(logits, draws, columns)
    with jax.named_scope("top_k_min_p"):
        kept = _kept_by_top_k_min_p(logits, scaled, draws, columns)
        scores = lax.optimization_barrier(jnp.where(kept, scores, -jnp.inf))
    return lax.cond(
        jnp.any(draws.top_p < 1),
        lambda: draw_top_p(logits, scaled, scores, draws.top_p, columns),
        lambda: columns.argmax(scores),
    )


def last_of_top_k(logits: Float[Array, "B V"], k: Int[Array, " B"], columns: Columns = WHOLE
                  ) -> tuple[Float[Array, " B"], Int[Array, " B"]]:
    """The (logit, id) up to which top-k keeps tokens; (-inf, V), which is past all of them, where k is 0."""
    short = (k > 0) & (k <= SHORT_LIST)
    past_all = (jnp.full(k.shape, -jnp.inf), jnp.full(k.shape, columns.size(logits), jnp.int32))
    by_list = lax.cond(jnp.any(short), lambda: _last_by_list(logits, k, columns), lambda: past_all)
    by_bisection = lax.cond(
        jnp.any(k > SHORT_LIST),
        lambda: _last_reaching(logits, columns.count, k, (k <= 0) | short, columns, stop_when_equal=True),
        lambda: past_all,
    )
    return jnp.where(short, by_list[0], by_bisection[0]), jnp.where(short, by_list[1], by_bisection[1])


def _last_by_list(logits: Float[Array, "B V"], k: Int[Array, " B"], columns: Columns
                  ) -> tuple[Float[Array, " B"], Int[Array, " B"]]:
    values, ids = columns.top_k(logits, min(SHORT_LIST, columns.size(logits)))
    index = jnp.clip(k - 1, 0, values.shape[1] - 1)[:, None]
    return jnp.take_along_axis(values, index, 1)[:, 0], jnp.take_along_axis(ids, index, 1)[:, 0]


def _image(x: Float[Array, " B"]) -> Int[Array, " B"]:
    """The float's bits as an integer of the same order (-0.0 next below 0.0)."""
    bits = lax.bitcast_convert_type(x, jnp.int32)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


def _preimage(image: Int[Array, " B"]) -> Float[Array, " B"]:
    return lax.bitcast_convert_type(image ^ ((image >> 31) & 0x7FFFFFFF), jnp.float32)


def _last_reaching(
    logits: Float[Array, "B V"],
    measure: Callable[[Bool[Array, "B V"]], Array],
    goal: Array,
    off: Bool[Array, " B"],
    columns: Columns,
    *,
    stop_when_equal: bool,
) -> tuple[Float[Array, " B"], Int[Array, " B"]]:
    """The (logit, id) of the last token in the shortest prefix of the preference order whose measure reaches the goal.

    By bisection on the floats' ordered bits, then on the ids of ties. measure: ``[B]`` from a set of tokens ``[B, V]``,
    never smaller for a larger set. Rows that are ``off`` give anything.
    stop_when_equal: a threshold that splits off a set of just the goal's measure may stand, with an id past the last,
    for the token: right where every token adds to the measure.
    """
    vocab_size = columns.size(logits)
    low = jnp.full(goal.shape, _image(jnp.float32(-jnp.inf)))
    high = _image(columns.max(logits)) + 1

    def unsettled(carry: tuple[Array, Array, Array]) -> Array:
        low, high, exact = carry
        return jnp.any(~exact & (low + 1 < high))

    def halve(carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        low, high, exact = carry
        middle = (low & high) + ((low ^ high) >> 1)  # the average, rounded down, without overflow
        found = measure(logits >= _preimage(middle)[:, None])
        enough = found >= goal
        active = ~exact & (low + 1 < high)
        return (
            jnp.where(active & enough, middle, low),
            jnp.where(active & ~enough, middle, high),
            exact | (active & (found == goal) & stop_when_equal),
        )

    low, high, exact = lax.while_loop(unsettled, halve, (low, high, off))
    value = _preimage(low)
    tied = logits == value[:, None]
    larger = logits > value[:, None]
    settled = exact | (value == -jnp.inf)
    if stop_when_equal:
        settled |= measure(tied | larger) <= goal

    def unsettled_ties(carry: tuple[Array, Array]) -> Array:
        return jnp.any(carry[0] != carry[1])

    def halve_ties(carry: tuple[Array, Array]) -> tuple[Array, Array]:
        first, last = carry
        middle = (first + last) // 2
        enough = measure(larger | (tied & (columns.ids(logits) <= middle[:, None]))) >= goal
        return jnp.where(enough, first, jnp.minimum(middle + 1, last)), jnp.where(enough, middle, last)

    first = jnp.where(settled, vocab_size, 0)
    last = jnp.where(settled, vocab_size, vocab_size - 1)
    _, token = lax.while_loop(unsettled_ties, halve_ties, (first, last))
    return value, token


def last_kept(
    logits: Float[Array, "B V"], draws: DrawParameters, columns: Columns = WHOLE
) -> tuple[Float[Array, " B"], Int[Array, " B"]]:
    """The (logit, id) of the last token of the very set that ``draw_filtered`` draws from."""
    kept = kept_tokens(logits, draws, columns) & (logits > -jnp.inf)
    value = -columns.max(jnp.where(kept, -logits, -jnp.inf))
    tied = kept & (logits == value[:, None])
    return value, columns.max(jnp.where(tied, columns.ids(logits), -1))


def kept_tokens(logits: Float[Array, "B V"], draws: DrawParameters, columns: Columns = WHOLE) -> Bool[Array, "B V"]:
    """Which tokens each row's filters keep."""
    scaled = scale(logits, draws, columns)
    with jax.named_scope("kept_tokens"):
        kept = _kept_by_top_k_min_p(logits, scaled, draws, columns)
        weights, target = _top_p_weights(jnp.where(kept, scaled, -jnp.inf), draws.top_p, columns)

        def within_top_p() -> Array:
            off = draws.top_p >= 1
            value, token = _last_reaching(
                logits, lambda mask: columns.sum(jnp.where(mask, weights, 0)), target, off, columns,
                stop_when_equal=False)
            return kept & (preceding(logits, value, token + 1, columns) | off[:, None])

        return lax.cond(jnp.any(draws.top_p < 1), within_top_p, lambda: kept)


def _kept_by_top_k_min_p(
    logits: Float[Array, "B V"], scaled: Float[Array, "B V"], draws: DrawParameters, columns: Columns
) -> Bool[Array, "B V"]:
    value, token = last_of_top_k(logits, draws.top_k, columns)
    return preceding(logits, value, token + 1, columns) & (scaled >= draws.log_min_p[:, None])


def _top_p_weights(scaled: Float[Array, "B V"], top_p: Float[Array, " B"], columns: Columns
                   ) -> tuple[Float[Array, "B V"], Array]:
    """The candidates' unnormalized probabilities, and the mass that the set has to reach."""
    weights = isolated_exp(scaled)
    # p = 1 must keep all, whatever the rounding of the sums.
    return weights, jnp.where(top_p < 1, top_p * columns.sum(weights), jnp.inf)


def draw_top_p(
    logits: Float[Array, "B V"],
    scaled: Float[Array, "B V"],
    scores: Float[Array, "B V"],
    top_p: Float[Array, " B"],
    columns: Columns,
) -> tuple[Int[Array, " B"], Float[Array, " B"]]:
    """The best-scored token within each row's top-p set, and its score.

    scores: -inf where top-k or min-p dropped the token; the probabilities are normalized over the others.
    A token is in the set while the probability of those strictly before it is below ``top_p`` of the total.
    """
    with jax.named_scope("top_p"):
        weights, target = _top_p_weights(jnp.where(scores > -jnp.inf, scaled, -jnp.inf), top_p, columns)

        def undecided(carry: tuple[Array, Array, Array, Array, Array]) -> Array:
            return jnp.any(~carry[0])

        def draw(carry: tuple[Array, Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array, Array]:
            done, token, score, limit_value, limit_token = carry
            candidates = jnp.where(preceding(logits, limit_value, limit_token, columns), scores, -jnp.inf)
            drawn, best = columns.argmax(candidates)
            value = columns.take(logits, drawn[:, None])[:, 0]
            mass = columns.sum(jnp.where(preceding(logits, value, drawn, columns), weights, 0))
            outside = (mass >= target) & jnp.isfinite(best)  # rows of NaN or of -inf only must end the loop too
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
            jnp.zeros(rows, jnp.int32),
            jnp.full(rows, -jnp.inf),
            jnp.full(rows, -jnp.inf),
            jnp.full(rows, columns.size(logits), jnp.int32),
        )
        _, token, score, _, _ = lax.while_loop(undecided, draw, start)
        return token, score
