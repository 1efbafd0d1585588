from __future__ import annotations

import json

import pytest
import step_profile
import tabulate
from step_trace import Event, Operation, covered, cut_into_steps
from tiny_checkpoint import write_tiny_checkpoint


def test_a_tiny_models_steps_are_profiled_and_tabulated(tmp_path):
    model = write_tiny_checkpoint(tmp_path / "model")
    report, document = tmp_path / "report.json", tmp_path / "document.md"
    assert step_profile.main([
        "--model", str(model), "--dtype", "float32", "--kv-cache-bytes", "1M", "--steps", "3", "--kernels", "xla",
        "--cases", "decode 3x40,prefill 32@64", "--json", str(report)]) == 0
    decode, prefill = json.loads(report.read_text())["profiles"]
    for profile in (decode, prefill):
        found = {(line["what"].split()[0], line["implementation"]) for line in profile["lines"]}
        assert {("matmul", "xla"), ("head", "xla"), ("attention", "xla"), ("norms", "xla")} <= found
        assert all(0 <= line["ms"] <= profile["ms"] for line in profile["lines"])
    assert any(line["what"] == "matmul 32x48 by 32x48" for line in prefill["lines"])
    document.write_text("<!-- begin step_profile.py -->\n<!-- end step_profile.py -->\n")
    assert tabulate.main([str(report), "--write", str(document)]) == 0
    assert "| prefill 32@64: " in document.read_text()


def test_a_step_lasts_to_the_next_one_and_what_nothing_runs_in_is_the_hosts():
    events = [Event("begin", run, "add", 100 * run, 100 * run + 10) for run in range(3)]
    events += [Event("layers", 1, "loop", 20, 60), Event("layers", 1, "dot", 25, 45)]
    events.append(Event("layers", 2, "dot", 130, 150))
    steps = cut_into_steps(events, "begin")
    assert [(start, end, len(inside)) for start, end, inside in steps] == [(0, 100, 3), (100, 200, 2)]
    operations = {("begin", "add"): Operation("rest"), ("layers", "loop"): Operation("attention", "xla", True),
                  ("layers", "dot"): Operation("attention", "xla")}
    profile = step_profile.summarize("case", steps[:1], operations)
    times = {line.what: round(line.ms * 1e6) for line in profile.lines}
    assert times == {step_profile.GAP: 50, "attention": 20, step_profile.LOOPS: 20, "rest": 10}
    assert covered([(0, 10), (5, 7), (20, 30), (8, 12)]) == 22


@pytest.mark.parametrize("arguments", [["--cases", "decode 3"], ["--cases", "prefill 8@0"], ["--steps", "0"],
                                       ["--kernels", "gpu"], ["--cases", "prefill 8@32,prefill 16@32"]])
def test_bad_arguments_are_refused(arguments, capsys):
    with pytest.raises(SystemExit):
        step_profile.main(arguments)
    assert arguments[0] in capsys.readouterr().err
