"""Drives ONNX Runtime GenAI on the CPU.

Options: ``model``, a folder that its model builder wrote. Requests run one after the other: its batches are padded, and
end together.
"""

from __future__ import annotations

import json
import time
from typing import Any

import numpy as np
import onnxruntime_genai as og
from protocol import THREADS, Requests, serve


class OnnxRuntime:
    """``onnxruntime_genai.Generator`` on token ids; each call begins with an empty cache."""

    def __init__(self, options: dict[str, Any]) -> None:
        config = og.Config(options["model"])
        # Without ids that end a sequence, nothing ends a generation before its length. Left to itself it takes fewer
        # threads than there are cores.
        session = {"decoder": {"session_options": {"intra_op_num_threads": THREADS}}}
        config.overlay(json.dumps({"model": {"eos_token_id": [], **session}}))
        self._model = og.Model(config)
        self.version = f"onnxruntime-genai {og.__version__}"

    def generate(self, requests: Requests, *, cold: bool, sampling: dict[str, Any]) -> dict[str, Any]:
        """See ``protocol.Driver``; no cache is kept between calls, so that all are cold."""
        if sampling:
            raise ValueError("only greedy generation is implemented")
        first: list[float] = []
        last: list[float] = []
        tokens: list[list[int]] = []
        started = time.perf_counter()
        for request in requests:
            params = og.GeneratorParams(self._model)
            params.set_search_options(do_sample=False, max_length=len(request["prompt"]) + request["max_tokens"])
            generator = og.Generator(self._model, params)
            generator.append_tokens(np.array([request["prompt"]], np.int32))
            made: list[int] = []
            while len(made) < request["max_tokens"]:
                generator.generate_next_token()
                made.append(int(generator.get_next_tokens()[0]))
                if len(made) == 1:
                    first.append(time.perf_counter() - started)
            last.append(time.perf_counter() - started)
            tokens.append(made)
        return {"seconds": time.perf_counter() - started, "first": first, "last": last, "tokens": tokens}


if __name__ == "__main__":
    serve(OnnxRuntime)
