"""The precompiled forms of the sampler, and which of them a request needs."""

from __future__ import annotations

import enum

from jaxllm.sampling_params import SamplingParams

MAX_LOGPROBS = 20
"""How many of the most likely tokens a step reports at most; beyond, the host looks at the whole vocabulary."""


class Variant(enum.IntEnum):
    """A form of the sample program; a batch runs in the largest that one of its requests needs.

    GREEDY: argmax only.
    SAMPLED: temperature and seeded noise; greedy rows too.
    FULL: also penalties, biases, masks, logits processors, top-k, top-p, min-p and log-probabilities.
    MASKED: also masks that the host makes for each token (grammars, words of several tokens).

    A request's token is the same, bit for bit, in every variant that can serve it.
    """

    GREEDY = 0
    SAMPLED = 1
    FULL = 2
    MASKED = 3


def needs_penalties(params: SamplingParams) -> bool:
    """Whether any penalty is on."""
    return params.presence_penalty != 0.0 or params.frequency_penalty != 0.0 or params.repetition_penalty != 1.0


def needs_state(params: SamplingParams) -> bool:
    """Whether the request needs its slot of ``SamplingState`` filled at admission."""
    return (
        needs_penalties(params)
        or bool(params.logit_bias)
        or params.allowed_token_ids is not None
        or bool(params.banned_token_ids)
        or bool(params.bad_words)
        or bool(params.logits_processors)
        or params.min_tokens > 0
    )


def needs_filter(params: SamplingParams) -> bool:
    """Whether top-k, top-p or min-p can change what the request draws."""
    return not params.greedy and (params.top_k > 0 or params.top_p < 1.0 or params.min_p > 0.0)


def needs_vocab_logprobs(params: SamplingParams) -> bool:
    """Whether log-probabilities are reported that the sampler's short list may not hold."""
    return params.logprob_token_ids is not None or _exceeds_short_list(params.logprobs)


def needs_prompt_vocab_logprobs(params: SamplingParams) -> bool:
    """The same of the prompt's tokens."""
    return _exceeds_short_list(params.prompt_logprobs)


def _exceeds_short_list(logprobs: int | None) -> bool:
    return logprobs is not None and (logprobs < 0 or logprobs > MAX_LOGPROBS)


def variant_of(params: SamplingParams) -> Variant:
    """The smallest variant that serves the request at those of its tokens that the host does not mask."""
    if needs_state(params) or needs_filter(params) or params.wants_logprobs:
        return Variant.FULL
    return Variant.GREEDY if params.greedy else Variant.SAMPLED
