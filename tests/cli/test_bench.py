"""``jaxllm bench`` on a tiny model: that its figures belong together, not how large they are."""

from __future__ import annotations

import json

import pytest

from jaxllm.bench import MachineSpeed

WORK = ["--prompt-tokens", "20", "--output-tokens", "6", "--concurrency", "8", "--repeat", "1"]


@pytest.fixture(autouse=True)
def _a_known_machine(monkeypatch):
    monkeypatch.setattr("jaxllm.bench.measure_machine", lambda dtype: MachineSpeed(1e9, 2e9))


def test_the_report_holds_both_phases_against_the_roofline(run, folder, small):
    result = run("bench", folder, *small, *WORK, "--json", "--dtype", "float32")
    assert result.exit_code == 0, result.stderr
    report = json.loads(result.stdout)
    assert report["dtype"] == "float32"
    assert (report["latency"]["requests"], report["throughput"]["requests"]) == (1, 8)
    assert report["engine"]["max_num_seqs"] == 8
    assert report["machine"]["bytes_per_second"] == 1e9
    assert report["machine"]["kernels"]["matmul"] == "xla"  # the native one takes bfloat16 only
    prompt, token, batch = report["roofline"]
    assert prompt["seconds"] == report["latency"]["ttft"]
    assert token["seconds"] == report["latency"]["time_per_token"]
    assert batch["seconds"] == report["throughput"]["seconds"]
    for phase in (prompt, token, batch):
        assert phase["bound"] == pytest.approx(max(phase["bytes"] / 1e9, phase["flops"] / 2e9))
        assert phase["of_bandwidth"] == pytest.approx(phase["bytes"] / 1e9 / phase["seconds"])
        assert phase["of_peak"] == pytest.approx(phase["flops"] / 2e9 / phase["seconds"])
    assert token["limited_by"] == "reading"
    assert batch["flops"] > 7 * token["flops"] * 6


def test_the_text_says_what_was_measured(run, folder, small):
    result = run("bench", folder, *small, *WORK)
    assert result.exit_code == 0, result.stderr
    text = " ".join(result.stdout.split())
    for part in ("reads 1.0 GB/s, multiplies at 2 GFLOP/s", "1 request of 20 prompt and 6 output tokens",
                 "8 requests of 20 prompt", "first token after", "ms per token", "limited by", "kernels: "):
        assert part in text


def test_as_many_run_at_once_as_are_submitted(run, folder, small):
    at = small.index("--max-num-seqs")
    others = small[:at] + small[at + 2:]
    report = json.loads(run("bench", folder, *others, *WORK, "--json", "-q").stdout)
    assert report["engine"]["max_num_seqs"] == 8


def test_lengths_without_room_are_refused(run, folder, small):
    result = run("bench", folder, *small, "--prompt-tokens", "200")
    assert result.exit_code == 1
    assert "max_model_len=128" in result.stderr
    assert run("bench", folder, "--concurrency", "0").exit_code == 2
