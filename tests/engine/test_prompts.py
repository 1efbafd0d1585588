"""What a prompt can be; what it cannot is refused by name."""

from __future__ import annotations

import numpy as np
import pytest
from tokenization.conftest import smollm2, smollm2_metadata  # noqa: F401

from jaxllm.engine.prompts import encode_prompt
from jaxllm.errors import ParameterError


def test_a_prompt_of_text_and_ids_is_its_ids(smollm2):  # noqa: F811
    assert encode_prompt("hi", smollm2) == ("hi", smollm2.encode("hi"))
    assert encode_prompt({"prompt": "hi"}, smollm2) == ("hi", smollm2.encode("hi"))
    assert encode_prompt({"prompt": "hi", "prompt_token_ids": [1, 2]}, smollm2) == ("hi", [1, 2])
    assert encode_prompt({"prompt": None, "prompt_token_ids": (1, 2)}, None) == (None, (1, 2))
    assert encode_prompt(np.array([1, 2]), None)[1].tolist() == [1, 2]


@pytest.mark.parametrize(("prompt", "parameter"), [
    ("\ud800", "prompt"), ({"prompt": "a\udfff"}, "prompt"), ({"prompt": 5}, "prompt"), ({"prompt": None}, "prompt"),
    ({"prompt": 5, "prompt_token_ids": [1]}, "prompt"), ({"prompt_token_ids": "ab"}, "prompt_token_ids"),
    ({}, "prompt"), ({5: "a"}, "prompt"), (b"ab", "prompt"), (bytearray(b"ab"), "prompt"), (None, "prompt"),
    (memoryview(b"ab"), "prompt"), ({1, 2}, "prompt"), (iter([1, 2]), "prompt"), (1.0, "prompt"),
])
def test_what_is_no_prompt_is_refused_by_name(smollm2, prompt, parameter):  # noqa: F811
    with pytest.raises(ParameterError) as caught:
        encode_prompt(prompt, smollm2)
    assert caught.value.parameter == parameter


def test_a_text_of_no_tokens_is_refused_as_it_was_given(smollm2):  # noqa: F811
    for prompt in ("", {"prompt": ""}):
        with pytest.raises(ParameterError, match="prompt='' is not allowed: a text of at least one token"):
            encode_prompt(prompt, smollm2)
