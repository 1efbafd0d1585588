from __future__ import annotations

import json

import kv_waste
import pytest
from harness import load_workload
from kv_waste import Limits, Snapshot, Waste
from tiny_checkpoint import write_tiny_checkpoint, write_workload


def test_waste_on_w2_is_within_the_limits_and_far_from_contiguous_reservations(tmp_path):
    report = tmp_path / "waste.json"
    assert kv_waste.main(["--json", str(report)]) == 0
    results = {each["block_size"]: each for each in json.loads(report.read_text())["results"]}
    assert set(results) == {8, 16, 32, 64}
    assert results[16]["paged"] < 0.06
    assert results[8]["paged"] < 0.04
    for each in results.values():
        assert each["paged"] < each["exact"] < each["longest"]


def test_a_missed_limit_is_reported_and_fails(monkeypatch, capsys):
    monkeypatch.setitem(kv_waste.LIMITS, 16, 0.01)
    assert kv_waste.main(["--block-sizes", "16"]) == 1
    assert "MISSED" in capsys.readouterr().out


def test_a_sequence_holds_no_block_before_it_needs_it(tmp_path):
    """Two requests, blocks of 4, one token a step once the prompts of 3 and 5 tokens are computed."""
    workload = load_workload(write_workload(tmp_path, [(3, 4), (5, 2)]))
    steps = list(kv_waste.scheduled_steps(workload, 4, Limits(32, 8, 16)))
    assert steps == [
        # computed: 3 and 5; then 4 and the other done; 5; done
        Snapshot(allocated=4 + 8, filled=8, tokens=8, longest=64, exact=7 + 7),
        Snapshot(allocated=4, filled=4, tokens=4, longest=32, exact=7),
        Snapshot(allocated=8, filled=5, tokens=5, longest=32, exact=7),
        Snapshot(allocated=0, filled=0, tokens=0, longest=0, exact=0),
    ]


def test_averages_over_steps_count_steps_or_slots():
    waste = Waste.of(4, [Snapshot(4, 2, 2, 40, 10), Snapshot(12, 12, 14, 40, 20), Snapshot(0, 0, 0, 0, 0)])
    assert waste.paged == pytest.approx((0.5 + 0) / 2)
    assert waste.paged_weighted == pytest.approx(2 / 16)
    assert waste.longest == pytest.approx((38 / 40 + 26 / 40) / 2)
    assert waste.exact == pytest.approx((8 / 10 + 6 / 20) / 2)
    assert (waste.steps, waste.peak_allocated, waste.peak_longest, waste.peak_exact) == (3, 12, 40, 20)


def test_the_engine_wastes_exactly_what_the_schedule_says(tmp_path):
    model = write_tiny_checkpoint(tmp_path / "model")
    workload = load_workload(write_workload(tmp_path, [(9, 5), (20, 3), (2, 12), (33, 7)]))
    limits = Limits(max_model_len=64, max_num_seqs=3, max_num_batched_tokens=16)
    scheduled = list(kv_waste.scheduled_steps(workload, 4, limits))
    assert list(kv_waste.engine_steps(workload, 4, limits, str(model), "bfloat16")) == scheduled


@pytest.mark.parametrize("sizes", ["0", "eight", "16,-1"])
def test_block_sizes_that_cannot_be_are_refused(sizes, capsys):
    with pytest.raises(SystemExit):
        kv_waste.main([f"--block-sizes={sizes}"])
    assert sizes.split(",")[-1] in capsys.readouterr().err


def test_an_unknown_workload_names_the_known_ones(capsys):
    with pytest.raises(SystemExit):
        kv_waste.main(["--workload", "W9"])
    message = capsys.readouterr().err
    assert "'W9'" in message
    assert "W1, " in message
    assert "W2, " in message


def test_a_workload_that_holds_nothing_between_steps_is_refused(tmp_path, capsys):
    with pytest.raises(SystemExit):
        kv_waste.main(["--workload", write_workload(tmp_path, [(3, 1), (4, 1)])])
    assert "more than one step" in capsys.readouterr().err
