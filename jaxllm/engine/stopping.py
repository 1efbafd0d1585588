"""When a sample ends by its tokens or its length; stop strings, which need text, are the detokenizer's."""

from __future__ import annotations

from jaxllm.engine.request import Request, Sequence
from jaxllm.outputs import FinishReason


def may_stop(sequence: Sequence) -> bool:
    """Whether the newest token may end the sample by what it is: the first ``min_tokens`` tokens may not.

    The device masks stop ids for the same tokens: output token number ``min_tokens + 1`` is the first that can be one.
    """
    return sequence.num_output > sequence.params.min_tokens


def stop_reason_of(request: Request, token: int) -> int | None:
    """The stop reason of a request that one of its stop ids ends: none for end of sequence, else the id."""
    ends_sequence = token in request.eos_token_ids and not request.params.ignore_eos
    return None if ends_sequence else token


def check_stop(sequence: Sequence, token: int) -> tuple[FinishReason | None, int | None]:
    """Whether ``token``, just appended, ends the sample: (finish reason, stop reason), both ``None`` to go on.

    End of sequence (any of the model's ids, unless ``ignore_eos``) has no stop reason; a stop id is its own. Both come
    before the length, so that a sample whose last allowed token is one of them counts as complete; so does a grammar's
    complete text, which at the length, or where the model has no end of sequence, ends without one.
    """
    request = sequence.request
    if token in request.stop_ids and may_stop(sequence):
        return "stop", stop_reason_of(request, token)
    # max_tokens never exceeds the room that max_model_len leaves.
    at_length = sequence.num_tokens >= sequence.max_length
    if (at_length or not request.eos_token_ids) and sequence.constraint is not None and sequence.constraint.complete:
        return "stop", None
    if at_length:
        return "length", None
    return None, None
