"""The options that several commands share, in groups, and the text forms of their values."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_type_hints

import typer
from typer.models import OptionInfo

from jaxllm import quantities
from jaxllm.checks import check_integer
from jaxllm.environment import DEBUG
from jaxllm.errors import ParameterError
from jaxllm.sampling_params import SamplingParams

if TYPE_CHECKING:
    from jaxllm.models.model import Model
    from jaxllm.parallel.partition import Partition
    from jaxllm.parallel.pipeline import Pipeline


def parse_bytes(text: str) -> int:
    """A number of bytes as in ``jaxllm.quantities.parse_bytes``; wrong usage if it is none."""
    try:
        return quantities.parse_bytes("bytes", text, low=0)
    except ParameterError:
        raise typer.BadParameter(f"{text!r} is not a number of bytes such as 1048576, 512M or 2G") from None


def parse_integer(value: str | int, low: int | None = None, high: int | None = None) -> int:
    """An integer in digits, in ``[low, high]``; wrong usage if it is none, as 2.0 and 1_000 are."""
    if isinstance(value, str) and re.fullmatch(r"[+-]?[0-9]+", value) is None:
        raise typer.BadParameter(f"{value!r} is not an integer")
    try:
        return check_integer("value", int(value), low, high)
    except ParameterError as error:
        raise typer.BadParameter(f"{value} is not {error.allowed}") from None
    except ValueError:  # of more digits than Python takes
        raise typer.BadParameter(f"{len(str(value))} digits are more than an integer has") from None


def format_bytes(count: int) -> str:
    """A number of bytes for people, in powers of 1024."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024:
            return f"{count} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def _option(flag: str, help_text: str, **settings: Any) -> Any:
    return typer.Option(flag, help=help_text, **{"show_default": False, **settings})


def in_panel(panel: str) -> Callable[..., Any]:
    """What makes the options of one panel of the help: ``(flag, help, **settings of typer.Option)``."""
    return functools.partial(_option, rich_help_panel=panel)


_model, _sampling, _engine = in_panel("Model"), in_panel("Sampling"), in_panel("Engine")

Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Only text and errors.")]
Debug = Annotated[bool, typer.Option("--debug", envvar=DEBUG, help="Log more; show tracebacks.")]


@dataclasses.dataclass(frozen=True)
class ModelOptions:
    """Which model, in which precision."""

    model: Annotated[str | None, typer.Option(
        "--model", "-m", rich_help_panel="Model", show_default=False,
        help="Hub id, folder, .gguf file or packaged name; by default the packaged model.")] = None
    revision: Annotated[str | None, _model("--revision", "Branch, tag or commit of a hub model.")] = None
    tokenizer: Annotated[str | None, _model("--tokenizer", "Take the tokenizer from another model.")] = None
    dtype: Annotated[str, _model("--dtype", "auto, bfloat16, float16 or float32.", show_default=True)] = "auto"
    quantization: Annotated[str | None, _model(
        "--quantization", "gguf (as a .gguf file stores its weights), gguf-a8 (so, with activations of 8 bits), "
        "int8 or none (decoded); by default as the model says.")] = None


@dataclasses.dataclass(frozen=True)
class EngineOptions:
    """The sizes of the engine; ``None`` leaves one to the platform. See ``LLM``."""

    max_model_len: Annotated[int | None, _engine("--max-model-len", "Most tokens of a prompt and its output.")] = None
    max_num_seqs: Annotated[int | None, _engine("--max-num-seqs", "Samples that run at once.")] = None
    max_num_batched_tokens: Annotated[int | None, _engine(
        "--max-num-batched-tokens", "Tokens computed per step, 16 or more.")] = None
    block_size: Annotated[int | None, _engine("--block-size", "Tokens per block of the KV cache.")] = None
    kv_cache_bytes: Annotated[int | None, _engine(
        "--kv-cache-bytes", "Size of the KV cache, such as 512M or 2G.", parser=parse_bytes, metavar="BYTES")] = None
    kv_cache_dtype: Annotated[str, _engine(
        "--kv-cache-dtype", "auto (as --dtype), that dtype, int8 or fp8.", show_default=True)] = "auto"
    gpu_memory_utilization: Annotated[float, _engine(
        "--gpu-memory-utilization", "Share of a GPU's memory to use.", show_default=True)] = 0.9
    deterministic: Annotated[bool, _engine(
        "--deterministic", "The same bits in any batch on a GPU too, as always on a CPU.")] = False
    tensor_parallel_size: Annotated[int, _engine(
        "--tensor-parallel-size", "Devices that share every layer.", show_default=True)] = 1
    enable_expert_parallel: Annotated[bool, _engine(
        "--enable-expert-parallel", "Give each of these devices whole experts.")] = False
    pipeline_parallel_size: Annotated[int, _engine(
        "--pipeline-parallel-size", "Stages, each some of the layers, on devices of their own.",
        show_default=True)] = 1
    data_parallel_size: Annotated[int, _engine(
        "--data-parallel-size", "Replicas of all that, which share the requests.", show_default=True)] = 1

    def given(self) -> dict[str, Any]:
        """As keyword arguments of ``LLM``."""
        return dataclasses.asdict(self)

    def replicas(self, model: Model) -> list[Partition | Pipeline]:
        """The devices that are asked for, by replica, and what each has of a model."""
        from jaxllm.parallel.mesh import chosen_mesh
        from jaxllm.parallel.pipeline import replica_partitions

        mesh = chosen_mesh(data_parallel_size=self.data_parallel_size, tensor_parallel_size=self.tensor_parallel_size,
                           pipeline_parallel_size=self.pipeline_parallel_size)
        return replica_partitions(model, mesh, by_expert=self.enable_expert_parallel)

    def sizes(self) -> dict[str, Any]:
        """Those of them that ``EngineSizes`` has."""
        return {name: value for name, value in self.given().items() if name not in _PARALLEL}


