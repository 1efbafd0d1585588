"""``best_of``: the samples of a request in order of how good they are."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

from jaxllm.checks import check_integer
from jaxllm.errors import ParameterError
from jaxllm.outputs import CompletionOutput, RequestOutput

Criterion = Literal["mean_logprob", "cumulative_logprob"] | Callable[[CompletionOutput], float]


def best_of(output: RequestOutput, k: int = 1, by: Criterion = "mean_logprob") -> list[CompletionOutput]:
    """The ``k`` best samples of a request, best first; of equal ones the lower index first.

    Takes the place of vLLM's former ``SamplingParams.best_of``, which ranked by "cumulative_logprob".
    by: "mean_logprob", the log-probability per token; "cumulative_logprob", their sum, which favours short samples; or
        a function of a sample, larger for better ones. A sample without tokens comes last but for a function's sake.
    Log-probabilities are those that the request reported (``CompletionOutput.logprobs_mode``).

    Raises ``ParameterError``: for ``logprobs`` if the request did not ask for any and ``by`` needs them, for ``k`` if
    there are fewer samples, for ``output`` if the request failed, and for ``by`` if the function gives no number.
    """
    if not isinstance(output, RequestOutput):
        raise ParameterError("output", output, "a RequestOutput")
    if output.error is not None:
        raise ParameterError("output", output.error.message, "one of a request that did not fail")
    if by not in ("mean_logprob", "cumulative_logprob") and not callable(by):
        raise ParameterError("by", by, "'mean_logprob', 'cumulative_logprob' or a function of a CompletionOutput")
    check_integer("k", k, 1, len(output.outputs))
    scored = [(_score(sample, by), sample) for sample in output.outputs]
    scored.sort(key=lambda pair: -pair[0])
    return [sample for _, sample in scored[:k]]


def _score(sample: CompletionOutput, by: Criterion) -> float:
    if callable(by):
        return _checked(by(sample))
    if sample.cumulative_logprob is None:
        raise ParameterError("logprobs", None, f"SamplingParams(logprobs=0) or more, to rank by {by!r}")
    if not sample.token_ids:
        return -math.inf
    return sample.cumulative_logprob / (len(sample.token_ids) if by == "mean_logprob" else 1)


def _checked(score: object) -> float:
    try:
        number = float(score)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if math.isnan(number):
        raise ParameterError("by", score, "a function that gives a number for every sample")
    return number
