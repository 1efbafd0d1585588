"""The three precompiled forms of the sampler, and which of them a request needs."""

from __future__ import annotations

import enum

from jaxllm.sampling_params import SamplingParams


class Variant(enum.IntEnum):
    """A form of the sample program; a batch runs in the largest that one of its requests needs.

    GREEDY: argmax only.
    SAMPLED: temperature and seeded noise; greedy rows too.
    FULL: also penalties, biases, masks, top-k, top-p, min-p and log-probabilities.

    A request's token is the same, bit for bit, in every variant that can serve it.
    """

    GREEDY = 0
    SAMPLED = 1
    FULL = 2


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
        or params.min_tokens > 0
    )


def needs_filter(params: SamplingParams) -> bool:
    """Whether top-k, top-p or min-p can change what the request draws."""
    return not params.greedy and (params.top_k > 0 or params.top_p < 1.0 or params.min_p > 0.0)


def variant_of(params: SamplingParams) -> Variant:
    """The smallest variant that serves the request at every one of its tokens."""
    if needs_state(params) or needs_filter(params) or params.logprobs is not None:
        return Variant.FULL
    return Variant.GREEDY if params.greedy else Variant.SAMPLED
