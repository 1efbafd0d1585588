"""What a line of a results file holds. Names are those of ``RequestOutput`` and ``CompletionOutput``."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from jaxllm.outputs import CompletionOutput, Logprob, OutputError, RequestOutput, TokenLogprobs
from jaxllm.sampling_params import SamplingParams

Record = dict[str, Any]

FIRST_BYTES = b'{"line": '
"""How every line begins, so that what a killed process left of one can be told from a stranger's file."""
HEADER = {"line": int, "custom_id": str | None, "request": str, "defaults": str}
"""What says which request a result answers, with the types."""


def defaults_digest(defaults: SamplingParams) -> str:
    """16 hexadecimal digits that tell sampling parameters from others; fields at their defaults do not count."""
    plain = SamplingParams()
    changed = {field.name: _one_form(getattr(defaults, field.name)) for field in dataclasses.fields(defaults)
               if getattr(defaults, field.name) != getattr(plain, field.name)}
    text = json.dumps(changed, default=_as_json, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def result_record(number: int, custom_id: str | None, request: str, defaults: str, *,
                  output: RequestOutput | None = None, error: OutputError | None = None) -> Record:
    """A request's result: its output, or the error of one that never ran."""
    record: Record = {"line": number, "custom_id": custom_id, "request": request, "defaults": defaults}
    if output is None:
        return {**record, "outputs": [], "error": _error(error)}
    record |= {"num_prompt_tokens": len(output.prompt_token_ids), "num_cached_tokens": output.num_cached_tokens,
               "outputs": [_sample(sample) for sample in output.outputs]}
    if output.prompt_logprobs is not None:
        record["prompt_logprobs"] = logprob_records(output.prompt_token_ids, output.prompt_logprobs)
    return {**record, "error": _error(output.error)}


def error_of(error: Exception) -> OutputError:
    """An exception as a result shows it."""
    return OutputError(type(error).__name__, str(error), getattr(error, "parameter", None))


def encode(record: Record) -> bytes:
    """The line, its end included. No other character in it ends a line anywhere."""
    text = json.dumps(record, default=_as_json, ensure_ascii=False, allow_nan=False)
    for letter in "\x85\u2028\u2029":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    try:
        return f"{text}\n".encode()
    except UnicodeEncodeError:  # half a surrogate pair, which JSON can hold and UTF-8 cannot
        return f"{json.dumps(record, default=_as_json, allow_nan=False)}\n".encode("ascii")


def _error(error: OutputError | None) -> Record | None:
    return None if error is None else dataclasses.asdict(error)


def _sample(sample: CompletionOutput) -> Record:
    record: Record = {"index": sample.index, "text": sample.text, "token_ids": sample.token_ids,
                      "finish_reason": sample.finish_reason, "stop_reason": sample.stop_reason, "seed": sample.seed}
    if sample.logprobs is not None:
        record |= {"logprobs_mode": sample.logprobs_mode, "cumulative_logprob": _number(sample.cumulative_logprob),
                   "logprobs": logprob_records(sample.token_ids, sample.logprobs)}
    if sample.kept_mass is not None:
        record["kept_mass"] = sample.kept_mass
    return record


def logprob_records(token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs | None]) -> list[Record | None]:
    """Each position's token with its log-probability, and those of the most likely ones."""
    return [None if line is None else {**_entry(token, line[token]), "top": [
        _entry(other, entry) for other, entry in line.items()]}
        for token, line in zip(token_ids, logprobs, strict=False)]


def _entry(token_id: int, entry: Logprob) -> Record:
    record = {"token_id": token_id, "token": entry.decoded_token, "logprob": _number(entry.logprob),
              "rank": entry.rank}
    return record if entry.raw_logprob is None else {**record, "raw_logprob": _number(entry.raw_logprob)}


def _number(value: float | None) -> float | None:
    """JSON has no infinity."""
    return value if value is not None and math.isfinite(value) else None


def _one_form(value: Any) -> Any:
    """2.0 as 2, as which it compares equal."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _as_json(value: Any) -> Any:
    """What ``json`` cannot write by itself: NumPy's numbers, mappings that are no dicts, and dataclasses."""
    if isinstance(value, Mapping):
        return dict(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    return value.item()
