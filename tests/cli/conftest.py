from __future__ import annotations

import logging

import pytest
import typer.testing
from tiny_folder import write_tiny_folder

from jaxllm.cli.app import app

SMALL = ("--max-num-batched-tokens", "32", "--max-model-len", "128")


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
    return lambda *arguments, **settings: run("generate", "-m", folder, *SMALL, *arguments, **settings)
