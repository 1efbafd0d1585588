"""``jaxllm batch`` against ``LLM`` on the same tiny model."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from jaxllm import SamplingParams

TALK = [{"role": "user", "content": "hi"}]
PATIENCE = 120.0


@pytest.fixture
def files(tmp_path):
    requests = tmp_path / "requests.jsonl"
    requests.write_text("".join(json.dumps(each) + "\n" for each in [
        {"custom_id": "a", "prompt": "once"}, {"messages": TALK, "max_tokens": 3},
        {"custom_id": "o", "method": "POST", "url": "/v1/chat/completions",
         "body": {"model": "any", "messages": TALK, "temperature": 1, "seed": 5}}]))
    return requests, tmp_path / "results.jsonl"


@pytest.fixture
def batch(run, folder, small, files):
    return lambda *arguments: run("batch", "-m", folder, *small, *files, *arguments)


def results_of(text):
    return {record["custom_id"]: record for record in map(json.loads, text.splitlines())}


def test_options_are_what_lines_do_not_say_themselves(batch, files, llm):
    result = batch("--max-tokens", 6, "--logprobs", 1, "-n", 2)
    assert (result.exit_code, result.stdout) == (0, "")
    assert "3 requests: 3 completed; 0 failed" in result.stderr
    params = SamplingParams(n=2, temperature=1.0, max_tokens=6, logprobs=1)
    results = results_of(files[1].read_text())
    for name, (expected,) in {
        "a": llm.generate("once", params.replace(seed=results["a"]["outputs"][0]["seed"])),
        None: llm.chat(TALK, params.replace(seed=results[None]["outputs"][0]["seed"], max_tokens=3)),
        "o": llm.chat(TALK, params.replace(seed=5)),
    }.items():
        assert [sample["token_ids"] for sample in results[name]["outputs"]] == [
            sample.token_ids for sample in expected.outputs]
        assert [sample["cumulative_logprob"] for sample in results[name]["outputs"]] == [
            sample.cumulative_logprob for sample in expected.outputs]


def test_a_batch_that_is_done_loads_no_model(batch, files, monkeypatch):
    assert batch("--max-tokens", 2, "-q").exit_code == 0
    before = files[1].read_bytes()
    monkeypatch.setattr("jaxllm.cli.startup.start", None)
    result = batch("--max-tokens", 2)
    assert (result.exit_code, files[1].read_bytes()) == (0, before)
    assert result.stderr == "3 requests: 0 completed; 0 failed; 3 done before\n"


def test_failures_are_the_exit_code_and_are_retried_when_asked(batch, files):
    requests, results = files
    requests.write_text(requests.read_text() + "bad\n" + json.dumps({"prompt": "x" * 500}) + "\n")
    first = batch("--max-tokens", 2)
    assert first.exit_code == 1
    assert "5 requests: 3 completed; 2 failed" in first.stderr
    again = batch("--max-tokens", 2)
    assert again.exit_code == 1
    assert again.stderr == "5 requests: 0 completed; 0 failed; 5 done before, 2 of them failed\n"
    retried = batch("--max-tokens", 2, "--retry-failed")
    assert retried.exit_code == 1
    assert "0 completed; 2 failed; 3 done before" in retried.stderr
    assert len(results.read_text().splitlines()) == 7


def test_results_can_be_standard_output(run, folder, small, files):
    result = run("batch", "-m", folder, *small, files[0], "-", "--max-tokens", 2, "--model-name", "mine")
    assert result.exit_code == 1
    results = results_of(result.stdout)
    assert set(results) == {"a", None, "o"}
    assert results["o"]["error"]["parameter"] == "model"
    assert not files[1].exists()


@pytest.mark.parametrize(("arguments", "message"), [
    (["--temperature", "-1"], "temperature=-1.0 is not allowed"),
    (["--max-in-flight", "0"], "is not an integer >= 1"),
])
def test_wrong_usage_is_exit_code_2_before_anything_is_opened(run, files, arguments, message):
    result = run("batch", "-m", "/no/such/model", *files, *arguments)
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.replace("│", " ").split())
    assert not files[1].exists()
    assert run("batch", "-m", "/no/such/model", "/no/such/file", files[1]).exit_code == 2


@pytest.mark.parametrize(("arguments", "message"), [
    (["--max-tokens", "3"], "other default sampling parameters"),
    (["--max-tokens", "2", "--no-resume"], "resume=False is not allowed"),
])
def test_results_that_cannot_be_gone_on_with_are_one_line_and_exit_code_1(batch, files, arguments, message):
    assert batch("--max-tokens", 2, "-q").exit_code == 0
    before = files[1].read_bytes()
    result = batch(*arguments)
    assert (result.exit_code, files[1].read_bytes()) == (1, before)
    assert result.stderr.startswith("error: ")
    assert message in result.stderr
    assert result.stderr.count("\n") == 1


def test_ctrl_c_is_exit_code_130_and_the_next_run_does_the_rest(run, folder, small, tmp_path):
    requests, results = tmp_path / "requests.jsonl", tmp_path / "results.jsonl"
    requests.write_text("".join(json.dumps({"prompt": "x", "max_tokens": 100}) + "\n" for _ in range(5000)))
    options = ["batch", "-m", str(folder), *small, str(requests), str(results), "--ignore-eos"]
    command = [sys.executable, "-c", "from jaxllm.cli import main; main()", *options]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True,
                          env={**os.environ, "NO_COLOR": "1"}) as process:
        try:
            deadline = time.monotonic() + PATIENCE
            while not (results.exists() and results.stat().st_size) and time.monotonic() < deadline:
                time.sleep(0.02)
            process.send_signal(signal.SIGINT)
            errors = process.communicate(timeout=PATIENCE)[1]
        finally:
            process.kill()
    assert process.returncode == 130, errors
    lines = results.read_bytes().splitlines()
    assert 0 < len(lines) < 5000
    assert f"interrupted: 5000 requests: {len(lines)} completed; 0 failed; {5000 - len(lines)} unfinished" in errors
    requests.write_text("".join(requests.read_text().splitlines(keepends=True)[:len(lines) + 8]))
    again = run(*options)
    assert again.exit_code == 0
    assert f"8 completed; 0 failed; {len(lines)} done before" in again.stderr
