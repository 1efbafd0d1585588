"""What all tests share: a compilation cache for the run, thrown away with it; no way to the network; no luck."""

from __future__ import annotations

import gc
import os
import signal
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings

_CACHE = "JAX_COMPILATION_CACHE_DIR"
_MAPS = Path("/proc/self/maps")
_MANY_MAPS = 15_000


# The same examples in every run, however slow the machine.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")


def pytest_configure(config):
    # A shell that runs the tests in the background has them ignore Ctrl-C, which some are about.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # The process that starts the run makes the folder; xdist's workers inherit the variable.
    if _CACHE not in os.environ:
        config.stash_folder = tempfile.TemporaryDirectory(prefix="jaxllm-tests-")
        os.environ[_CACHE] = config.stash_folder.name
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    os.environ["HF_HUB_OFFLINE"] = "1"


def pytest_unconfigure(config):
    folder = getattr(config, "stash_folder", None)
    if folder is not None:
        folder.cleanup()


@pytest.fixture(autouse=True)
def _few_executables():
    """JAX keeps what it compiled, each program in dozens of memory maps; Linux ends a process that has 65,530."""
    yield
    jax = sys.modules.get("jax")
    if jax is not None and _MAPS.exists() and _MAPS.read_bytes().count(b"\n") > _MANY_MAPS:
        jax.clear_caches()
        gc.collect()
