"""The speed of an engine: requests of equal lengths, one alone or many at once."""

from __future__ import annotations

import dataclasses
import statistics
import time
from typing import TYPE_CHECKING

import numpy as np

from jaxllm.checks import check_integer
from jaxllm.errors import EngineError, ParameterError
from jaxllm.sampling_params import SamplingParams

if TYPE_CHECKING:
    from jaxllm.llm import LLM


@dataclasses.dataclass(frozen=True)
class Speed:
    """Medians over runs of ``requests`` submitted together.

    seconds: of the whole run. ttft: from its begin to a request's first token, mean over the requests. time_per_token:
    of a request's later tokens, mean over the requests; ``None`` where there is only one token. output_rate,
    total_rate: tokens per second over all requests, the generated ones, and those with the prompts'.
    steps: of the engine in a run.
    """

    requests: int
    prompt_tokens: int
    output_tokens: int
    seconds: float
    ttft: float
    time_per_token: float | None
    output_rate: float
    total_rate: float
    steps: int


def measure_speed(llm: LLM, *, requests: int, prompt_tokens: int, output_tokens: int, repeat: int = 3, seed: int = 0
                  ) -> Speed:
    """Generate exactly ``output_tokens`` after each of ``requests`` random prompts, greedily, ``repeat`` times after an
    untimed run; no run finds prefixes of another in the cache.

    Raises ``ParameterError`` for numbers that the engine has no room for.
    """
    for name, value in (("requests", requests), ("prompt_tokens", prompt_tokens), ("output_tokens", output_tokens),
                        ("repeat", repeat)):
        check_integer(name, value, 1)
    longest = llm.engine.config.max_model_len
    if prompt_tokens + output_tokens > longest:
        raise ParameterError("prompt_tokens", prompt_tokens,
                             f"at most max_model_len={longest} together with output_tokens={output_tokens}")
    generator = np.random.default_rng(seed)
    prompts = generator.integers(0, llm.engine.config.vocab_size, (requests, prompt_tokens)).tolist()
    runs = [_run(llm, prompts, output_tokens) for _ in range(repeat + 1)][1:]
    seconds, ttft, per_token = (statistics.median(column) for column in zip(*(run[:3] for run in runs), strict=True))
    generated = requests * output_tokens
    return Speed(
        requests, prompt_tokens, output_tokens, seconds, ttft, per_token if output_tokens > 1 else None,
        output_rate=generated / seconds, total_rate=(generated + requests * prompt_tokens) / seconds,
        steps=statistics.median_low([run[3] for run in runs]))


def _run(llm: LLM, prompts: list[list[int]], output_tokens: int) -> tuple[float, float, float, int]:
    """Seconds in all, to the first tokens and per further token, and the number of steps."""
    llm.reset_prefix_cache()
    params = SamplingParams(temperature=0.0, max_tokens=output_tokens, ignore_eos=True, detokenize=False)
    steps, started = llm.stats().num_steps, time.perf_counter()
    outputs = llm.generate(prompts, params, use_tqdm=False, raise_on_error=True)
    seconds = time.perf_counter() - started
    firsts, rest = [], []
    for output in outputs:
        metrics = output.metrics
        if metrics is None or metrics.first_token_time is None or metrics.finished_time is None:
            raise EngineError(f"{output.request_id} ended without its times")
        firsts.append(metrics.first_token_time - started)
        rest.append((metrics.finished_time - metrics.first_token_time) / max(output_tokens - 1, 1))
    return seconds, statistics.fmean(firsts), statistics.fmean(rest), llm.stats().num_steps - steps
