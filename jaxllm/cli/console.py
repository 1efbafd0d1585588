"""What goes to standard error: the log, notes, errors. Standard output holds text only."""

from __future__ import annotations

import logging
import os
import sys
from typing import TextIO

from jaxllm import environment

_BOLD, _DIM, _RED, _PLAIN = "\033[1m", "\033[2m", "\033[31m", "\033[0m"


class _Settings:
    quiet = False
    debug = False


def set_up(*, quiet: bool, debug: bool) -> None:
    """Choose what is shown and send jaxllm's log, and no one else's, to standard error."""
    _Settings.quiet = quiet
    _Settings.debug = debug
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(relativeCreated)6d ms  %(message)s" if debug else "%(message)s"))
    logger = logging.getLogger("jaxllm")
    logger.handlers = [handler]
    logger.propagate = False
    logger.setLevel(logging.DEBUG if debug else logging.ERROR if quiet else logging.INFO)
    # Without any handler Python prints warnings of all libraries.
    root = logging.getLogger()
    if not root.handlers:
        root.addHandler(logging.NullHandler())
    if quiet:
        os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"


def debugging() -> bool:
    """Whether errors should show their tracebacks."""
    return _Settings.debug or is_set(os.environ.get(environment.DEBUG))


def is_set(value: str | None) -> bool:
    """Whether an environment variable's value means yes."""
    return value is not None and value.lower() not in ("", "0", "false", "no", "off")


def note(message: str) -> None:
    """Say something on standard error, unless told to be quiet."""
    if not _Settings.quiet:
        print(dim(message, sys.stderr), file=sys.stderr, flush=True)


def error(message: str) -> None:
    """Say on standard error what went wrong."""
    print(f"{_styled('error:', _RED, sys.stderr)} {message}", file=sys.stderr, flush=True)


def write(text: str) -> None:
    """Put text on standard output at once."""
    sys.stdout.write(text)
    sys.stdout.flush()


def bold(text: str, stream: TextIO) -> str:
    """The text in bold where the stream shows it."""
    return _styled(text, _BOLD, stream)


def dim(text: str, stream: TextIO) -> str:
    """The text dimmed where the stream shows it."""
    return _styled(text, _DIM, stream)


def _styled(text: str, style: str, stream: TextIO) -> str:
    plain = bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb" or not stream.isatty()
    return text if plain else f"{style}{text}{_PLAIN}"
