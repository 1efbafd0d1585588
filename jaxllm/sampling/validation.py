"""The checks of sampling parameters that need the model's vocabulary."""

from __future__ import annotations

from collections.abc import Iterable

from jaxllm.errors import ParameterError
from jaxllm.sampling_params import SamplingParams


def validate_token_ids(params: SamplingParams, vocab_size: int, *, max_logprobs: int = 20) -> None:
    """Raise ``ParameterError`` for a token id that the vocabulary lacks, or more logprobs than the engine reports.

    vocab_size: the number of ids that name a token, without a padded vocabulary's tail. max_logprobs: -1 for no limit.
    """
    for name in ("logit_bias", "allowed_token_ids", "banned_token_ids", "stop_token_ids", "logprob_token_ids"):
        ids: Iterable[int] | None = getattr(params, name)
        for token_id in ids or ():
            if token_id >= vocab_size:
                raise ParameterError(name, token_id, f"token ids of this model are 0 to {vocab_size - 1}")
    for name in ("logprobs", "prompt_logprobs"):
        asked = getattr(params, name)
        if asked is None or max_logprobs == -1:
            continue
        if asked > max_logprobs or (asked == -1 and max_logprobs < vocab_size):
            allowed = f"0 to {max_logprobs}, the engine's max_logprobs (max_logprobs=-1 sets no limit)"
            raise ParameterError(name, asked, allowed)
    if params.allowed_token_ids is not None and set(params.allowed_token_ids) <= set(params.banned_token_ids or ()):
        raise ParameterError(
            "banned_token_ids", params.banned_token_ids, "some id in allowed_token_ids must not be banned"
        )
