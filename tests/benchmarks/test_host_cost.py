from __future__ import annotations

import json

import host_cost
import pytest

from jaxllm.runner.runner import StepResult


def test_the_parts_of_a_step_are_told_apart_and_the_engine_is_left_as_it_was(tmp_path):
    fetch, report = StepResult.fetch, tmp_path / "cost.json"
    assert host_cost.main(["--running", "2", "--waiting", "5", "--steps", "4", "--json", str(report)]) == 0
    results = json.loads(report.read_text())["results"]
    assert [(each["running"], each["waiting"]) for each in results] == [(2, 0), (64, 5)]
    for each in results:
        assert all(each["seconds"][part] > 0 for part in host_cost.PARTS)
    assert StepResult.fetch is fetch


def test_the_tenth_percentile_of_few_steps_lies_between_them():
    assert 1.0 <= host_cost._tenth([1.0, 9.0]) <= 9.0


def test_time_inside_another_timed_function_is_counted_once(monkeypatch):
    clock = iter(range(0, 100, 1))
    monkeypatch.setattr(host_cost.time, "perf_counter", lambda: next(clock))
    stopwatch = host_cost.Stopwatch()
    inner = stopwatch.timed("inner", lambda: None)
    stopwatch.timed("outer", lambda: (inner(), inner()))()
    # Ticks: outer starts at 0, inner takes 1 to 2 and 3 to 4, outer ends at 5.
    assert stopwatch.seconds == {"inner": 2, "outer": 3}


def test_stubs_compute_nothing_and_sample_token_0():
    engine = host_cost.stubbed_engine(2, 3)
    engine.add_request([5, 6], host_cost.SamplingParams(temperature=0, max_tokens=3))
    outputs = []
    while engine.has_unfinished():
        outputs += engine.step()
    assert outputs[-1].outputs[0].token_ids == [0, 0, 0]


@pytest.mark.parametrize("option", ["--running", "--steps"])
def test_options_are_numbers(option, capsys):
    with pytest.raises(SystemExit):
        host_cost.main([option, "many"])
    assert "invalid int value" in capsys.readouterr().err
