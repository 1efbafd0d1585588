from __future__ import annotations

import json

import hybrid_kv
import pytest


def test_no_model_holds_or_needs_more_than_a_quarter_above_the_least_at_32k(tmp_path):
    report = tmp_path / "hybrid.json"
    assert hybrid_kv.main(["--json", str(report)]) == 0
    found = json.loads(report.read_text())["results"]
    assert {each["model"] for each in found} == set(hybrid_kv.MODELS)
    for each in found:
        assert each["length"] == 32768
        for name in ("held", "most", "within", "pool"):
            assert each["least"] <= each[name] <= 1.25 * each["least"], name


def test_the_least_is_the_sum_over_the_layers_of_the_smaller_of_length_and_window():
    spec = hybrid_kv.MODELS["Gemma 3 270M"].spec(32769)
    assert spec.context_bytes(32768) == (3 * 32768 + 15 * 512) * 2 * 256 * 2
    assert spec.bytes_per_token == 18 * 2 * 256 * 2


def test_a_limit_that_is_missed_fails(monkeypatch, capsys):
    monkeypatch.setattr(hybrid_kv, "LIMIT", 1.001)
    assert hybrid_kv.main(["--models", "Gemma 3 270M"]) == 1
    assert "MISSED by Gemma 3 270M" in capsys.readouterr().out


@pytest.mark.parametrize("length", ["64", "0"])
def test_a_length_without_a_prompt_is_refused(length, capsys):
    with pytest.raises(SystemExit):
        hybrid_kv.main(["--length", length])
    assert f"--length {length}" in capsys.readouterr().err
