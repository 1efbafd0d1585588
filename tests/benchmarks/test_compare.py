"""``compare.py`` with engines that run no model: who runs when, what is compared, what becomes of failures."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import time
from pathlib import Path

import compare
import compare_runs
import pytest
import tabulate
from compare_rows import ROWS, judge
from compare_runs import PLANS, START, Results, Session, compare_workload
from harness import load_workload
from peers import engines as known
from peers.engines import (
    BLOCKS,
    HF,
    LLAMACPP,
    LLAMACPP_Q4,
    OPENVINO,
    OPENVINO_Q4,
    ORT,
    OURS,
    PEER_MODELS,
    PLAIN,
    VLLM,
    WIDE,
    EngineSpec,
    find_engines,
)
from peers.processes import stat
from tiny_checkpoint import write_tiny_checkpoint, write_workload

from jaxllm.weights.packaged import find_packaged

FAKE = str(Path(__file__).parent / "fake_engine.py")
PEERS = str(Path(known.__file__).parent)


def fake(name, per_token, **options):
    return EngineSpec(name, f"fake {name}", Path(sys.executable), FAKE, {"per_token": per_token, **options},
                      {"PYTHONPATH": PEERS})


def specs_of(*fakes):
    """The fakes in place of all other engines, which are missing."""
    absent = find_engines(None, PEER_MODELS[0], "float32")
    return {**{name: dataclasses.replace(spec, missing=spec.missing or "not in this test")
               for name, spec in absent.items()}, **{spec.name: spec for spec in fakes}}


@pytest.fixture
def measured(tmp_path):
    """Run workloads on fakes: ``measured(["W1"], fake(...), repeat=2)`` gives results and engines."""
    def run(workloads, *fakes, repeat=2, timeout=30, **options):
        specs = specs_of(*fakes)
        return compare.run(workloads, list(specs), specs, repeat, tmp_path, timeout, **options), specs
    return run


def wait_until_stopped(process):
    """The signal takes effect when the process is next scheduled, for which a busy machine may take a while."""
    deadline = time.monotonic() + 30
    while stat(process)[0] != "T":
        assert time.monotonic() < deadline, stat(process)[0]
        time.sleep(0.01)


def row(name, peer=None):
    return next(each for each in ROWS if each.name == name and (peer is None or each.theirs[0][0] == peer))


def test_what_is_measured_is_kept_after_each_workload(measured):
    kept = []
    measured(["W1", "W4"], fake(OURS, 0.01), keep=lambda results: kept.append({key[1] for key in results.runs}))
    assert kept == [{"W1"}, {"W1", "W4"}]


def test_speeds_are_those_that_the_engines_report(measured):
    results, _ = measured(["W1"], fake(OURS, 0.01), fake(HF, 0.02))
    for engine, per_token in ((OURS, 0.01), (HF, 0.02)):
        key = (engine, "W1", "cold")
        assert len(results.runs[key]) == 2
        assert results.median(key, "ttft") == pytest.approx(128 * per_token)
        assert results.median(key, "decode_rate") == pytest.approx(1 / per_token)
        assert results.median(key, "output_rate") == pytest.approx(1 / per_token)
        assert results.versions[engine] == "fake 1"


def test_engines_take_turns_and_begin_with_another_one_each_time(tmp_path, capsys):
    specs, results = specs_of(fake(OURS, 0.01), fake(HF, 0.02), fake(VLLM, 0.03)), Results()
    with Session(specs, tmp_path, 30, results) as session:
        compare_workload(session, results, "W1", [OURS, HF, VLLM], specs, 2)
    said = [line.split(": ")[1].split(",")[0] for line in capsys.readouterr().err.splitlines()]
    assert said == [OURS, HF, VLLM, HF, VLLM, OURS, VLLM, OURS, HF]


def test_a_row_is_met_by_its_floor_and_not_below(measured):
    results, specs = measured(["W1"], fake(OURS, 0.010), fake(HF, 0.013))
    verdict = judge(row("W1 decode tok/s"), results, specs)
    assert verdict.ratio == pytest.approx(1.3)
    results, specs = measured(["W1"], fake(OURS, 0.0101), fake(HF, 0.013))
    assert judge(row("W1 decode tok/s"), results, specs).met is False


def test_the_best_of_several_peers_counts_and_one_that_is_missing_is_named(measured):
    results, specs = measured(["W2"], fake(OURS, 0.01), fake(VLLM, 0.009), fake(OPENVINO, 0.012))
    verdict = judge(row("W2 output tok/s", VLLM), results, specs)
    assert (verdict.peer, verdict.met, verdict.why) == (VLLM, True, "")
    assert verdict.ratio == pytest.approx(0.9)
    against = judge(row("W2 output tok/s", LLAMACPP_Q4), results, specs)
    assert (against.met, against.ratio) == (None, None)
    assert f"{LLAMACPP_Q4}: neither --peers-root nor $PEERS_ROOT is given" in against.why


def test_cold_and_warm_runs_are_told_apart(measured):
    results, specs = measured(["W3"], fake(OURS, 0.01), fake(VLLM, 0.02))
    assert results.median((OURS, "W3", "warm"), "output_rate") == pytest.approx(200)
    assert judge(row("W3 output tok/s, first run"), results, specs).ratio == pytest.approx(2)
    assert judge(row("W3 output tok/s, second run"), results, specs).ratio == pytest.approx(2)


def test_sampling_is_held_against_its_own_greedy_speed_and_prompts_are_counted(measured):
    results, specs = measured(["W5"], fake(WIDE, 0.01))
    assert judge(row("W5 output tok/s, sampled/greedy"), results, specs).ratio == pytest.approx(1)
    once = judge(row("W5 tokens computed per prompt"), results, specs)
    prompts = sum(len(work.prompt) for work in load_workload("W5").requests)
    assert (once.ours, once.theirs, once.met) == (prompts, prompts, True)


def test_less_is_better_where_times_and_bytes_are_compared(measured):
    results, specs = measured(["W4"], fake(OURS, 0.02), fake(VLLM, 0.01))
    verdict = judge(row("W4 TTFT s"), results, specs)
    assert verdict.ratio == pytest.approx(0.5)
    assert verdict.met is False


def test_starts_are_timed_and_their_memory_is_read(measured, monkeypatch):
    monkeypatch.setattr(compare_runs, "FILL", "warm")
    results, specs = measured([START], fake(OURS, 0.01), fake(VLLM, 0.01), repeat=2)
    large, small = (results.runs[OURS, START, f"{gib} GiB"] for gib in compare_runs.KV_SIZES)
    assert (len(large), len(small)) == (2, 1)
    for run in [*large, *small]:
        assert run["first_token"] > 0
        assert run["peak_start"] > 1 << 20
    assert [("peak_batch" in run) for run in large] == [False, True]
    assert large[1]["peak_batch"] >= large[1]["peak_start"]
    assert judge(row("start to first token s"), results, specs).ratio > 0


@pytest.mark.parametrize(("mistakes", "said"), [
    ({"2": "dies"}, "ended with status 3"), ({"2": "raises"}, "ValueError: it went wrong"),
    ({"2": "stops early"}, "generated [127] tokens"), ({"2": "hangs"}, "did not answer within 2 s"),
])
def test_an_engine_that_fails_is_named_and_the_others_go_on(measured, mistakes, said):
    timeout = 2 if "hangs" in mistakes.values() else 30
    results, specs = measured(["W1"], fake(OURS, 0.01), fake(HF, 0.02, mistakes=mistakes), timeout=timeout)
    assert said in results.problems[HF, "W1"]
    assert len(results.runs[OURS, "W1", "cold"]) == 2
    assert said in judge(row("W1 decode tok/s"), results, specs).why


def test_an_engine_that_does_not_start_is_named(measured):
    results, _ = measured(["W1"], fake(OURS, 0.01), fake(HF, 0.02, refuses="no such model"))
    assert "RuntimeError: no such model" in results.problems[HF, "W1"]


def test_how_many_tokens_are_the_same_is_told(measured):
    results, _ = measured(["W1"], fake(OURS, 0.01), fake(HF, 0.02, token=8), fake(PLAIN, 0.01))
    assert results.agreement((HF, "W1", "cold")) == 0
    assert results.agreement((PLAIN, "W1", "cold")) == 1


def test_the_report_has_every_figure_row_and_reason(tmp_path, monkeypatch, capsys):
    specs = specs_of(fake(OURS, 0.01), fake(PLAIN, 0.02), fake(HF, 0.02, mistakes={"2": "raises"}))
    monkeypatch.setattr(compare, "find_engines", lambda *_: specs)
    path = tmp_path / "report.json"
    status = compare.main(["--workloads", "W1", "--quick", "--logs", str(tmp_path), "--json", str(path)])
    assert status == 1
    report, text = json.loads(path.read_text()), capsys.readouterr().out
    assert {(run["engine"], run["median"]["seconds"]) for run in report["runs"]} == {(OURS, 1.28), (PLAIN, 2.56)}
    assert [problem["engine"] for problem in report["problems"]] == [HF]
    assert {each["met"] for each in report["rows"]} == {None}
    assert tabulate.main([str(path)]) == 0
    table = capsys.readouterr().out
    assert "| W1 decode tok/s | 100 | hf-bf16 | - | - | 1.3 | not measured |" in table
    assert "| jaxllm-plain | 50.0 | - |" in table
    for part in ("100 %", "not measured", f"{VLLM}: vLLM", "MISSING: neither", f"{HF} FAILED at W1: ValueError"):
        assert part in text


@pytest.mark.parametrize("arguments", [
    ["--engines", "jaxllm,gpt"], ["--model", "gemma-3-27b"], ["--workloads", "W1,W77"], ["--repeat", "0"],
])
def test_bad_arguments_are_refused_before_any_engine_starts(arguments, monkeypatch, capsys):
    monkeypatch.setattr(compare, "run", lambda *_: pytest.fail("an engine was started"))
    with pytest.raises(SystemExit):
        compare.main(arguments)
    assert arguments[1].split(",")[-1] in capsys.readouterr().err


def test_what_a_missing_peer_lacks_is_named(tmp_path):
    (tmp_path / "venvs/hf/bin").mkdir(parents=True)
    (tmp_path / "venvs/hf/bin/python").touch()
    model = PEER_MODELS[0]
    found = find_engines(tmp_path, model, "bfloat16")
    assert found[HF].missing == f"there is no {tmp_path}/models/{model.folder}"
    (tmp_path / "models" / model.folder).mkdir(parents=True)
    assert find_engines(tmp_path, model, "bfloat16")[HF].missing is None
    assert "venvs/vllm/bin/python" in found[VLLM].missing
    assert "llama-server" in found[LLAMACPP_Q4].missing
    assert found[OURS].missing is None


@pytest.mark.parametrize("model", PEER_MODELS, ids=lambda model: model.name)
def test_all_engines_run_the_model_that_was_asked_for(model, tmp_path):
    """And jaxllm knows it by that name."""
    found = find_engines(tmp_path, model, "bfloat16")
    places = {HF: model.folder, VLLM: model.folder, OPENVINO: model.openvino, OPENVINO_Q4: model.openvino_q4,
              LLAMACPP: model.gguf_bf16, LLAMACPP_Q4: model.gguf, ORT: model.ort}
    assert {name: found[name].options["model"] for name in places} == {
        name: str(tmp_path / "models" / place) for name, place in places.items()}
    assert {spec.options["model"] for name, spec in found.items() if name not in places} == {model.name}
    assert find_packaged(model.name).name == model.name
    assert model.quantization in found[LLAMACPP_Q4].about
    assert found[BLOCKS].options["llm"]["quantization"] == "gguf"


def test_jaxllm_does_not_speculate_where_the_ids_are_no_text_of_the_model(capsys):
    smollm2, gemma = (find_engines(None, model, "bfloat16") for model in PEER_MODELS)
    for name in (OURS, BLOCKS, WIDE):
        assert "speculative_config" not in smollm2[name].options["llm"]
        assert gemma[name].options["llm"]["speculative_config"] is None
        assert "speculation off" in gemma[name].about
    assert smollm2[PLAIN].options["llm"]["speculative_config"] is None
    assert compare.chosen_workloads(None, PEER_MODELS[0]) == [*PLANS, START]
    assert compare.chosen_workloads(None, PEER_MODELS[1]) == [name for name in [*PLANS, START] if name != "W1r"]
    with pytest.raises(ValueError, match="W1r measures speculation on text"):
        compare.chosen_workloads("W1,W1r", PEER_MODELS[1])


@pytest.mark.parametrize("name", ["gemma-3-270m", "Gemma-3-270M"])
def test_the_report_names_the_model_and_judges_it_by_the_same_rows(name, tmp_path, monkeypatch, capsys):
    asked = []

    def find(root, model, dtype):
        asked.append(model.name)
        return specs_of(fake(OURS, 0.01), fake(HF, 0.02))

    monkeypatch.setattr(compare, "find_engines", find)
    path = tmp_path / "report.json"
    assert compare.main(["--model", name, "--workloads", "W1", "--quick", "--logs", str(tmp_path),
                         "--json", str(path)]) == 0
    report = json.loads(path.read_text())
    assert (asked, report["model"]) == (["gemma-3-270m"], "gemma-3-270m")
    assert [each["row"] for each in report["rows"]] == [each.name for each in ROWS if each.ours[1] == "W1"]
    assert report["rows"][0]["met"] is True
    assert "gemma-3-270m, medians of 1 runs" in capsys.readouterr().out


def test_the_workloads_ids_are_in_every_models_vocabulary():
    """They are of SmolLM2's 49,152; Gemma 3 has 262,144."""
    largest = max(token for name in PLANS for work in load_workload(name).requests for token in work.prompt)
    assert largest < 49_152


