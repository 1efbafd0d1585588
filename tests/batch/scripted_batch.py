"""Request files, and a model that says what a script dictates, for tests of batches."""

from __future__ import annotations

import json

from scripted import scripted_engine

from jaxllm import ParameterError, SamplingParams
from jaxllm.batch import run_batch

DEFAULTS = SamplingParams(temperature=0.0, max_tokens=3)


class ScriptedLLM:
    """What ``run_batch`` needs of an ``LLM``. Notes the first id of each prompt, and how many were in at once."""

    def __init__(self, script=lambda sequence: 20 + sequence.num_output, **sizes):
        self.prompts = []
        self.most_in_flight = 0
        self.engine = scripted_engine(self._step(script), **sizes)

    def _step(self, script):
        def say(sequence):
            if sequence.num_output == 0:
                self.prompts.append(int(sequence.request.prompt_token_ids[0]))
            self.most_in_flight = max(self.most_in_flight, len(self.engine.scheduler.requests))
            return script(sequence)

        return say

    def get_default_sampling_params(self):
        return DEFAULTS

    def chat_prompt(self, messages, **options):
        if not all(isinstance(message, dict) and isinstance(message.get("content"), str) for message in messages):
            raise ParameterError("messages", messages, "messages with content")
        return {"prompt_token_ids": [len(message["content"]) for message in messages] + [len(options)]}

    def run(self, folder, **options):
        """``run_batch`` on ``requests.jsonl`` and ``results.jsonl`` of a folder."""
        return run_batch(self, folder / "requests.jsonl", folder / "results.jsonl", use_tqdm=False, **options)


def write_requests(folder, *requests):
    """Make ``requests.jsonl``; what is no text or bytes is written as JSON."""
    lines = [each if isinstance(each, bytes) else (each if isinstance(each, str) else json.dumps(each)).encode()
             for each in requests]
    (folder / "requests.jsonl").write_bytes(b"".join(line + b"\n" for line in lines))


def read_results(folder):
    """The lines of ``results.jsonl``, by their ids, or line numbers where they have none."""
    content = (folder / "results.jsonl").read_bytes()
    assert content.endswith(b"\n") or not content
    records = [json.loads(line) for line in content.splitlines()]
    return {record["line"] if record["custom_id"] is None else record["custom_id"]: record for record in records}
