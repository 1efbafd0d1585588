"""From ``BeamSearchParams`` to a request that the engine can run, and from a step's result to a beam's row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from jaxllm.beam_search import BeamSearchParams
from jaxllm.config import EngineConfig
from jaxllm.engine.beam import BeamSelector
from jaxllm.engine.beam_group import BeamGroup
from jaxllm.engine.beam_stopping import BeamEndings
from jaxllm.engine.prompts import Prompt, encode_prompt
from jaxllm.engine.request import Request
from jaxllm.errors import ParameterError
from jaxllm.sampling import validate_token_ids
from jaxllm.sampling_params import SamplingParams
from jaxllm.tokenization import Tokenizer


def prepare_search(prompt: Prompt, params: BeamSearchParams, config: EngineConfig, tokenizer: Tokenizer | None,
                   eos_token_ids: frozenset[int]) -> Callable[[str, int | None], Request]:
    """What makes the request, given its id and a seed, on which nothing depends; it may yet raise for the prompt.

    Raises ``ParameterError`` for what this engine can never honour.
    """
    text, token_ids = encode_prompt(prompt, tokenizer)
    if params.beam_width > config.max_num_seqs:
        raise ParameterError("beam_width", params.beam_width, f"at most max_num_seqs, which is {config.max_num_seqs}")
    if params.stop_strings and tokenizer is None:
        raise ParameterError("stop", params.stop, "needs a tokenizer, which this engine does not have")
    stop_ids = set(params.stop_token_ids or ())
    if not params.ignore_eos:
        stop_ids |= eos_token_ids
    num_candidates = max(2, 1 + len(stop_ids)) * params.beam_width
    # As many candidates as the selection may look at; where ids alone end a beam, one row has no more than these.
    wanted = num_candidates if params.stop_strings else params.beam_width + len(stop_ids)
    row_width = min(wanted, config.vocab_size)
    sampling = SamplingParams(
        n=params.beam_width, temperature=0.0, max_tokens=params.max_tokens, ignore_eos=params.ignore_eos,
        stop_token_ids=params.stop_token_ids, logprobs=row_width, detokenize=False)
    validate_token_ids(sampling, config.vocab_size, max_logprobs=-1)

    def make(request_id: str, default_seed: int | None) -> Request:
        request = Request(request_id, token_ids, sampling, max_model_len=config.max_model_len, prompt=text,
                          eos_token_ids=eos_token_ids, vocab_size=config.vocab_size, default_seed=default_seed)
        selector = BeamSelector(
            params.beam_width, max_tokens=request.max_tokens, num_candidates=num_candidates,
            ends=BeamEndings(request, tokenizer, params.stop_strings), length_penalty=params.length_penalty,
            early_stopping=params.early_stopping)
        request.beams = BeamGroup(request, selector, row_width)
        return request

    return make


def beam_row(result: Any, number: int, k: int) -> tuple[np.ndarray, np.ndarray]:
    """The k most likely tokens and their float32 log-probabilities for sampler ``number`` of a ``StepResult``.

    Best first, equal ones by id. Copies: they outlive the step.
    """
    if number not in result.vocab_logprobs:
        return result.sampled.top_ids[number, :k].copy(), result.sampled.top_logprobs[number, :k].copy()
    values, line = result.vocab_logprobs[number]
    logprobs = values.raw[line]
    least = np.partition(logprobs, -k)[-k]
    ids = np.flatnonzero(logprobs >= least)
    ids = ids[np.argsort(-logprobs[ids], kind="stable")][:k].astype(np.int32)
    return ids, logprobs[ids]
