"""Drives Hugging Face transformers' ``generate`` on the CPU.

Options: ``model``, a folder; ``dtype``. Its batches are static and padded on the left: several requests run in batches
of ``BATCH``, of similar output lengths, which is faster than all at once.
"""

from __future__ import annotations

import time
from typing import Any

import torch
import transformers
from protocol import THREADS, Requests, serve

BATCH = 16


class Clock:
    """A streamer that notes when tokens come; the first call brings the prompt."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def put(self, value: Any) -> None:
        """Called with the prompt and with each token."""
        self.times.append(time.perf_counter())

    def end(self) -> None:
        """Called at the end."""


class HuggingFace:
    """``AutoModelForCausalLM`` on token ids."""

    def __init__(self, options: dict[str, Any]) -> None:
        torch.set_num_threads(THREADS)
        dtype = getattr(torch, options["dtype"])
        self._model = transformers.AutoModelForCausalLM.from_pretrained(options["model"], dtype=dtype).eval()
        self._model.generation_config = transformers.GenerationConfig(
            do_sample=False, use_cache=True, eos_token_id=None, pad_token_id=0)
        self.version = f"transformers {transformers.__version__}, torch {torch.__version__}"

    def generate(self, requests: Requests, *, cold: bool, sampling: dict[str, Any]) -> dict[str, Any]:
        """See ``protocol.Driver``; no cache is kept between calls, so that all are cold."""
        if sampling:
            raise ValueError("only greedy generation is implemented")
        tokens: list[list[int]] = [[] for _ in requests]
        clock = Clock() if len(requests) == 1 else None
        order = sorted(range(len(requests)), key=lambda index: requests[index]["max_tokens"])
        started = time.perf_counter()
        for first in range(0, len(order), BATCH):
            members = order[first : first + BATCH]
            for index, row in zip(members, self._batch([requests[index] for index in members], clock), strict=True):
                tokens[index] = row[: requests[index]["max_tokens"]]
        seconds = time.perf_counter() - started
        unknown = [None] * len(requests)
        return {
            "seconds": seconds,
            "first": unknown if clock is None else [clock.times[1] - started],
            "last": unknown if clock is None else [clock.times[-1] - started],
            "tokens": tokens,
        }

    @torch.inference_mode()
    def _batch(self, requests: Requests, clock: Clock | None) -> list[list[int]]:
        longest = max(len(request["prompt"]) for request in requests)
        ids = torch.zeros((len(requests), longest), dtype=torch.long)
        mask = torch.zeros_like(ids)
        for row, request in enumerate(requests):
            start = longest - len(request["prompt"])
            ids[row, start:] = torch.tensor(request["prompt"])
            mask[row, start:] = 1
        count = max(request["max_tokens"] for request in requests)
        output = self._model.generate(ids, attention_mask=mask, max_new_tokens=count, streamer=clock)
        return output[:, longest:].tolist()


if __name__ == "__main__":
    serve(HuggingFace)
