from __future__ import annotations

import json

import pytest
import sampler


def test_every_case_asked_for_is_timed_at_every_size(tmp_path):
    path = tmp_path / "report.json"
    arguments = ["--rows", "2,8", "--vocab-size", "300", "--repeat", "1", "--cases", "greedy,all filters,masked"]
    assert sampler.main([*arguments, "--json", str(path)]) == 0
    milliseconds = json.loads(path.read_text())["milliseconds"]
    assert {size: list(cases) for size, cases in milliseconds.items()} == {
        size: ["greedy", "all filters", "masked"] for size in ("2", "8")}
    assert all(value > 0 for cases in milliseconds.values() for value in cases.values())


def test_a_case_that_does_not_exist_is_refused(capsys):
    with pytest.raises(SystemExit):
        sampler.main(["--cases", "gredy"])
    assert "no case 'gredy'" in capsys.readouterr().err
