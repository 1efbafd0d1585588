"""JAX's persistent compilation cache, on by default so that a second start compiles nothing."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import jax

logger = logging.getLogger("jaxllm")

ENVIRONMENT = "JAXLLM_COMPILATION_CACHE"


def cache_folder() -> Path | None:
    """Where compiled programs are kept: ``$JAXLLM_COMPILATION_CACHE`` ("off" for nowhere), else under
    ``$XDG_CACHE_HOME`` or ``~/.cache``."""
    chosen = os.environ.get(ENVIRONMENT)
    if chosen is not None:
        return None if chosen.lower() in ("off", "0", "") else Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "jaxllm" / "xla"


def use_persistent_cache() -> None:
    """Turn the cache on, unless this process has configured one already, which is then left as it is."""
    if jax.config.jax_compilation_cache_dir is not None:
        return
    folder = cache_folder()
    if folder is None:
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        logger.warning("no compilation cache: %s cannot be made (%s); set %s", folder, error, ENVIRONMENT)
        return
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
