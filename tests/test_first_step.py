"""What is compiled for a first step is all that a request like it needs."""

from __future__ import annotations

import pytest
from support import greedy, run, tiny_engine

from jaxllm.first_step import FirstStep
from jaxllm.sampling_params import SamplingParams


@pytest.mark.parametrize("params", [greedy(3), SamplingParams(temperature=1.0, seed=1, max_tokens=3),
                                    greedy(3, repetition_penalty=1.3)], ids=["greedy", "sampled", "penalty"])
def test_a_first_request_compiles_nothing_more(params):
    engine = tiny_engine(speculative_config=None)
    programs = engine._runner.programs
    for key in FirstStep(5, params).keys(programs):
        programs.compile(key)
    expected = programs.num_executables
    run(engine, [([9, 10, 11, 12, 13], params)])
    assert programs.num_executables == expected
