from __future__ import annotations

import json

import harness
import pytest
from tiny_checkpoint import write_workload

from jaxllm import ParameterError


@pytest.mark.parametrize(("name", "requests", "prompt_tokens", "output_tokens", "shared"), [
    ("W1", 1, 128, 128, 0), ("W2", 64, 8901, 4715, 0), ("W3", 32, 33280, 1024, 1024), ("W4", 1, 4096, 16, 0),
    ("W1r", 1, 128, 128, 0), ("W2b", 256, 34846, 18418, 0),
])
def test_the_workloads_are_what_they_are_described_as(name, requests, prompt_tokens, output_tokens, shared):
    workload = harness.load_workload(name)
    assert workload.name == name
    assert len(workload.requests) == requests
    assert (workload.prompt_tokens, workload.output_tokens) == (prompt_tokens, output_tokens)
    assert workload.shared_prefix >= shared
    assert (workload.shared_prefix > 64) == (shared > 64)


def test_a_workload_can_be_a_file(tmp_path):
    workload = harness.load_workload(write_workload(tmp_path, [(4, 2), (7, 3)], prefix=4))
    assert [(len(work.prompt), work.max_tokens) for work in workload.requests] == [(4, 2), (7, 3)]
    assert workload.shared_prefix == 4


@pytest.mark.parametrize("content", [
    "not json", "[]", {"requests": []}, {"requests": [{"prompt": [1]}]},
    {"requests": [{"prompt": [], "max_tokens": 1}]}, {"requests": [{"prompt": [1], "max_tokens": 0}]},
])
def test_a_file_that_is_no_workload_is_refused(tmp_path, content):
    path = tmp_path / "bad.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(ParameterError, match=r"bad\.json"):
        harness.load_workload(str(path))


def test_tables_are_aligned():
    table = harness.format_table(("name", "n"), [("a", 1), ("longer", 1000)])
    assert table.splitlines() == ["name       n", "------  ----", "a          1", "longer  1000"]


def test_the_machine_is_named():
    machine = harness.describe_machine()
    assert machine["cpu"]
    assert machine["cores"] >= 1
    assert machine["jax"] in harness.machine_line(machine)
