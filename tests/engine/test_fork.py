"""A forked process lacks JAX's threads: its copy of an engine says so instead of waiting for them forever."""

from __future__ import annotations

import os
import signal
import warnings

import pytest
from support import greedy, run, tiny_engine

from jaxllm.errors import EngineError

PATIENCE = 60


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.parametrize("call", [lambda engine: engine.step(), lambda engine: engine.add_request([9], greedy(2))])
def test_a_forked_engine_refuses_to_run_and_the_other_goes_on(call):
    engine = tiny_engine()
    run(engine, [([9, 10], greedy(2))])
    engine.add_request([9, 10], greedy(3))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python and JAX both warn of forking
        child = os.fork()
    if child == 0:
        signal.alarm(PATIENCE)
        try:
            call(engine)
        except EngineError as error:
            os._exit(0 if "forked" in str(error) else 1)
        finally:
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    while engine.has_unfinished():
        (output,) = engine.step()
    assert len(output.outputs[0].token_ids) == 3
