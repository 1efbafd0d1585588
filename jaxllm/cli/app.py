"""The program ``jaxllm``: its commands, and what becomes of their errors."""

from __future__ import annotations

import contextlib
import ctypes
import io
import os
import sys
from typing import Annotated, Any

import typer
import typer.core

import jaxllm
from jaxllm.cli import console
from jaxllm.cli.batch import batch
from jaxllm.cli.bench import bench
from jaxllm.cli.chat import chat
from jaxllm.cli.convert import convert
from jaxllm.cli.generate import generate
from jaxllm.cli.info import info
from jaxllm.cli.options import expand_groups
from jaxllm.cli.plan import plan
from jaxllm.cli.quantize import quantize
from jaxllm.environment import check_environment
from jaxllm.errors import EngineError, JaxLLMError
from jaxllm.memory import own_process
from jaxllm.program_cache import trust_sources

INTERRUPTED = 130
"""The exit code of a program that Ctrl-C ended, as shells give it."""
_M_ARENA_MAX = -8  # of glibc's malloc.h


def _expected(error: Exception) -> bool:
    """Whether its message is meant for users: their input, a machine's limits, not a mistake of the program."""
    if isinstance(error, JaxLLMError | EngineError | OSError):
        return True
    from pallas_kernels.errors import ChoiceError  # imports JAX, which is there when one was raised

    return isinstance(error, ChoiceError)


class _Program(typer.core.TyperGroup):
    """A group whose commands' expected errors are one line, not a traceback."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except (ValueError, EngineError, OSError) as error:
            if isinstance(error, BrokenPipeError) or not _expected(error) or console.debugging():
                raise
            console.error(str(error))
            raise typer.Exit(1) from None
        except KeyboardInterrupt:
            if console.debugging():
                raise
            raise typer.Exit(INTERRUPTED) from None


app = typer.Typer(
    cls=_Program, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="LLM inference in JAX, in one process. Without --model, the packaged model is used. "
         "Text goes to standard output, everything else to standard error.",
)
app.command()(expand_groups(generate))
app.command()(expand_groups(chat))
app.command()(expand_groups(info))
app.command()(expand_groups(batch))
app.command()(expand_groups(bench))
app.command()(expand_groups(plan))
app.command()(quantize)
app.command()(convert)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"jaxllm {jaxllm.__version__}")
        raise typer.Exit


@app.callback()
def _program(
    version: Annotated[bool, typer.Option("--version", callback=_print_version, is_eager=True,
                                          help="Print the version and exit.")] = False,
) -> None:
    check_environment()


def settle_process() -> None:
    """What holds only for a process that is jaxllm's alone, as the program's is: it is small and starts fast."""
    use_few_heaps()
    own_process()
    trust_sources()


def main() -> None:
    """Run the program on ``sys.argv``; exits with 0, 1 (an error), 2 (wrong usage) or 130 (Ctrl-C)."""
    _open_standard_streams()
    settle_process()
    try:
        app(prog_name="jaxllm")
    except SystemExit as end:
        if isinstance(end.code, int):
            _exit(end.code)
        raise


def use_few_heaps() -> None:
    """Have glibc's malloc serve all threads from two heaps, not eight per core: each keeps what was freed in it.

    20 MiB less at the peak of a small model's start. ``MALLOC_ARENA_MAX`` in the environment says otherwise; other C
    libraries are left alone.
    """
    if sys.platform == "linux" and "MALLOC_ARENA_MAX" not in os.environ:
        with contextlib.suppress(AttributeError):  # musl has no mallopt
            ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 2)


def _open_standard_streams() -> None:
    """Make the standard streams take any text, also where they were closed or their encoding lacks its letters."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 (open until the end)
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _exit(code: int) -> None:
    """End the process now: taking JAX's modules apart, object by object, would take half a second."""
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except BrokenPipeError:
        code = code or 1
    os._exit(code)
