"""``jaxllm plan``: the figures of ``jaxllm.plan``, as text and as JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import jaxllm

CONFIGS = Path(__file__).parents[1] / "fixtures" / "configs"
LLAMA, QWEN = CONFIGS / "llama-3.1-70b.json", CONFIGS / "qwen3-30b-a3b.json"


@pytest.fixture(autouse=True)
def _platforms(monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")


def test_json_is_what_python_gives(run):
    result = run("plan", LLAMA, "--gpu", "h200", "--tensor", "4", "--pipeline", "2", "--batch", "32", "--context", "4K",
                 "--json")
    assert result.exit_code == 0, result.stderr
    plan = jaxllm.plan(LLAMA, "h200", tensor_parallel_size=4, pipeline_parallel_size=2, batch=32, context=4096)
    assert json.loads(result.stdout) == json.loads(json.dumps(plan.to_dict()))


def test_text_has_the_figures_and_the_verdict(run):
    result = run("plan", LLAMA, "--gpu", "h200", "--tensor", "8")
    assert result.exit_code == 0, result.stderr
    text = " ".join(result.stdout.split())
    for figure in ("70,553,706,496", "8 x NVIDIA H200, T8", "327,680 B in bfloat16, 40,960 B on each GPU",
                   "80 x 1.0 MiB after attention, over 8 GPUs (tensor, NVLink)", "bound by memory bandwidth",
                   "analytical counted from", "fits yes"):
        assert figure in text


def test_what_does_not_fit_is_exit_code_1_with_the_mesh_that_would(run):
    result = run("plan", LLAMA, "--gpu", "h100")
    assert result.exit_code == 1
    assert "does not fit 1 GPU" in result.stdout
    assert "the smallest mesh of h100 that would is T2, 2 GPUs" in result.stdout


def test_search_prints_every_mesh_and_recommends_one(run):
    result = run("plan", QWEN, "--gpu", "h200", "--search", "4", "--batch", "256")
    assert result.exit_code == 0, result.stderr
    found = jaxllm.search_mesh(QWEN, "h200", 4, batch=256)
    lines = result.stdout.splitlines()
    assert [line.split("  ")[1] for line in lines[1:1 + len(found.plans)]] == [plan.mesh.name for plan in found.plans]
    assert found.reason in result.stdout
    as_json = json.loads(run("plan", QWEN, "--gpu", "h200", "--search", "4", "--batch", "256", "--json").stdout)
    assert as_json == json.loads(json.dumps(found.to_dict()))


def test_a_search_in_which_nothing_fits_recommends_nothing_and_says_by_how_much_the_nearest_does_not(run):
    result = run("plan", LLAMA, "--gpu", "l4", "--search", "2")
    assert result.exit_code == 1
    assert "Recommended" not in result.stdout
    found = jaxllm.search_mesh(LLAMA, "l4", 2)
    text = " ".join(result.stdout.split())
    missing = f"{found.best.memory.short_by:,} bytes"
    assert f"Nothing fits none of 3 meshes of 2 fits; the nearest does not fit {found.best.mesh.name}:" in text
    assert missing in text
    assert found.best.smallest is not None
    assert f"the smallest mesh of l4 that would is {found.best.smallest.name}" in text


@pytest.mark.parametrize(("arguments", "exit_code", "message"), [
    (("--gpu", "h2"), 1, "gpu='h2' is not allowed: one of a100-40"),
    (("--gpu", "h200", "--tensor", "3"), 1, "--tensor=3 is not allowed: one of 1, 2, 4, 8"),
    (("--gpu", "h200", "--search", "0"), 1, "--search=0 is not allowed: an integer >= 1"),
    (("--gpu", "h200", "--search", "8", "--tensor", "8"), 2, "not both"),
    ((), 2, "--gpu"),
])
def test_errors_are_one_line(run, arguments, exit_code, message):
    result = run("plan", LLAMA, *arguments)
    assert result.exit_code == exit_code
    assert message in result.stderr
