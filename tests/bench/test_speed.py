from __future__ import annotations

import pytest
from tiny_folder import write_tiny_folder

from jaxllm import LLM, ParameterError
from jaxllm.bench import measure_speed

SIZES = {"max_num_seqs": 4, "max_num_batched_tokens": 32, "max_model_len": 64, "block_size": 8, "dtype": "float32"}


@pytest.fixture(scope="module")
def llm(tmp_path_factory):
    return LLM(write_tiny_folder(tmp_path_factory.mktemp("bench") / "tiny"), skip_tokenizer_init=True, **SIZES)


def test_a_run_is_what_was_asked_for(llm):
    before = llm.stats()
    speed = measure_speed(llm, requests=3, prompt_tokens=20, output_tokens=5, repeat=2)
    after = llm.stats()
    # An untimed run and two more, none of which finds another's prompts in the cache.
    assert after.num_generated_tokens - before.num_generated_tokens == 3 * 3 * 5
    assert after.num_computed_tokens - before.num_computed_tokens == 3 * 3 * (20 + 4)
    assert 3 * speed.steps == after.num_steps - before.num_steps
    assert speed.output_rate == pytest.approx(15 / speed.seconds)
    assert speed.total_rate == pytest.approx(75 / speed.seconds)
    assert 0 < speed.ttft < speed.seconds
    assert speed.time_per_token > 0


def test_one_output_token_has_no_time_per_token(llm):
    assert measure_speed(llm, requests=1, prompt_tokens=4, output_tokens=1, repeat=1).time_per_token is None


@pytest.mark.parametrize(("changes", "named"), [
    ({"requests": 0}, "requests"), ({"repeat": 0}, "repeat"), ({"output_tokens": 0}, "output_tokens"),
    ({"prompt_tokens": 60}, "max_model_len=64"),
])
def test_numbers_that_cannot_be_are_refused(llm, changes, named):
    with pytest.raises(ParameterError, match=named):
        measure_speed(llm, **{"requests": 1, "prompt_tokens": 4, "output_tokens": 5, "repeat": 1, **changes})
