"""The table of instruction sets has a figure for each of them, and a run leaves the process as it was."""

from __future__ import annotations

import json
import os

import instruction_sets
import pytest

from pallas_kernels import cpu


@pytest.mark.skipif(cpu.unavailable() is not None, reason="no native kernels here")
def test_each_instruction_set_has_a_figure(tmp_path, capsys, monkeypatch):
    before, cores = cpu.instruction_set(), []
    monkeypatch.setattr(os, "sched_setaffinity", lambda _, chosen: cores.extend(chosen))
    out = tmp_path / "figures.json"
    assert instruction_sets.main(["--inputs=256", "--outputs=8", "--tokens=3", "--repeat=1", f"--json={out}"]) == 0
    found = json.loads(out.read_text())["microseconds"]
    assert set(found["bfloat16, 3"]) == {*cpu.instruction_sets(), "xla bfloat16", "xla float32"}
    assert set(found["Q4_K, 3"]) == set(cpu.instruction_sets())
    assert all(value > 0 for row in found.values() for value in row.values())
    assert "Q4_K, 3" in capsys.readouterr().out
    assert cpu.instruction_set() == before
    assert len(cores) == 1
