"""A batch of a file survives the death of its process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from batch.scripted_batch import ScriptedLLM, write_requests

REQUESTS = [{"custom_id": "first", "prompt": [1], "max_tokens": 2},
            {"custom_id": "second", "prompt": [2, 2], "max_tokens": 3},
            {"custom_id": "third", "prompt": [3, 3, 3], "max_tokens": 20}]
PATIENCE = 120.0
# All three run at once. In the fifth step the third is alone, and waits in it for the end of its process.
VICTIM = """
import pathlib, sys, time
from batch.scripted_batch import ScriptedLLM
def script(sequence):
    if sequence.num_output == 4:
        time.sleep(3600)
    return 20 + sequence.num_output
ScriptedLLM(script).run(pathlib.Path(sys.argv[1]))
"""


def records(path):
    return [json.loads(line) for line in path.read_bytes().splitlines()]


@pytest.mark.case(36)
def test_a_killed_batch_has_its_finished_results_on_disk_and_the_next_run_does_only_the_others(tmp_path):
    write_requests(tmp_path, *REQUESTS)
    results = tmp_path / "results.jsonl"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])}
    with subprocess.Popen([sys.executable, "-c", VICTIM, tmp_path], env=environment) as victim:
        try:
            deadline = time.monotonic() + PATIENCE
            while not results.exists() or results.read_bytes().count(b"\n") < 2:
                assert victim.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.02)
        finally:
            victim.kill()
    before = results.read_bytes()
    assert [record["custom_id"] for record in records(results)] == ["first", "second"]

    llm = ScriptedLLM()
    summary = llm.run(tmp_path)
    assert (summary.total, summary.done_before, summary.completed, summary.unfinished) == (3, 2, 1, 0)
    assert llm.prompts == [3]
    assert results.read_bytes().startswith(before)
    assert [record["custom_id"] for record in records(results)] == ["first", "second", "third"]

    (tmp_path / "whole").mkdir()
    write_requests(tmp_path / "whole", *REQUESTS)
    ScriptedLLM().run(tmp_path / "whole")
    assert [record["outputs"][0]["token_ids"] for record in records(results)] == [
        record["outputs"][0]["token_ids"] for record in records(tmp_path / "whole" / "results.jsonl")]
