"""What counts as an integer, as token ids and as biases."""

from __future__ import annotations

import numpy as np
import pytest

from jaxllm.checks import as_integer, check_integer, checked_logit_bias, checked_token_ids
from jaxllm.errors import ParameterError

NO_INTEGERS = [
    True, np.True_, 1.0, np.float32(1), "1", None, [], np.zeros(2, int), np.zeros((1, 1), int), object(), int]


@pytest.mark.parametrize("value", [1, np.int8(1), np.uint64(1), np.array(1)])
def test_integers_are_pythons_and_numpys(value):
    assert as_integer(value) == 1
    assert type(as_integer(value)) is int
    check_integer("x", value, 1, 1)
    assert checked_token_ids("x", [value]) == (1,)
    with pytest.raises(ParameterError, match="integer >= 2"):
        check_integer("x", value, 2)
    with pytest.raises(ParameterError, match="<= 0"):
        check_integer("x", value, None, 0)


@pytest.mark.parametrize("value", NO_INTEGERS)
def test_what_is_no_integer_is_refused_by_name(value):
    with pytest.raises(ParameterError, match="name="):
        check_integer("name", value, None)
    with pytest.raises(ParameterError, match="name="):
        checked_token_ids("name", [value])


@pytest.mark.parametrize("key", [None, -1, "x", "-1", 1.5, (1, 2)])
def test_biases_are_of_token_ids(key):
    with pytest.raises(ParameterError, match="logit_bias"):
        checked_logit_bias({key: 1.0})
    assert checked_logit_bias({np.int32(3): 1, "4": 2}) == {3: 1.0, 4: 2.0}
