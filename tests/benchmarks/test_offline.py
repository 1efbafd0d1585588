from __future__ import annotations

import json

import offline
import pytest
from tiny_checkpoint import write_tiny_checkpoint, write_workload

SIZES = ["--max-num-seqs", "4", "--max-num-batched-tokens", "32", "--block-size", "8", "--kv-cache-bytes", "200000",
         "--dtype", "bfloat16"]


def test_measures_each_workload_in_its_own_process_cold_and_with_a_warm_prefix_cache(tmp_path, capsys):
    model = write_tiny_checkpoint(tmp_path / "model")
    single = write_workload(tmp_path, [(12, 6)])
    shared = write_workload(tmp_path, [(20, 3), (24, 1), (21, 4)], prefix=17)
    report = tmp_path / "report.json"
    status = offline.main(["--model", str(model), "--workloads", f"{single},{shared}", "--repeat", "2", *SIZES,
                           "--json", str(report)])
    assert status == 0
    found = json.loads(report.read_text())
    assert found["failed"] == []
    first, second = found["results"]
    assert [len(each["passes"]) for each in (first, second)] == [1, 2]
    for result in (first, second):
        assert result["dtype"] == "bfloat16"
        assert result["engine"]["block_size"] == 8
        assert result["compiled_while_timed"] == 0
        start_up = result["start_up"]
        assert 0 < start_up["ready"] < start_up["first_token"]
        assert start_up["compiled"] + start_up["from_cache"] > 0
        assert result["peak_bytes"] > 50 << 20  # an interpreter with JAX takes more than that
        for each in result["passes"]:
            assert len(each["runs"]) == 2
            for run in each["runs"]:
                assert 0 < run["ttft"] <= run["seconds"]
                assert run["output_rate"] == pytest.approx(result["output_tokens"] / run["seconds"])
                tokens = result["output_tokens"] + result["prompt_tokens"]
                assert run["total_rate"] == pytest.approx(tokens / run["seconds"])
    # One stream: (n - 1) tokens from the first token to the last, which comes before generate returns.
    run = first["passes"][0]["runs"][0]
    assert run["decode_rate"] >= 5 / (run["seconds"] - run["ttft"])
    # 16 of the 17 shared tokens fill blocks; in the first pass the prompts may find each other's, never all of them.
    cold, warm = second["passes"]
    assert (cold["prefix_cache"], warm["prefix_cache"]) == ("cold", "warm")
    assert all(run["cached_tokens"] >= 3 * 16 for run in warm["runs"])
    assert all(run["cached_tokens"] <= 2 * 16 for run in cold["runs"])
    table = capsys.readouterr().out
    assert "tiny-3, warm prefix cache" in table
    assert "first token s" in table


def test_a_workload_that_fails_is_named_and_the_others_are_reported(tmp_path, capfd):
    model = write_tiny_checkpoint(tmp_path / "model")
    good, too_long = write_workload(tmp_path, [(5, 2)]), write_workload(tmp_path, [(250, 90), (3, 1)])
    report = tmp_path / "report.json"
    status = offline.main(["--model", str(model), "--workloads", f"{too_long},{good}", "--repeat", "1", *SIZES,
                           "--json", str(report)])
    assert status == 1
    found = json.loads(report.read_text())
    assert [each["workload"] for each in found["results"]] == ["tiny-1"]
    assert len(found["failed"]) == 1
    assert too_long in found["failed"][0]
    assert "not 90" in capfd.readouterr().err


def test_bad_arguments_are_refused_before_any_process_starts(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(offline, "measure_in_child", lambda *_: pytest.fail("a process was started"))
    for arguments in (["--workloads", "W1,W9"], ["--repeat", "0"], ["--workloads", str(tmp_path / "none.json")]):
        with pytest.raises(SystemExit):
            offline.main(arguments)
        assert arguments[1].split(",")[-1] in capsys.readouterr().err
