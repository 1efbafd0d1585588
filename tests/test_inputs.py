"""The forms in which prompts, parameters and priorities may be given."""

from __future__ import annotations

import numpy as np
import pytest

from jaxllm.errors import ParameterError
from jaxllm.inputs import Unusable, params_list, prompt_list, usable, with_priorities
from jaxllm.sampling_params import SamplingParams

ONE = SamplingParams(max_tokens=1)
TWO = SamplingParams(max_tokens=2)


@pytest.mark.parametrize(("given", "prompts"), [
    ("a", ["a"]), (["a"], ["a"]), ((1, 2), [[1, 2]]), ([[1, 2], "a"], [[1, 2], "a"]),
    ({"prompt": "a"}, [{"prompt": "a"}]), ((text for text in "ab"), ["a", "b"]), ([], []), (range(3), [[0, 1, 2]])])
def test_prompts_become_a_list(given, prompts):
    assert prompt_list(given) == prompts


@pytest.mark.parametrize("given", [{1, 2}, frozenset("ab"), b"ab", bytearray(b"ab"), memoryview(b"ab"), 5, None])
def test_what_has_no_order_or_is_no_list_of_prompts_is_refused(given):
    with pytest.raises(ParameterError, match="prompts="):
        prompt_list(given)


def test_parameters_are_one_for_all_or_one_each():
    assert params_list(None, 2, ONE) == params_list(ONE, 2, TWO) == [ONE, ONE]
    assert params_list((ONE, TWO), 2, ONE) == [ONE, TWO]
    for wrong in ([ONE], [ONE, ONE, ONE], [ONE, None], {"max_tokens": 1}, "ab", 5):
        with pytest.raises(ParameterError, match="sampling_params"):
            params_list(wrong, 2, ONE)


@pytest.mark.parametrize("numbers", [[3, -1, 3, 3], np.array([3, -1, 3, 3]), (number for number in (3, -1, 3, 3))])
def test_each_prompt_gets_its_priority_and_the_parameters_given_stay_as_they_are(numbers):
    found = with_priorities([ONE, ONE, ONE, TWO], numbers, "priority")
    assert [each.priority for each in found] == [3, -1, 3, 3]
    assert [each.max_tokens for each in found] == [1, 1, 1, 2]
    assert found[0] is found[2]
    assert ONE.priority == TWO.priority == 0


@pytest.mark.parametrize("numbers", ["12", 5, [1], [1, 2, 3], [1, 2.5], [1, None], [1, True], {1: 1, 2: 2}, b"ab"])
def test_priorities_that_are_not_one_integer_each_are_refused(numbers):
    with pytest.raises(ParameterError, match="priority"):
        with_priorities([ONE, TWO], numbers, "priority")


def test_priorities_need_the_policy():
    assert with_priorities([ONE], None, "fcfs") == [ONE]
    with pytest.raises(ParameterError, match="scheduling_policy='priority'"):
        with_priorities([ONE], [1], "fcfs")


def test_a_prompt_that_cannot_be_made_keeps_its_place():
    def make(source):
        if source == "bad":
            raise ParameterError("messages", source, "good ones")
        return source.upper()

    first, second = (usable(make, source) for source in ("a", "bad"))
    assert first == "A"
    assert isinstance(second, Unusable)
    assert second.error.parameter == "messages"
