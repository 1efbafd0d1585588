from __future__ import annotations

import json

import pytest
import replicas


def test_every_replica_gets_its_share_and_all_are_reported(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(replicas, "LIMIT_MS", 1e6)
    report = tmp_path / "replicas.json"
    assert replicas.main(["--replicas", "1", "3", "--running", "4", "--steps", "6", "--json", str(report)]) == 0
    found = json.loads(report.read_text())["results"]
    assert [(each["replicas"], each["steps"]) for each in found] == [(1, 3), (3, 9)]
    for each in found:
        assert (each["least"], each["most"]) == (4, 4)
        assert each["whole"] == pytest.approx(each["plan"] + each["record"] + each["other"])
        assert each["add"] > each["route"] > 0
    assert "a step, ms" in capsys.readouterr().out


def test_a_limit_that_is_missed_fails(monkeypatch, capsys):
    monkeypatch.setattr(replicas, "LIMIT_MS", 0.0)
    assert replicas.main(["--replicas", "2", "--running", "2", "--steps", "2"]) == 1
    assert "MISSED with 2 replicas" in capsys.readouterr().out


def test_sizes_of_nothing_are_refused(capsys):
    with pytest.raises(SystemExit):
        replicas.main(["--running", "0"])
    assert "--running" in capsys.readouterr().err
