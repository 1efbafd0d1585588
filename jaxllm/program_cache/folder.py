"""Where compiled programs are kept between runs, and how much room they may take."""

from __future__ import annotations

import os
from pathlib import Path

import jax

from jaxllm.environment import COMPILATION_CACHE, COMPILATION_CACHE_BYTES, user_cache
from jaxllm.program_cache.entries import Entries
from jaxllm.quantities import parse_bytes

DEFAULT_BYTES = 512 << 20


def cache_folder() -> Path | None:
    """``$JAXLLM_COMPILATION_CACHE`` ("off" for nowhere); else one under ``$XDG_CACHE_HOME`` or ``~/.cache``.

    ``None`` as well where this process has configured JAX's own cache (``folder_of_jax``), which then serves.
    """
    if folder_of_jax() is not None:
        return None
    chosen = os.environ.get(COMPILATION_CACHE)
    if chosen is not None:
        return None if chosen.lower() in ("off", "0", "") else Path(chosen).expanduser()
    return user_cache("programs")


def folder_of_jax() -> str | None:
    """Where JAX's persistent compilation cache is, if it is on."""
    return jax.config.jax_compilation_cache_dir if jax.config.jax_enable_compilation_cache else None


def cache_bytes() -> int:
    """What its files may take together: ``$JAXLLM_COMPILATION_CACHE_BYTES``, such as "2G"; else 512 MiB."""
    chosen = os.environ.get(COMPILATION_CACHE_BYTES)
    return DEFAULT_BYTES if chosen is None else parse_bytes(COMPILATION_CACHE_BYTES, chosen)


def open_entries() -> Entries | None:
    """The entries in ``cache_folder``, if there is one."""
    folder = cache_folder()
    return None if folder is None else Entries(folder, cache_bytes())
