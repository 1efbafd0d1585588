"""Errors are what they were after copying and pickling, as process pools and retry libraries do to them."""

from __future__ import annotations

import copy
import pickle

import pytest

from jaxllm.errors import CapacityError, EngineError, ParameterError, RequestError
from jaxllm.outputs import OutputError, RequestOutput

FAILED = RequestOutput("request-3", "a", [1], [], error=OutputError("EngineError", "no token", None))
ERRORS = [ParameterError("n", 0, "an integer >= 1"), CapacityError("too small"), EngineError("gone"),
          RequestError(FAILED)]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("remake", [copy.copy, copy.deepcopy, lambda error: pickle.loads(pickle.dumps(error))])
def test_a_remade_error_says_and_holds_the_same(error, remake):
    made = remake(error)
    assert type(made) is type(error)
    assert str(made) == str(error)
    assert made.__dict__ == error.__dict__


def test_messages_name_parameter_value_and_what_is_allowed():
    assert str(ERRORS[0]) == "n=0 is not allowed: an integer >= 1"
    assert str(ERRORS[-1]) == "request-3: EngineError: no token"