def test_engines_are_paused_while_another_has_its_turn(tmp_path):
    with Session(specs_of(fake(OURS, 0.01), fake(HF, 0.01)), tmp_path, 30, Results()) as session:
        with session.turn(OURS) as worker:
            first = worker.process
        with session.turn(HF) as worker:
            wait_until_stopped(first)
            second = worker.process
            worker.generate(load_workload("W1"))
        with session.turn(OURS) as worker:
            assert worker.process == first
            wait_until_stopped(second)
            worker.generate(load_workload("W1"))


def test_no_process_outlives_a_worker(tmp_path):
    specs, results = specs_of(fake(OURS, 0.01, mistakes={"1": "hangs"})), Results()
    with Session(specs, tmp_path, 1, results) as session:
        worker = session.start(OURS)
        with pytest.raises(compare_runs.EngineFailed):
            worker.generate(load_workload("W1"))
        with pytest.raises(ProcessLookupError):
            os.kill(worker.process, 0)


def test_the_driver_of_jaxllm_runs_the_model(tmp_path):
    """Cold and warm, greedy and with samples, counted tokens, a chosen implementation, a known first step."""
    model = write_tiny_checkpoint(tmp_path / "model")
    shared = load_workload(write_workload(tmp_path, [(20, 3), (24, 1), (21, 4)], prefix=17))
    sizes = {"dtype": "float32", "max_num_seqs": 4, "max_num_batched_tokens": 32, "block_size": 8,
             "kv_cache_bytes": 200_000}
    options = {"model": str(model), "llm": sizes, "implementation": "xla", "first_tokens": 20}
    spec = EngineSpec(OURS, "tiny", Path(sys.executable), "drive_jaxllm.py", options)
    with Session({OURS: spec}, tmp_path, 120, Results()) as session, session.turn(OURS) as worker:
        cold, warm = worker.generate(shared), worker.generate(shared, cold=False)
        assert cold["tokens"] == warm["tokens"]
        assert cold["computed"] > warm["computed"] >= 3
        sampled = worker.generate(shared, sampling={"n": 2, "temperature": 1.0, "seed": 1})
        assert [len(tokens) for tokens in sampled["tokens"]] == [3, 1, 4]
        for answer in (cold, sampled):
            assert all(0 < first <= last <= answer["seconds"] for first, last in
                       zip(answer["first"], answer["last"], strict=True))


def test_every_workload_has_a_row():
    assert {each.ours[1] for each in ROWS} == {*PLANS, START}
