"""The text forms of options, and what they become."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Annotated

import pytest
import typer

from jaxllm import SamplingParams
from jaxllm.cli.app import app
from jaxllm.cli.options import (
    EngineOptions,
    SamplingOptions,
    expand_groups,
    format_bytes,
    parse_bytes,
    parse_integer,
)
from jaxllm.engine.sizes import EngineSizes

OPTION = typer.Option("--one")


@dataclasses.dataclass
class Group:
    first: Annotated[int, OPTION] = 1
    second: str = "two"


@pytest.mark.parametrize(("text", "count"), [
    ("0", 0), ("1048576", 1 << 20), ("512M", 512 << 20), ("512m", 512 << 20), ("2G", 2 << 30), ("2GB", 2 << 30),
    ("1.5GiB", 3 << 29), ("16 K", 16 << 10), ("1T", 1 << 40), ("7B", 7),
])
def test_sizes_are_powers_of_1024(text, count):
    assert parse_bytes(text) == count


@pytest.mark.parametrize("text", ["", "M", "-1", "5Q", "1e9", "2 GG", "0x10", "1.M"])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(typer.BadParameter, match="512M"):
        parse_bytes(text)


@pytest.mark.parametrize(("count", "text"), [
    (0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (3 << 29, "1.5 GiB"), (5 << 40, "5.0 TiB"),
    (1 << 52, "4096.0 TiB"),
])
def test_sizes_are_shown_in_the_largest_unit_that_fits(count, text):
    assert format_bytes(count) == text


@pytest.mark.parametrize(("given", "generation_config", "n", "temperature"), [
    ({}, {}, 1, 0.0),
    ({}, {"eos_token_id": 2}, 1, 0.0),
    ({}, {"temperature": 0.6}, 1, 0.6),
    ({}, {"do_sample": True}, 1, 1.0),
    ({"temperature": 0.3}, {"temperature": 0.6}, 1, 0.3),
    ({"top_p": 0.9}, {"temperature": 0.6}, 1, 0.6),
    ({"top_p": 0.9}, {}, 1, 1.0),
    ({"top_k": 5}, {}, 1, 1.0),
    ({"min_p": 0.1}, {}, 1, 1.0),
    ({"seed": 0}, {}, 1, 1.0),
    ({}, {}, 2, 1.0),
    ({"seed": 0, "temperature": 0.0}, {}, 2, 0.0),
    ({"max_tokens": 3, "stop": ["x"], "repetition_penalty": 1.1}, {}, 1, 0.0),
])
def test_the_temperature_is_the_users_then_the_models_then_0_unless_chance_is_wanted(
        given, generation_config, n, temperature):
    defaults = SamplingParams(temperature=generation_config.get("temperature", 1.0))
    params = SamplingOptions(**given).params(defaults, generation_config, n)
    assert (params.temperature, params.n) == (temperature, n)


def test_every_sampling_option_reaches_its_field():
    given = {"max_tokens": 9, "temperature": 0.5, "top_p": 0.9, "top_k": 7, "min_p": 0.1, "seed": 3, "min_tokens": 2,
             "stop": ["a", "b"], "stop_token_ids": [4], "ignore_eos": True, "repetition_penalty": 1.2,
             "presence_penalty": 0.3, "frequency_penalty": -0.4}
    assert set(given) == {field.name for field in dataclasses.fields(SamplingOptions)}
    assert SamplingOptions(**given).params(SamplingParams(), {}) == SamplingParams(**given)


def test_values_that_no_model_can_honour_are_wrong_usage():
    with pytest.raises(typer.BadParameter, match=r"top_p=2.0 is not allowed"):
        SamplingOptions(top_p=2.0).check()


def test_engine_options_are_the_engines_names():
    assert set(EngineOptions().sizes()) <= {field.name for field in dataclasses.fields(EngineSizes)}
    given = {"block_size": 16, "deterministic": True}
    assert EngineSizes(**EngineOptions(**given).sizes()) == EngineSizes(**given)


def test_a_group_becomes_one_parameter_per_field():
    seen = []

    def command(group: Group, other: bool = False) -> None:
        seen.append((group, other))

    expanded = expand_groups(command)
    parameters = inspect.signature(expanded).parameters
    assert {name: parameter.default for name, parameter in parameters.items()} == {
        "first": 1, "second": "two", "other": False}
    assert parameters["first"].annotation == Annotated[int, OPTION]
    expanded(first=5, second="x", other=True)
    assert seen == [(Group(5, "x"), True)]


@pytest.mark.parametrize("command", ["generate", "chat", "info", "batch", "bench"])
def test_the_help_of_a_switch_names_no_type_as_if_a_value_followed(run, command):
    typed = [line for line in run(command, "--help").stdout.splitlines() if "<bool>" in line]
    assert [line for line in typed if "--help" not in line] == []


@pytest.mark.parametrize("name", ["JAXLLM_DEBUGS", "PALLAS_KERNELS_MATMULS"])
def test_a_variable_of_the_environment_that_nothing_reads_is_an_error_in_one_line(run, folder, monkeypatch, name):
    monkeypatch.setenv(name, "1")
    result = run("info", folder)
    assert (result.exit_code, result.stdout) == (1, "")
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"error: {name}='1'")
    assert line.endswith(f"; did you mean {name[:-1]}?")


@pytest.mark.parametrize("command", ["generate", "info", "bench"])
def test_a_kernel_in_the_environment_that_there_is_not_is_an_error_in_one_line(run, folder, monkeypatch, command):
    monkeypatch.setenv("PALLAS_KERNELS_MATMUL", "fastest")
    arguments = {"generate": ["-m", folder, "hi", "--quiet"], "info": [folder], "bench": [folder, "--quiet"]}
    result = run(command, *arguments[command])
    assert (result.exit_code, result.stdout) == (1, "")
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: PALLAS_KERNELS_MATMUL='fastest' is not an implementation of matmul; there are ")


def _integer_options():
    for name, command in typer.main.get_command(app).commands.items():
        for parameter in command.params:
            if parameter.param_type_name == "option" and parameter.metavar in ("INTEGER", "GPUS"):
                yield pytest.param(name, parameter.opts[0], id=f"{name} {parameter.opts[0]}")


@pytest.mark.parametrize(("command", "option"), list(_integer_options()))
def test_no_option_of_any_command_takes_a_real_number_for_an_integer(run, command, option):
    result = run(command, option, "2.0")
    assert result.exit_code == 2
    assert option in result.stderr
    assert "integer" in result.stderr


def test_integers_are_looked_for_in_every_command_with_a_size():
    found = {tuple(option.values) for option in _integer_options()}
    assert {("generate", "--n"), ("generate", "--stop-token-id"), ("chat", "--tensor-parallel-size"),
            ("info", "--max-model-len"), ("batch", "--logprobs"), ("bench", "--repeat"), ("plan", "--tensor"),
            ("plan", "--search")} <= found


@pytest.mark.parametrize(("text", "number"), [("2", 2), ("-1", -1), ("+3", 3), ("007", 7), (5, 5)])
def test_integers_are_digits(text, number):
    assert parse_integer(text) == number


@pytest.mark.parametrize("text", ["2.0", "1_0", " 2", "two", "True", "", "9" * 5000])
def test_what_is_no_integer_is_refused(text):
    with pytest.raises(typer.BadParameter, match="an integer"):
        parse_integer(text)


@pytest.mark.parametrize(("value", "message"), [("0", "0 is not an integer >= 1 and <= 4"), ("5", "5 is not")])
def test_bounds_are_said(value, message):
    with pytest.raises(typer.BadParameter, match=message):
        parse_integer(value, 1, 4)
