"""Drives vLLM's CPU build.

Options: ``model``, a folder; ``dtype``; ``kv_gib``, the size of its cache.
"""

from __future__ import annotations

import os
import time
from typing import Any

from protocol import Requests, serve


class VLLM:
    """Its ``LLM``'s engine, step by step, on token ids."""

    def __init__(self, options: dict[str, Any]) -> None:
        os.environ["VLLM_CPU_KVCACHE_SPACE"] = str(options["kv_gib"])
        import vllm

        self._llm = vllm.LLM(options["model"], dtype=options["dtype"], max_model_len=8192, enable_prefix_caching=True,
                             disable_log_stats=True)
        self._number = 0
        self.version = f"vllm {vllm.__version__}"

    def generate(self, requests: Requests, *, cold: bool, sampling: dict[str, Any]) -> dict[str, Any]:
        """See ``protocol.Driver``."""
        from vllm import SamplingParams

        if cold:
            self._llm.reset_prefix_cache()
        engine = self._llm.llm_engine
        places: dict[str, int] = {}
        first: list[float | None] = [None] * len(requests)
        last: list[float | None] = [None] * len(requests)
        tokens: list[list[int]] = [[] for _ in requests]
        started = time.perf_counter()
        for index, request in enumerate(requests):
            self._number += 1
            places[str(self._number)] = index
            params = SamplingParams(**{"temperature": 0.0, "max_tokens": request["max_tokens"], "ignore_eos": True,
                                       "detokenize": False, **sampling})
            engine.add_request(str(self._number), {"prompt_token_ids": request["prompt"]}, params)
        while engine.has_unfinished_requests():
            for output in engine.step():
                now, index = time.perf_counter() - started, places[output.request_id]
                tokens[index] = list(output.outputs[0].token_ids)
                if tokens[index]:
                    first[index] = now if first[index] is None else first[index]
                    last[index] = now
        return {"seconds": time.perf_counter() - started, "first": first, "last": last, "tokens": tokens}


if __name__ == "__main__":
    serve(VLLM)
