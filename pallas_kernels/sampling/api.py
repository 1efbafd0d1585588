"""The contract of sampling: a token for each row of logits, log-probabilities of tokens; rows do not see each other.

Tokens are preferred in one order: logit descending, then id ascending. Temperature, top-k, min-p and top-p keep a
prefix of it: top-k the first k; min-p those whose probability is at least ``min_p`` times the largest; top-p, within
what those two left, the tokens before which less than ``top_p`` of the probability lies. One token is drawn from what
is left, as the argmax of ``(logit - largest) / temperature + noise`` (Gumbel-max), ties to the lowest id. A token's
noise is a function of its row's words and its id, see ``pallas_kernels.sampling.noise``.

A row's results have the same bits in any batch, and with any other values of the flags that ask for more. Between
implementations, sums and logarithms differ in the last bits.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, UInt32

from pallas_kernels import registry


class DrawParameters(NamedTuple):
    """How each row's token is drawn.

    temperature: positive, and so is its reciprocal. top_p: in (0, 1]; 1 is off. log_min_p: at most 0; -inf is off.
    top_k: 0 is off. greedy: take the first in the order of preference; the others then matter to the limit alone.
    seed_high, seed_low, sample_index, position: what the noise depends on.
    """

    temperature: Float[Array, " B"]
    top_p: Float[Array, " B"]
    log_min_p: Float[Array, " B"]
    top_k: Int[Array, " B"]
    greedy: Bool[Array, " B"]
    seed_high: UInt32[Array, " B"]
    seed_low: UInt32[Array, " B"]
    sample_index: UInt32[Array, " B"]
    position: UInt32[Array, " B"]

    @classmethod
    def all_greedy(cls, rows: int) -> DrawParameters:
        """Every row takes its most likely token."""
        one, words = jnp.ones(rows), jnp.zeros(rows, jnp.uint32)
        return cls(one, one, jnp.full(rows, -jnp.inf), jnp.zeros(rows, jnp.int32), jnp.ones(rows, bool), *[words] * 4)

    @property
    def noise_words(self) -> tuple[Array, Array, Array, Array]:
        """What the noise depends on."""
        return self.seed_high, self.seed_low, self.sample_index, self.position

    @property
    def filtered(self) -> Bool[Array, " B"]:
        """Which rows keep less than all tokens."""
        return (self.top_k > 0) | (self.top_p < 1) | (self.log_min_p > -jnp.inf)


class TokenLogprobs(NamedTuple):
    """Of each row: the target's log-probability and rank, and the most likely tokens in order."""

    logprob: Float[Array, " C"]
    rank: Int[Array, " C"]
    top_ids: Int[Array, "C K"]
    top_logprobs: Float[Array, "C K"]

    @classmethod
    def shapes(cls, rows: int, k: int) -> TokenLogprobs:
        """Shapes and dtypes of ``rows`` rows with ``k`` tokens each."""
        return cls(_floats(rows), _ints(rows), _ints(rows, k), _floats(rows, k))


class SampledRows(NamedTuple):
    """Each row's token, -1 where it has none: its logits hold NaN or +inf, or nothing else than -inf.

    limit_value, limit_token: logit and id of the last token that the filters keep, in rows that ask for it; tokens of
    -inf may lie before it. (-inf, V) in the others, and where nothing is filtered.
    logprobs: of the tokens, zeros in rows that do not ask for them.
    """

    token_ids: Int[Array, " B"]
    limit_value: Float[Array, " B"]
    limit_token: Int[Array, " B"]
    logprobs: TokenLogprobs

    @classmethod
    def shapes(cls, rows: int, k: int) -> SampledRows:
        """Shapes and dtypes of ``rows`` rows with ``k`` tokens each."""
        return cls(_ints(rows), _floats(rows), _ints(rows), TokenLogprobs.shapes(rows, k))


class LogNormalizer(NamedTuple):
    """A value's log-probability is ``(value - best) - log_total``, in float32."""

    best: Float[Array, " B"]
    log_total: Float[Array, " B"]

    @classmethod
    def shapes(cls, rows: int) -> LogNormalizer:
        """Shapes and dtypes of ``rows`` rows."""
        return cls(_floats(rows), _floats(rows))


