"""What all tests share: a compilation cache for the run, thrown away with it; no way to the network; no luck."""

from __future__ import annotations

import functools
import gc
import os
import signal
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings

_TESTS = Path(__file__).parent
_CACHE = "JAX_COMPILATION_CACHE_DIR"
_MAPS = Path("/proc/self/maps")
_MANY_MAPS, _TESTS_BETWEEN = 20_000, 8


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


class _Executables:
    """What compiled programs this process holds: each lies in dozens of memory maps, of which Linux allows 65,530."""

    def __init__(self):
        self.tests, self.allowed = 0, _MANY_MAPS

    def test_is_over(self):
        """Now and then, forget what JAX and the tests' own caches keep, if it has become much."""
        self.tests += 1
        jax = sys.modules.get("jax")
        if jax is None or self.tests % _TESTS_BETWEEN or not _MAPS.exists() or self._count() <= self.allowed:
            return
        for module in list(sys.modules.values()):
            if Path(getattr(module, "__file__", None) or "/").is_relative_to(_TESTS):
                for value in list(vars(module).values()):
                    if isinstance(value, functools._lru_cache_wrapper):
                        value.cache_clear()
        jax.clear_caches()
        gc.collect()
        # What is left is in use: forgetting the rest after every test would have them compile everything each time.
        self.allowed = max(_MANY_MAPS, self._count() + _MANY_MAPS // 2)

    @staticmethod
    def _count():
        return _MAPS.read_bytes().count(b"\n")


_executables = _Executables()


@pytest.fixture(autouse=True)
def _few_executables():
    yield
    _executables.test_is_over()
