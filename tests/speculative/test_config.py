"""What may be asked of speculation, and what is refused by name."""

from __future__ import annotations

import numpy as np
import pytest

from jaxllm.errors import ParameterError
from jaxllm.speculative import SpeculativeConfig, read_speculative_config


@pytest.mark.parametrize(("given", "on_host", "expected"), [
    (None, True, None), (False, True, None), ("auto", False, None), ("auto", True, SpeculativeConfig()),
    ({}, False, SpeculativeConfig()), ({"method": "ngram"}, False, SpeculativeConfig()),
    (SpeculativeConfig(prompt_lookup_max=9), False, SpeculativeConfig(prompt_lookup_max=9)),
])
def test_it_is_on_where_it_is_asked_for_and_by_default_on_cpus(given, on_host, expected):
    assert read_speculative_config(given, on_host=on_host) == expected


@pytest.mark.parametrize(("bounds", "expected"), [
    ({"prompt_lookup_max": 6}, (2, 6)), ({"prompt_lookup_max": 1}, (1, 1)), ({"prompt_lookup_min": 7}, (7, 7)),
    ({"prompt_lookup_min": 3}, (3, 4)), ({"prompt_lookup_max": np.int64(1)}, (1, 1)),
    ({"prompt_lookup_max": 5, "prompt_lookup_min": None}, (2, 5)),
])
def test_a_bound_that_is_not_given_goes_along_with_the_other(bounds, expected):
    config = read_speculative_config(bounds, on_host=True)
    assert (config.prompt_lookup_min, config.prompt_lookup_max) == expected
    assert type(config.prompt_lookup_max) is int


@pytest.mark.parametrize(("given", "named"), [
    ({"method": "eagle"}, "eagle"),
    ({"method": "draft_model", "model": "x"}, "draft_model"),
    ({"model": "x"}, "'x'"),
    ({"model": "[ngram]"}, "ngram"),
    ({"method": "ngram", "model": "x"}, "model"),
    ({"disable_by_batch_size": 4}, "disable_by_batch_size"),
    ({"num_speculative_tokens": 0}, "num_speculative_tokens"),
    ({"num_speculative_tokens": "3"}, "num_speculative_tokens"),
    ({"num_speculative_tokens": True}, "num_speculative_tokens"),
    ({"prompt_lookup_max": 0}, "prompt_lookup_max"),
    ({"prompt_lookup_min": 33}, "['prompt_lookup_min']=33"),
    ({"prompt_lookup_min": 5, "prompt_lookup_max": 4}, "prompt_lookup_min"),
    ({"prompt_lookup_min": 0}, "prompt_lookup_min"),
    (True, "speculative_config"),
    ("ngram", "speculative_config"),
    (7, "speculative_config"),
    ([], "speculative_config"),
])
def test_what_is_not_there_is_refused_by_name(given, named):
    with pytest.raises(ParameterError, match="speculative_config") as caught:
        read_speculative_config(given, on_host=True)
    assert named in str(caught.value)
