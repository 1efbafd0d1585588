from __future__ import annotations

import pytest

from jaxllm.engine.request import Request
from jaxllm.engine.stopping import check_stop
from jaxllm.sampling_params import SamplingParams


def run(tokens: list[int], *, max_model_len: int = 20, **params: object) -> tuple[int, str | None, int | None]:
    """(tokens generated, finish reason, stop reason) when these tokens are dictated; 7 and 8 end the sequence."""
    request = Request("r", [1, 2], SamplingParams(**params), max_model_len=max_model_len, eos_token_ids=[7, 8])  # type: ignore[arg-type]
    (sequence,) = request.sequences
    for token in tokens:
        sequence.append(token)
        reason, stop_reason = check_stop(sequence, token)
        if reason is not None:
            return sequence.num_output, reason, stop_reason
    return sequence.num_output, None, None


@pytest.mark.parametrize("eos", [7, 8])
def test_each_of_the_models_end_of_sequence_ids_stops(eos: int) -> None:
    assert run([3, eos, 4]) == (2, "stop", None)


def test_ignore_eos_runs_to_max_tokens_over_every_end_of_sequence_id() -> None:
    assert run([7, 8, 7, 8, 7], ignore_eos=True, max_tokens=4) == (4, "length", None)


def test_a_stop_id_is_its_own_reason() -> None:
    assert run([3, 5, 4], stop_token_ids=[5]) == (2, "stop", 5)


def test_an_end_of_sequence_id_asked_for_as_stop_id_stops_despite_ignore_eos() -> None:
    assert run([3, 7, 4], stop_token_ids=[7], ignore_eos=True) == (2, "stop", 7)
    assert run([3, 7, 4], stop_token_ids=[7]) == (2, "stop", None)


@pytest.mark.parametrize("stop", [7, 8, 5])
def test_nothing_stops_before_min_tokens(stop: int) -> None:
    assert run([stop] * 9, min_tokens=5, stop_token_ids=[5])[:2] == (6, "stop")


def test_min_tokens_does_not_extend_max_tokens() -> None:
    assert run([7] * 9, min_tokens=5, max_tokens=5) == (5, "length", None)


def test_a_last_allowed_token_that_stops_counts_as_a_stop() -> None:
    assert run([3, 7], max_tokens=2) == (2, "stop", None)
    assert run([3, 3], max_tokens=2) == (2, "length", None)


def test_without_max_tokens_the_context_is_filled() -> None:
    assert run([3] * 50) == (18, "length", None)
    assert run([3] * 50, max_model_len=3) == (1, "length", None)
