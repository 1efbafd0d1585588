"""Environment variables that nothing reads are refused, with the name that was meant."""

from __future__ import annotations

import pytest

from jaxllm import LLM, ParameterError
from jaxllm.environment import VARIABLES, check_environment


@pytest.mark.parametrize(("name", "answer"), [
    ("JAXLLM_CACHE_BYTES", r"; did you mean JAXLLM_COMPILATION_CACHE_BYTES\?"),
    ("JAXLLM_DEBUGG", r"; did you mean JAXLLM_DEBUG\?"),
    ("JAXLLM_XYZ", ""),
])
def test_a_variable_that_is_not_read_is_an_error_that_says_what_is(monkeypatch, name, answer):
    monkeypatch.setenv(name, "1")
    with pytest.raises(ParameterError, match=rf"^{name}='1' is not allowed: jaxllm reads .*, JAXLLM_DEBUG{answer}$"):
        LLM("there is no such model")


def test_those_that_are_read_are_not(monkeypatch):
    for name in VARIABLES:
        monkeypatch.setenv(name, "1")
    check_environment()
