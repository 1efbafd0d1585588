from __future__ import annotations

import json

import pytest
import roofline
import tabulate
from harness import load_workload
from tiny_checkpoint import write_tiny_checkpoint, write_workload

from jaxllm.bench import Chunk, Cost, MachineSpeed, ModelCosts
from jaxllm.engine.sizes import cache_spec
from jaxllm.loading import open_model, open_source


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_tiny_checkpoint(tmp_path_factory.mktemp("roofline") / "model")


@pytest.fixture(scope="module")
def costs(folder):
    model = open_model(open_source(str(folder)), "float32").model
    return ModelCosts.of(model, cache_spec(model, "auto"))


def test_a_single_request_is_its_prompt_and_one_step_per_later_token(costs, tmp_path):
    workload = load_workload(write_workload(tmp_path, [(20, 4)]))
    assert roofline.prompt_cost(costs, workload) == costs.step([Chunk(0, 20)])
    assert roofline.decoding_cost(costs, workload) == sum(
        (costs.step([Chunk(length, 1)]) for length in (20, 21, 22)), Cost())


def test_requests_leave_when_they_have_their_tokens(costs, tmp_path):
    workload = load_workload(write_workload(tmp_path, [(20, 2), (9, 3), (5, 1)]))
    assert roofline.decoding_cost(costs, workload) == (
        costs.step([Chunk(20, 1), Chunk(9, 1)]) + costs.step([Chunk(10, 1)]))


def test_a_shared_prefix_is_computed_once_and_read_once_a_step(costs, tmp_path):
    workload = load_workload(write_workload(tmp_path, [(70, 2), (75, 2)], prefix=64))
    shared = workload.shared_prefix
    assert roofline.prompt_cost(costs, workload) == costs.step(
        [Chunk(0, 70), Chunk(shared, 75 - shared, shared=shared)])
    assert roofline.decoding_cost(costs, workload) == costs.step([Chunk(70, 1), Chunk(75, 1, shared=shared)])


def test_samples_share_their_prompt(costs, tmp_path):
    path = tmp_path / "samples.json"
    path.write_text(json.dumps({"sampling": {"n": 3}, "requests": [{"prompt": list(range(20)), "max_tokens": 2}]}))
    assert roofline.decoding_cost(costs, load_workload(str(path))) == costs.step(
        [Chunk(20, 1), Chunk(20, 1, shared=20), Chunk(20, 1, shared=20)])


def test_measured_rates_are_held_against_the_highest_possible(folder, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(roofline, "measure_machine", lambda dtype: MachineSpeed(1e9, 1e9))
    workload = write_workload(tmp_path, [(20, 4), (9, 3)])
    compared, report = tmp_path / "compared.json", tmp_path / "report.json"
    arguments = ["--model", str(folder), "--dtype", "float32", "--workloads", workload, "--json", str(report)]
    roofline.main(arguments)
    (bound,) = json.loads(report.read_text())["bounds"]
    assert bound["output_rate"] == pytest.approx(7 / (bound["prompts_seconds"] + bound["decoding_seconds"]))
    compared.write_text(json.dumps({"runs": [
        {"engine": "jaxllm", "workload": "tiny-2", "pass": "cold", "median": {"output_rate": bound["output_rate"] / 4}},
        {"engine": "jaxllm", "workload": "tiny-2", "pass": "warm", "median": {"output_rate": 1.0}},
        {"engine": "hf-bf16", "workload": "tiny-2", "pass": "cold", "median": {"output_rate": 2.0}},
        {"engine": "jaxllm", "workload": "start", "pass": "4 GiB", "median": {"first_token": 2.0}},
    ]}))
    capsys.readouterr()
    roofline.main([*arguments, "--measured", str(compared)])
    assert "25 %" in capsys.readouterr().out
    assert tabulate.main([str(report)]) == 0
    assert "| 25 % |" in capsys.readouterr().out
    report.write_text("{}")
    with pytest.raises(SystemExit):
        tabulate.main([str(report)])
    assert "is no report" in capsys.readouterr().err
