"""``RequestDefaults``: the sampling parameters of requests that bring none, and what users are told of any."""

from __future__ import annotations

import logging

from jaxllm.inputs import Params, params_list
from jaxllm.sampling_params import SamplingParams

logger = logging.getLogger("jaxllm")


class RequestDefaults:
    """The model's own sampling parameters. What may surprise is logged once, when a request first asks for it."""

    def __init__(self, params: SamplingParams, max_model_len: int) -> None:
        self.params = params
        self._max_model_len = max_model_len
        self._said: set[str] = set()

    def of_prompts(self, params: Params, count: int) -> list[SamplingParams]:
        """Sampling parameters for each of ``count`` prompts; ``None`` takes the defaults."""
        found = params_list(params, count, self.params)
        if any(each.n > 1 and each.greedy for each in found):
            self._say_once("greedy sampling with n > 1 gives n equal samples; set temperature above 0 to vary them")
        if any(each.max_tokens is None for each in found):
            self._say_once(f"max_tokens is not set: outputs may run to the end of the context, {self._max_model_len} "
                           "tokens")
        return found

    def _say_once(self, message: str) -> None:
        if message not in self._said:
            self._said.add(message)
            logger.warning(message)
