"""Drives jaxllm, as its program does: with its sources trusted, so that compiled programs are found sooner.

Options: ``model``; ``llm``, keyword arguments of ``LLM``; ``kv_gib``, the size of its cache, if not the default;
``first_tokens``, the length of the first prompt where it is known, as the program ``jaxllm`` knows it;
``implementation``, of all kernels that have one of that name.
"""

from __future__ import annotations

import os
import time
from typing import Any

from protocol import Requests, serve


class JaxLLM:
    """``LLM`` on token ids."""

    def __init__(self, options: dict[str, Any]) -> None:
        if "implementation" in options:
            choose_kernels(options["implementation"])
        import jaxllm
        from jaxllm.program_cache import trust_sources

        trust_sources()
        first_step = None
        if "first_tokens" in options:
            from jaxllm.first_step import FirstStep

            first_step = FirstStep(options["first_tokens"], self._params(1, {}))
        size = {"kv_cache_bytes": options["kv_gib"] << 30} if "kv_gib" in options else {}
        self._llm = jaxllm.LLM(options["model"], first_step=first_step, **options.get("llm", {}), **size)
        self.version = f"jaxllm {jaxllm.__version__}"

    def generate(self, requests: Requests, *, cold: bool, sampling: dict[str, Any]) -> dict[str, Any]:
        """See ``protocol.Driver``."""
        if cold:
            self._llm.reset_prefix_cache()
        prompts = [request["prompt"] for request in requests]
        params = [self._params(request["max_tokens"], sampling) for request in requests]
        before = self._llm.stats().num_computed_tokens
        started = time.perf_counter()
        outputs = self._llm.generate(prompts, params, use_tqdm=False, raise_on_error=True)
        seconds = time.perf_counter() - started
        metrics = [output.metrics for output in outputs]
        return {
            "seconds": seconds,
            "first": [each.first_token_time - started for each in metrics],
            "last": [each.finished_time - started for each in metrics],
            "tokens": [list(output.outputs[0].token_ids) for output in outputs],
            "computed": self._llm.stats().num_computed_tokens - before,
        }

    @staticmethod
    def _params(max_tokens: int, sampling: dict[str, Any]) -> Any:
        from jaxllm import SamplingParams

        return SamplingParams(**{"temperature": 0.0, "max_tokens": max_tokens, "ignore_eos": True, "detokenize": False,
                                 **sampling})


def choose_kernels(implementation: str) -> None:
    """Have every operation that knows this implementation use it."""
    from pallas_kernels import registry

    for operation in registry.operations():
        if implementation in registry.implementations(operation):
            os.environ[f"PALLAS_KERNELS_{operation.upper()}"] = implementation


if __name__ == "__main__":
    serve(JaxLLM)
