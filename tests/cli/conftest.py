from __future__ import annotations

import logging

import pytest
import typer.testing
from tiny_folder import write_tiny_folder

from jaxllm import LLM
from jaxllm.cli.app import app

SIZES = {"max_num_seqs": 8, "max_num_batched_tokens": 32, "max_model_len": 128, "block_size": 8}
"""One set of sizes for all tests, so that they share their compiled programs."""

OPTIONS = [part for name, value in SIZES.items() for part in (f"--{name.replace('_', '-')}", str(value))]


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """A tiny random chat model."""
    return write_tiny_folder(tmp_path_factory.mktemp("cli") / "tiny")


@pytest.fixture(autouse=True)
def _log_as_it_was():
    logger, root = logging.getLogger("jaxllm"), logging.getLogger()
    before = (logger.handlers, logger.propagate, logger.level)
    root_handlers = list(root.handlers)
    yield
    logger.handlers, logger.propagate = before[:2]
    logger.setLevel(before[2])
    root.handlers = root_handlers


@pytest.fixture
def run(monkeypatch):
    """Run the program in this process, with standard input given: ``run("info", "--json", stdin="")``."""
    monkeypatch.delenv("JAXLLM_DEBUG", raising=False)
    runner = typer.testing.CliRunner()

    def invoke(*arguments, stdin=None):
        result = runner.invoke(app, [str(argument) for argument in arguments], input=stdin)
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result

    return invoke


@pytest.fixture
def generate(run, folder):
    """``jaxllm generate`` on the tiny model, with small sizes."""
    return lambda *arguments, **settings: run("generate", "-m", folder, *OPTIONS, *arguments, **settings)


@pytest.fixture(scope="session")
def small():
    """The small sizes, as options of the program."""
    return OPTIONS


@pytest.fixture(scope="session")
def llm(folder):
    """The tiny model with the same sizes, called as a library."""
    return LLM(folder, **SIZES)
