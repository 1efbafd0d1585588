"""``BatchGenerator``: a replica, which adds outputs to batches of rows; and the form of rows and outputs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from jaxllm.batch.record import result_record
from jaxllm.batch.request import CHAT_FIELDS, parse_request
from jaxllm.errors import JaxLLMError, ParameterError
from jaxllm.inputs import Unusable
from jaxllm.outputs import RequestOutput
from jaxllm.sampling_params import SamplingParams

if TYPE_CHECKING:
    import pyarrow

    from jaxllm.llm import LLM

PROMPTS = ("prompt", "prompt_token_ids", "messages")
"""The columns of which each row has one."""
OUTPUT_COLUMNS = ("text", "outputs", "num_prompt_tokens", "num_cached_tokens", "prompt_logprobs", "error")
"""text: of the first sample. outputs, prompt_logprobs, error: as in results files (docs/batch.md)."""


class BatchGenerator:
    """A model in an actor: give it to ``Dataset.map_batches`` with ``batch_format="pyarrow"`` (``generate`` does).

    arguments: those of ``LLM``.
    """

    def __init__(self, model: str, sampling_params: SamplingParams | None = None, **arguments: Any) -> None:
        from jaxllm.llm import LLM

        check_llm_arguments(arguments)
        check_sampling_params(sampling_params)
        self._llm = LLM(model, **arguments)
        self._defaults = self._llm.get_default_sampling_params() if sampling_params is None else sampling_params

    def __call__(self, batch: pyarrow.Table) -> pyarrow.Table:
        """The rows with ``OUTPUT_COLUMNS``, in their order."""
        check_columns(batch.column_names)
        rows = batch.select([name for name in batch.column_names
                             if name in (*PROMPTS, *CHAT_FIELDS, "sampling_params")]).to_pylist()
        requests = [read_row(row, self._defaults, self._llm) for row in rows]
        outputs = self._llm.generate([prompt for prompt, _ in requests], [params for _, params in requests],
                                     use_tqdm=False)
        return add_outputs(batch, outputs)


def check_llm_arguments(arguments: Mapping[str, Any]) -> None:
    """``ParameterError`` for what replicas may not be given."""
    if arguments.get("seed") is not None:
        raise ParameterError("seed", arguments["seed"], "None: with one for all replicas, their rows would share their "
                             "noise; give rows seeds of their own, in sampling_params")


def check_sampling_params(params: object) -> None:
    """``params`` is ``None`` or a ``SamplingParams``."""
    if params is not None and not isinstance(params, SamplingParams):
        raise ParameterError("sampling_params", params, "a SamplingParams, or None")


def check_columns(names: list[str]) -> None:
    """The data set has a column of prompts, and none that an output would replace."""
    if not set(PROMPTS) & set(names):
        raise ParameterError("dataset", names, f"a data set with a column of {', '.join(PROMPTS)}")
    for name in OUTPUT_COLUMNS:
        if name in names:
            raise ParameterError("dataset", names, f"no column {name!r}, which the outputs need: rename_columns")


def read_row(row: Mapping[str, Any], defaults: SamplingParams, llm: LLM) -> tuple[Any, SamplingParams]:
    """A row's prompt and sampling parameters; where it is wrong, an ``Unusable`` that says why."""
    given = {name: _plain(value) for name, value in row.items() if value is not None}
    try:
        params = given.pop("sampling_params", {})
        fields = json.loads(params) if isinstance(params, str) else params
        if not isinstance(fields, dict):
            raise ParameterError("sampling_params", params, "a struct, or the text of a JSON object")
        if sum(name in given for name in PROMPTS) != 1:
            raise ParameterError("prompt", given.get("prompt"), f"exactly one of {', '.join(PROMPTS)}")
        if "prompt_token_ids" in given:
            given["prompt"] = given.pop("prompt_token_ids")
        for name in ("prompt", "messages"):
            if name in fields:
                raise ParameterError(f"sampling_params.{name}", fields[name], "a column of its own")
        request = parse_request({**fields, **given}, defaults)
        return request.encoded(llm), request.params
    except json.JSONDecodeError as error:
        return Unusable(ParameterError("sampling_params", params, f"the text of a JSON object: {error}")), defaults
    except JaxLLMError as error:
        return Unusable(error), defaults


def add_outputs(batch: pyarrow.Table, outputs: list[RequestOutput]) -> pyarrow.Table:
    """The table with ``OUTPUT_COLUMNS``, whose types are the same for every batch."""
    import pyarrow

    types = _types()
    columns: dict[str, list[Any]] = {name: [] for name in OUTPUT_COLUMNS}
    for output in outputs:
        record = result_record(0, None, "", "", output=output)
        for sample in record["outputs"]:
            reason = sample["stop_reason"]
            sample["stop_reason"] = reason if reason is None else str(reason)
        record["text"] = record["outputs"][0]["text"] if record["outputs"] else None
        for name, values in columns.items():
            values.append(record.get(name))
    for name, values in columns.items():
        batch = batch.append_column(name, pyarrow.array(values, types[name]))
    return batch


def _types() -> dict[str, pyarrow.DataType]:
    import pyarrow as pa

    entry = [("token_id", pa.int32()), ("token", pa.string()), ("logprob", pa.float64()), ("rank", pa.int32()),
             ("raw_logprob", pa.float64())]
    logprobs = pa.list_(pa.struct([*entry, ("top", pa.list_(pa.struct(entry)))]))
    sample = pa.struct([
        ("index", pa.int32()), ("text", pa.string()), ("token_ids", pa.list_(pa.int32())),
        ("finish_reason", pa.string()), ("stop_reason", pa.string()), ("seed", pa.int64()),
        ("logprobs_mode", pa.string()), ("cumulative_logprob", pa.float64()), ("logprobs", logprobs),
        ("kept_mass", pa.list_(pa.float64()))])
    error = pa.struct([("type", pa.string()), ("message", pa.string()), ("parameter", pa.string())])
    return {"text": pa.string(), "outputs": pa.list_(sample), "num_prompt_tokens": pa.int32(),
            "num_cached_tokens": pa.int32(), "prompt_logprobs": logprobs, "error": error}


def _plain(value: Any) -> Any:
    """A value as JSON would have it: Arrow fills a struct's missing fields with null, and gives tensors as NumPy's."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value


__all__ = ["OUTPUT_COLUMNS", "BatchGenerator", "add_outputs", "check_columns", "read_row"]
