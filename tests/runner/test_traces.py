"""After the warm-up nothing is traced or compiled again, whatever the batches ask for."""

from __future__ import annotations

import pytest
from mixes import mixed_requests
from support import run, tiny_engine


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
