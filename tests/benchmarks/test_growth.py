from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import growth
import pytest


def test_every_stage_has_programs_of_its_own_and_all_is_reported(tmp_path):
    report = tmp_path / "growth.json"
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    command = [sys.executable, str(Path(growth.__file__)), "--axes", "pipe", "--devices", "1", "2", "--steps", "3",
               "--json", str(report)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "compile, CPU s" in done.stdout
    one, two = json.loads(report.read_text())["results"]
    assert [(each["axis"], each["devices"], each["steps"]) for each in (one, two)] == [("pipe", 1, 3), ("pipe", 2, 3)]
    assert one["programs"] < two["programs"] < 2 * one["programs"]  # the last stage alone samples
    for each in (one, two):
        assert min(each["compile_s"], each["compile_cpu_s"]) > 0
        assert each["whole_ms"] >= each["dispatch_ms"] > 0


@pytest.mark.parametrize("arguments", [["--steps", "0"], ["--devices", "3"], ["--axes", "expert"]])
def test_what_cannot_be_measured_is_refused(arguments, capsys):
    with pytest.raises(SystemExit):
        growth.main(arguments)
    assert arguments[0] in capsys.readouterr().err
