"""A batch of a file survives the death of its process."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tiny_folder import write_tiny_folder

from jaxllm import LLM, SamplingParams
from jaxllm.batch import run_batch

PARAMS = SamplingParams(temperature=0.0, ignore_eos=True)
SIZES = {"dtype": "float32", "max_num_seqs": 4, "max_num_batched_tokens": 32, "max_model_len": 64, "block_size": 8}
PATIENCE = 120.0
# The third request has its fifth step when the first two are done; the process then sleeps inside it.
VICTIM = f"""
import sys, time
from jaxllm import LLM, SamplingParams
from jaxllm.batch import run_batch
folder, requests, results = sys.argv[1:]
llm = LLM(folder, **{SIZES!r})
execute = llm.engine._runner.execute
def execute_or_hang(plan):
    if open(results, "rb").read().count(b"\\n") == 2:
        time.sleep(3600)
    return execute(plan)
llm.engine._runner.execute = execute_or_hang
run_batch(llm, requests, results, SamplingParams(temperature=0.0, ignore_eos=True))
"""


def whole_lines(path):
    return path.read_bytes().count(b"\n") if path.exists() else 0


@pytest.mark.case(36)
def test_a_killed_batch_has_its_finished_results_on_disk_and_the_next_run_does_only_the_others(tmp_path):
    folder = write_tiny_folder(tmp_path / "model")
    requests, results = tmp_path / "requests.jsonl", tmp_path / "results.jsonl"
    requests.write_text("".join(json.dumps(each) + "\n" for each in [
        {"custom_id": "first", "prompt": "one", "max_tokens": 2},
        {"custom_id": "second", "prompt": "two", "max_tokens": 3},
        {"custom_id": "third", "prompt": "three", "max_tokens": 20}]))
    with subprocess.Popen([sys.executable, "-c", VICTIM, folder, requests, results],
                          cwd=Path(__file__).parents[2]) as victim:
        try:
            deadline = time.monotonic() + PATIENCE
            while whole_lines(results) < 2 and victim.poll() is None and time.monotonic() < deadline:
                time.sleep(0.02)
            assert victim.poll() is None
        finally:
            victim.kill()
    before = results.read_bytes()
    assert [json.loads(line)["custom_id"] for line in before.splitlines()] == ["first", "second"]

    llm = LLM(folder, **SIZES)
    summary = run_batch(llm, requests, results, PARAMS)
    assert (summary.total, summary.done_before, summary.completed, summary.unfinished) == (3, 2, 1, 0)
    assert llm.stats().num_prompt_tokens == len("three")
    assert results.read_bytes().startswith(before)
    records = [json.loads(line) for line in results.read_bytes().splitlines()]
    assert [record["custom_id"] for record in records] == ["first", "second", "third"]
    expected = llm.generate(["one", "two", "three"], [PARAMS.replace(max_tokens=count) for count in (2, 3, 20)])
    assert [record["outputs"][0]["token_ids"] for record in records] == [
        output.outputs[0].token_ids for output in expected]
