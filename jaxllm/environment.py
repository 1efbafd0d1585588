"""The environment variables that jaxllm reads; others that begin like them are mistakes."""

from __future__ import annotations

import difflib
import os
from pathlib import Path

from jaxllm.errors import ParameterError

PREFIX = "JAXLLM_"
DEBUG = "JAXLLM_DEBUG"
COMPILATION_CACHE = "JAXLLM_COMPILATION_CACHE"
COMPILATION_CACHE_BYTES = "JAXLLM_COMPILATION_CACHE_BYTES"
VARIABLES = (COMPILATION_CACHE, COMPILATION_CACHE_BYTES, DEBUG)


def user_cache(folder: str) -> Path:
    """Where files of a kind are kept between runs: a folder under ``$XDG_CACHE_HOME`` or ``~/.cache``."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "jaxllm" / folder


def check_environment() -> None:
    """Raise ``ParameterError`` for the first variable that begins with ``PREFIX`` and that nothing reads."""
    for name in sorted(os.environ):
        if name.startswith(PREFIX) and name not in VARIABLES:
            rest = {variable.removeprefix(PREFIX): variable for variable in VARIABLES}
            close = difflib.get_close_matches(name.removeprefix(PREFIX), rest, 1)
            suggestion = f"; did you mean {rest[close[0]]}?" if close else ""
            raise ParameterError(name, os.environ[name], f"jaxllm reads {', '.join(VARIABLES)}{suggestion}")
