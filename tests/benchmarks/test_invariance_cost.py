from __future__ import annotations

import json

import invariance_cost
import jax.numpy as jnp
import pytest

TINY = ["--dtype", "float32", "--num-heads", "4", "--num-kv-heads", "2", "--head-dim", "16", "--block-size", "8",
        "--max-num-seqs", "4", "--max-model-len", "64", "--max-num-batched-tokens", "32", "--layers", "1",
        "--repeat", "2", "--cases", "3x33,20@30"]


@pytest.mark.parametrize(("cases", "labels"), [
    ("3x33,20@30", ["decode 3x33", "prefill 20@30"]),
    pytest.param("1x9,4x64,20@0,31@33", ["decode 1x9", "decode 4x64", "prefill 20@0", "prefill 31@33"],
                 marks=pytest.mark.sweep),
])
def test_both_ways_compute_the_same_and_are_timed(cases, labels, tmp_path, monkeypatch):
    monkeypatch.setattr(invariance_cost, "NORM_ROWS", (8,))
    report = tmp_path / "cost.json"
    assert invariance_cost.main([*TINY[:-1], cases, "--json", str(report)]) == 0
    results = json.loads(report.read_text())["results"]
    assert [each["label"] for each in results] == [*labels, "RMSNorm 8x64"]
    for each in results:
        assert each["fixed_ms"] > 0
        assert each["plain_ms"] > 0


def test_ways_that_do_not_agree_fail(monkeypatch, capsys):
    honest = invariance_cost.plain_attention
    monkeypatch.setattr(invariance_cost, "plain_attention",
                        lambda q, k, v, tables, context: honest(q, k, v, tables, context - 1))
    monkeypatch.setattr(invariance_cost, "NORM_ROWS", ())
    assert invariance_cost.main([*TINY[:-1], "3x33"]) == 1
    assert "decode 3x33" in capsys.readouterr().out.splitlines()[-1]


@pytest.mark.parametrize("case", ["5x9", "33@0", "20@45", "0x9", "nine"])
def test_cases_that_no_engine_of_these_sizes_could_run_are_refused(case, capsys):
    with pytest.raises(SystemExit):
        invariance_cost.main([*TINY[:-1], case])
    assert case in capsys.readouterr().err


def test_a_difference_is_relative_to_the_largest_value():
    first, second = jnp.array([1.0, -4.0, 0.0]), jnp.array([1.0, -4.0, 0.5])
    assert invariance_cost.largest_difference(first, second) == pytest.approx(0.5 / 4)
