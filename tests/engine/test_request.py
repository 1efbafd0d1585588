from __future__ import annotations

import numpy as np
import pytest

from jaxllm.engine.integrity import IntegrityError
from jaxllm.engine.request import Request, prompt_array
from jaxllm.errors import ParameterError
from jaxllm.sampling_params import SamplingParams


def make(prompt: object = (1, 2, 3), *, max_model_len: int = 10, **params: object) -> Request:
    return Request(
        "r", prompt, SamplingParams(**params), max_model_len=max_model_len, eos_token_ids=[7, 8], vocab_size=100  # type: ignore[arg-type]
    )


def test_max_tokens_defaults_to_the_room_left_and_never_exceeds_it() -> None:
    assert make().max_tokens == 7
    assert make(max_tokens=3).max_tokens == 3
    assert make(max_tokens=1000).max_tokens == 7


def test_a_prompt_one_shorter_than_max_model_len_has_room_for_one_token() -> None:
    assert make(range(9)).max_tokens == 1


@pytest.mark.parametrize("length", [10, 11])
def test_a_prompt_without_room_for_a_token_is_refused_naming_both_lengths(length: int) -> None:
    with pytest.raises(ParameterError, match=f"{length}.*max_model_len=10"):
        make(range(length))


NO_TOKEN_IDS = [[], np.array([], np.int32), (), [100], [-1], [2**40], [1.0], [True], [[1, 2]], [[1], [2, 3]], ["a"]]


@pytest.mark.parametrize("prompt", NO_TOKEN_IDS)
def test_prompts_that_are_no_token_ids_are_refused(prompt: object) -> None:
    with pytest.raises(ParameterError, match="prompt"):
        make(prompt)


def test_ids_beyond_int32_are_refused_without_a_vocabulary_too() -> None:
    with pytest.raises(ParameterError, match="prompt_token_ids"):
        prompt_array([2**31], max_model_len=10)


@pytest.mark.parametrize("dtype", [np.int64, np.uint16, np.int32])
def test_the_prompt_is_a_private_read_only_copy(dtype: type) -> None:
    given: np.ndarray = np.array([1, 2, 3], dtype)
    request = make(given)
    given[0] = 9
    assert request.prompt_token_ids.tolist() == [1, 2, 3]
    assert request.prompt_token_ids.dtype == np.int32
    with pytest.raises(ValueError, match="read-only"):
        request.prompt_token_ids[0] = 5


def test_a_seed_is_kept_or_drawn_from_the_operating_system() -> None:
    assert make(seed=5).seed == 5
    drawn = {make().seed for _ in range(20)}
    assert len(drawn) == 20
    assert all(0 <= seed < 2**63 for seed in drawn)


def test_stop_ids_are_all_that_may_end_a_sample() -> None:
    assert make().stop_ids == {7, 8}
    assert make(stop_token_ids=[5]).stop_ids == {5, 7, 8}
    assert make(stop_token_ids=[5], ignore_eos=True).stop_ids == {5}
    assert make(stop_token_ids=[7], ignore_eos=True).stop_ids == {7}


def test_samples_share_the_prompt_until_they_append() -> None:
    first, second = make(n=2).sequences
    assert np.shares_memory(first.token_ids, second.token_ids)
    first.append(4)
    assert not np.shares_memory(first.token_ids, second.token_ids)
    assert second.token_ids.tolist() == [1, 2, 3]
    assert first.token_ids.tolist() == [1, 2, 3, 4]
    assert first.output_token_ids.tolist() == [4]
    assert (first.num_output, first.last_token) == (1, 4)


def test_appending_copies_rarely_and_reserves_no_more_than_max_tokens() -> None:
    (sequence,) = make(range(3), max_model_len=10_003).sequences
    buffers = set()
    for token in range(10_000):
        sequence.append(token)
        assert sequence.token_ids.base is not None
        buffers.add(sequence.token_ids.base.size)
    assert sequence.output_token_ids.tolist() == list(range(10_000))
    assert len(buffers) < 10
    assert max(buffers) == 10_003


def test_only_sample_0_reports_prompt_logprobs_and_only_until_it_has_generated() -> None:
    first, second = make(n=2, prompt_logprobs=0).sequences
    assert first.wants_prompt_logprobs
    assert not second.wants_prompt_logprobs
    first.append(1)
    assert not first.wants_prompt_logprobs
    assert not make().sequences[0].wants_prompt_logprobs


def test_using_the_slot_of_a_sequence_without_one_is_a_bug_with_a_name() -> None:
    with pytest.raises(IntegrityError, match="has no slot"):
        _ = make().sequences[0].held_slot
