from __future__ import annotations

import json

import pytest
import scaling
import tabulate
from tiny_checkpoint import write_tiny_checkpoint, write_workload


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_tiny_checkpoint(tmp_path_factory.mktemp("scaling") / "model")


def run(model, tmp_path, *arguments):
    path = tmp_path / "scaling.json"
    status = scaling.main(["--model", str(model), "--dtype", "bfloat16", "--kv-cache-bytes", "1M", "--repeat", "2",
                           "--json", str(path), *arguments])
    assert status == 0
    document = tmp_path / "document.md"
    document.write_text("# Speed\n\n<!-- begin scaling.py -->\nold\n<!-- end scaling.py -->\n\nThe end.\n")
    assert tabulate.main([str(path), "--write", str(document)]) == 0
    assert document.read_text().startswith("# Speed\n\n<!-- begin scaling.py -->\n\n| requests | output tok/s |")
    assert document.read_text().endswith(" |\n\n<!-- end scaling.py -->\n\nThe end.\n")
    return json.loads(path.read_text())


def test_loads_are_measured_by_the_run_and_by_the_steps_that_only_decode(model, tmp_path, capsys):
    workload = write_workload(tmp_path, [(9, 5), (20, 4), (13, 6), (7, 3)])
    one, all_four = run(model, tmp_path, "--workload", workload, "--requests", "1,4", "--contexts", "")["loads"]
    # One request of 5 tokens: the prompt's step, which brings the first, and four more. The engine computes one step
    # ahead, so that the prompt's results come when a decoding step has begun, and the last ones when none has.
    assert (one["requests"], one["steps"], one["full_steps"]) == (1, 5, 3)
    # The shortest of the four has two tokens after its first, the longest five.
    assert (all_four["requests"], all_four["steps"], all_four["full_steps"]) == (4, 6, 1)
    for each, outputs, prompts in ((one, 5, 9), (all_four, 18, 49)):
        assert each["total_rate"] / each["output_rate"] == pytest.approx((outputs + prompts) / outputs)
        assert each["host_ms"] > 0
        assert each["step_ms"] > 0
    assert "host ms" in capsys.readouterr().out


def test_tables_go_only_where_a_document_has_a_place_for_them(tmp_path, capsys):
    report, document = tmp_path / "report.json", tmp_path / "document.md"
    report.write_text('{"loads": [], "contexts": []}')
    document.write_text("# Nothing here\n")
    with pytest.raises(SystemExit):
        tabulate.main([str(report), "--write", str(document)])
    assert "begin scaling.py" in capsys.readouterr().err
    assert document.read_text() == "# Nothing here\n"


def test_contexts_grow_to_the_models_own(model, tmp_path):
    contexts = run(model, tmp_path, "--requests", "")["contexts"]
    assert [each["tokens"] for each in contexts] == [128, 256]
    assert all(each["decode_ms"] > 0 for each in contexts)


def test_lengths_are_powers_of_two_and_the_longest():
    assert scaling.context_lengths(8192) == [128, 256, 512, 1024, 2048, 4096, 8192]
    assert scaling.context_lengths(300) == [128, 256, 300]
    assert scaling.context_lengths(100) == [100]


@pytest.mark.parametrize("arguments", [["--requests", "0"], ["--requests", "1,x"], ["--workload", "W99"],
                                       ["--requests", "257"], ["--repeat", "0"]])
def test_bad_arguments_are_refused(arguments, capsys):
    with pytest.raises(SystemExit):
        scaling.main(arguments)
    assert arguments[1] in capsys.readouterr().err