def sample_rows(
    logits: Float[Array, "B V"],
    draws: DrawParameters | None = None,
    *,
    filters: bool = True,
    raw: Float[Array, "B V"] | None = None,
    wants_logprobs: Bool[Array, " B"] | None = None,
    wants_limit: Bool[Array, " B"] | None = None,
    k: int = 0,
    implementation: str | None = None,
) -> SampledRows:
    """Draw a token from each row of ``logits``, float32, and report log-probabilities of ``raw`` where asked for.

    draws: ``None`` if every row is greedy. filters: false only if no row filters; a promise that saves some work.
    raw: what the model gave, if ``logits`` were adjusted since; NaN and +inf count in either.
    wants_logprobs, wants_limit: which rows ask for them; ``None`` for none.
    k: how many of the most likely tokens are reported, at most V.
    """
    _check(logits)
    rows = logits.shape[0]
    if raw is not None and (raw.shape != logits.shape or raw.dtype != logits.dtype):
        raise ValueError(f"raw must be as logits, {logits.dtype} {logits.shape}, got {raw.dtype} {raw.shape}")
    _check_columns(rows, "", {"wants_logprobs": wants_logprobs, "wants_limit": wants_limit})
    if draws is not None:
        _check_columns(rows, "draws.", draws._asdict())
    if not 0 <= k <= logits.shape[1]:
        raise ValueError(f"k={k} is not allowed: 0 to the size of the vocabulary, which is {logits.shape[1]}")
    operands = {"logits": logits, "draws": draws, "filters": filters, "raw": raw, "wants_logprobs": wants_logprobs,
                "wants_limit": wants_limit, "k": k}
    result: SampledRows = _run("sample_rows", implementation, operands)
    return result


def token_logprobs(
    logits: Float[Array, "C V"], targets: Int[Array, " C"], k: int, implementation: str | None = None
) -> TokenLogprobs:
    """Float32 log-softmax of logits at the targets and at the ``min(k, V)`` most likely tokens.

    rank is 1 + the number of tokens with a strictly larger logit. Ties among the most likely are in order of their ids.
    A negative target (a row for which no token could be chosen) gives NaN. The bits are those that ``sample_rows`` of
    the same implementation reports.
    """
    _check(logits)
    if targets.shape != logits.shape[:1] or targets.dtype != jnp.int32:
        raise ValueError(f"targets must be int32 [C] with C = {logits.shape[0]}, got {targets.dtype} {targets.shape}")
    if k < 0:
        raise ValueError(f"k={k} is not allowed: at least 0")
    operands = {"logits": logits, "targets": targets, "k": min(k, logits.shape[1])}
    result: TokenLogprobs = _run("token_logprobs", implementation, operands)
    return result


def log_normalizer(logits: Float[Array, "B V"], implementation: str | None = None) -> LogNormalizer:
    """What turns logits into the log-probabilities of ``token_logprobs`` of the same implementation, bit for bit."""
    _check(logits)
    result: LogNormalizer = _run("log_normalizer", implementation, {"logits": logits})
    return result


def _run(operation: str, implementation: str | None, operands: dict[str, Any]) -> Any:
    return registry.choose(operation, implementation, operands=operands).run(**operands)


_DTYPES = {"temperature": jnp.float32, "top_p": jnp.float32, "log_min_p": jnp.float32, "top_k": jnp.int32,
           "greedy": jnp.bool_, "wants_logprobs": jnp.bool_, "wants_limit": jnp.bool_}


def _check_columns(rows: int, prefix: str, columns: Mapping[str, Array | None]) -> None:
    for name, column in columns.items():
        dtype = jnp.dtype(_DTYPES.get(name, jnp.uint32))
        if column is not None and (column.shape != (rows,) or column.dtype != dtype):
            raise ValueError(f"{prefix}{name} must be {dtype} [B] with B = {rows}, got {column.dtype} {column.shape}")


def _check(logits: Array) -> None:
    if logits.ndim != 2 or logits.dtype != jnp.float32 or logits.shape[1] == 0:
        raise ValueError(f"logits must be float32 [B, V], got {logits.dtype} {logits.shape}")


def _floats(*shape: int) -> Any:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def _ints(*shape: int) -> Any:
    return jax.ShapeDtypeStruct(shape, jnp.int32)