_PARALLEL = ("tensor_parallel_size", "enable_expert_parallel", "pipeline_parallel_size", "data_parallel_size")


@dataclasses.dataclass(frozen=True)
class SamplingOptions:
    """Fields of ``SamplingParams``; ``None`` leaves one to the model."""

    max_tokens: Annotated[int | None, _sampling(
        "--max-tokens", "Most tokens to generate; by default the room left in the context.")] = None
    temperature: Annotated[float | None, _sampling(
        "--temperature", "0 always takes the most likely token. By default what the model recommends; else 0, or 1 "
        "when --top-p, --top-k, --min-p, --seed or --n is given.")] = None
    top_p: Annotated[float | None, _sampling(
        "--top-p", "Keep the most likely tokens that reach this probability together.")] = None
    top_k: Annotated[int | None, _sampling("--top-k", "Keep this many of the most likely tokens.")] = None
    min_p: Annotated[float | None, _sampling(
        "--min-p", "Keep tokens with this share of the most likely one's probability.")] = None
    seed: Annotated[int | None, _sampling("--seed", "Repeat the same choices.")] = None
    min_tokens: Annotated[int | None, _sampling("--min-tokens", "Do not stop before this many tokens.")] = None
    stop: Annotated[list[str] | None, _sampling("--stop", "End before this text; may be repeated.")] = None
    stop_token_ids: Annotated[list[int] | None, _sampling(
        "--stop-token-id", "End at this token; may be repeated.")] = None
    ignore_eos: Annotated[bool, _sampling("--ignore-eos", "Do not stop at the model's end of sequence.")] = False
    repetition_penalty: Annotated[float | None, _sampling(
        "--repetition-penalty", "Above 1, discourage tokens of the prompt and the output.")] = None
    presence_penalty: Annotated[float | None, _sampling(
        "--presence-penalty", "Discourage tokens that the output holds.")] = None
    frequency_penalty: Annotated[float | None, _sampling(
        "--frequency-penalty", "The same, for each time that they occur.")] = None

    def check(self, **others: Any) -> None:
        """Refuse values that no model can honour, also together with other fields' values, as wrong usage."""
        try:
            SamplingParams(**self._given(), **others)
        except ParameterError as error:
            raise typer.BadParameter(str(error)) from None

    def params(self, defaults: SamplingParams, generation_config: Mapping[str, Any], n: int = 1) -> SamplingParams:
        """What is given here, on top of the model's defaults, which ``generation_config`` led to."""
        given = self._given()
        if "temperature" not in given and not {"temperature", "do_sample"} & set(generation_config):
            wants_chance = n > 1 or bool({"top_p", "top_k", "min_p", "seed"} & set(given))
            given["temperature"] = 1.0 if wants_chance else 0.0
        return defaults.replace(n=n, **given)

    def _given(self) -> dict[str, Any]:
        return {name: value for name, value in dataclasses.asdict(self).items() if value not in (None, [])}


def _show_as_flag(annotation: Any) -> None:
    """Let the help of a switch name no type, as if a value had to follow."""
    kind, *extras = get_args(annotation) or (annotation,)
    for extra in extras:
        if kind is bool and isinstance(extra, OptionInfo) and extra.metavar is None:
            extra.metavar = ""


def _parse_integers(annotation: Any) -> None:
    """Let an option that is an integer, or several, take nothing else, whichever version of typer parses it."""
    kind, *extras = get_args(annotation) or (annotation,)
    kinds = {kind, *get_args(kind), *(each for part in get_args(kind) for each in get_args(part))}  # int, list[int]
    for extra in extras:
        if int in kinds and isinstance(extra, OptionInfo) and extra.parser is None:
            extra.parser = functools.partial(parse_integer, low=extra.min, high=extra.max)  # type: ignore[arg-type]
            extra.metavar = extra.metavar or "INTEGER"


def expand_groups(command: Callable[..., None]) -> Callable[..., None]:
    """The command with one parameter for each field of its parameters that are dataclasses, as typer wants them."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: hint for name, hint in hints.items() if dataclasses.is_dataclass(hint)}
    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command).parameters.items():
        if name not in groups:
            parameters.append(parameter.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY))
            continue
        field_hints = get_type_hints(groups[name], include_extras=True)
        parameters += [
            inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default,
                              annotation=field_hints[field.name])
            for field in dataclasses.fields(groups[name])
        ]
    for parameter in parameters:
        _show_as_flag(parameter.annotation)
        _parse_integers(parameter.annotation)

    def run(**values: Any) -> None:
        for name, group in groups.items():
            values[name] = group(**{field.name: values.pop(field.name) for field in dataclasses.fields(group)})
        command(**values)

    run.__name__, run.__doc__ = command.__name__, command.__doc__
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run
