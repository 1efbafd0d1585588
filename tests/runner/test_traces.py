"""After the warm-up nothing is traced or compiled again, whatever the batches ask for."""

from __future__ import annotations

import pytest
from conformance.matrix import make_llm, run_mix
from mixes import mixed_requests
from support import run, tiny_engine
from tiny_folder import write_tiny_folder


def _check(batches, first_seed):
    engine = tiny_engine(max_num_batched_tokens=32)
    engine.compile_all()
    programs = engine._runner.programs
    traces, executables = dict(programs.traces), programs.num_executables
    assert executables == len(programs.all_keys())
    assert str(executables) in programs.formula()
    for seed in range(first_seed, first_seed + batches):
        outputs = run(engine, mixed_requests(5, seed))
        assert not any(output.error for output in outputs)
    assert dict(programs.traces) == traces
    assert programs.num_executables == executables


@pytest.mark.case(39)
def test_no_trace_after_the_warm_up_over_random_batches():
    _check(20, 1000)


@pytest.mark.sweep
def test_no_trace_after_the_warm_up_over_200_random_batches():
    _check(200, 2000)


def test_grammars_processors_and_whole_vocabularies_are_compiled_once(tmp_path):
    llm = make_llm(write_tiny_folder(tmp_path / "model"), "float32", max_num_batched_tokens=32)
    llm.warm_up()
    programs = llm.engine._runner.programs
    traces = dict(programs.traces)
    assert programs.num_executables == len(programs.all_keys())
    outputs = [output for seed in range(100, 120) for output in run_mix(llm, seed)]
    assert dict(programs.traces) == traces
    assert any(sample["mass"] for output in outputs for sample in output["samples"])
