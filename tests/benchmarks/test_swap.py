from __future__ import annotations

import json

import pytest
import swap
from tiny_checkpoint import write_tiny_checkpoint


def test_the_same_requests_run_with_and_without_swap_and_what_was_computed_again_is_counted(tmp_path, capsys):
    model, path = write_tiny_checkpoint(tmp_path / "model"), tmp_path / "report.json"
    sizes = {"requests": 4, "prompt-tokens": 40, "output-tokens": 90, "share": 0.7, "repeat": 1}
    options = [text for name, value in sizes.items() for text in (f"--{name}", str(value))]
    assert swap.main(["--model", str(model), "--dtype", "bfloat16", "--json", str(path), *options]) == 0
    roomy, recompute, swapping = json.loads(path.read_text())["results"]
    assert [each["name"] for each in (roomy, recompute, swapping)] == ["roomy", "recompute", "swap"]
    assert (roomy["preemptions"], roomy["tokens_again"], roomy["tokens_computed"]) == (0, 0, 4 * 129)
    assert recompute["blocks"] == swapping["blocks"] < roomy["blocks"]
    assert min(recompute["preemptions"], swapping["preemptions"]) > 0
    assert all(each["seconds"] > 0 and each["cpu_seconds"] > 0 for each in (roomy, recompute, swapping))
    assert recompute["tokens_again"] > swapping["tokens_again"] == 0
    assert (recompute["blocks_out"], recompute["blocks_in"]) == (0, 0)
    assert 0 < swapping["blocks_in"] <= swapping["blocks_out"]
    assert "of them again" in capsys.readouterr().out


@pytest.mark.parametrize("options", [["--share", "0"], ["--requests", "0"], ["--model", "no/such folder"]])
def test_what_cannot_be_measured_is_refused(options, capsys):
    with pytest.raises(SystemExit):
        swap.main(options)
    assert "error:" in capsys.readouterr().err
