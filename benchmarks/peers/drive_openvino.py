"""Drives OpenVINO GenAI's continuous batching pipeline.

Options: ``model``, a .gguf file or a folder; ``kv_gib``, the size of its cache.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import openvino
import openvino_genai
from protocol import Requests, serve


class OpenVINO:
    """A pipeline on token ids, with prefix caching."""

    def __init__(self, options: dict[str, Any]) -> None:
        config = openvino_genai.SchedulerConfig()
        config.cache_size = options["kv_gib"]
        config.enable_prefix_caching = True
        config.dynamic_split_fuse = True
        config.max_num_seqs = 256
        config.max_num_batched_tokens = 2048
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(options["model"], config, "CPU", {})
        self._number = self._cold_calls = 0
        self.version = f"openvino-genai {openvino_genai.__version__}"

    def generate(self, requests: Requests, *, cold: bool, sampling: dict[str, Any]) -> dict[str, Any]:
        """See ``protocol.Driver``. The cache cannot be emptied: a cold call replaces each prompt's first token by one
        that no earlier call has had, so that nothing computed before is found."""
        if sampling:
            raise ValueError("only greedy generation is implemented")
        self._cold_calls += cold
        prompts = [[1000 + self._cold_calls, *request["prompt"][1:]] if self._cold_calls else request["prompt"]
                   for request in requests]
        first: list[float | None] = [None] * len(requests)
        last: list[float | None] = [None] * len(requests)
        tokens: list[list[int]] = [[] for _ in requests]
        started = time.perf_counter()
        handles = [self._add(prompt, request["max_tokens"]) for prompt, request in zip(prompts, requests, strict=True)]
        while self._pipeline.has_non_finished_requests():
            self._pipeline.step()
            now = time.perf_counter() - started
            for index, handle in enumerate(handles):
                if handle.can_read():
                    for output in handle.read().values():
                        tokens[index] += output.generated_ids
                    first[index] = now if first[index] is None else first[index]
                    last[index] = now
        return {"seconds": time.perf_counter() - started, "first": first, "last": last, "tokens": tokens,
                "prompts_changed": self._cold_calls > 0}

    def _add(self, prompt: list[int], max_tokens: int) -> Any:
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens = max_tokens
        config.do_sample = False
        config.ignore_eos = True
        config.apply_chat_template = False
        self._number += 1
        return self._pipeline.add_request(self._number, openvino.Tensor(np.array([prompt], np.int64)), config)


if __name__ == "__main__":
    serve(OpenVINO)
