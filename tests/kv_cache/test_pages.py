"""Cleared arrays are zeros, cost memory only where they are written, and are written in place."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxllm.kv_cache import pages
from jaxllm.kv_cache.pages import cleared, unfilled


@pytest.fixture(params=["native", "xla"], autouse=True)
def allocation(request, monkeypatch):
    """With the native library where it is built, and as without it."""
    if request.param == "xla":
        monkeypatch.setattr(pages, "untouched", lambda like: None)
    return request.param


def lazy_zeros(shape, dtype):
    return cleared(jax.jit(lambda: unfilled(jax.ShapeDtypeStruct(shape, dtype)))())


linux = pytest.mark.skipif(sys.platform != "linux", reason="pages are given back on Linux only")


@pytest.mark.parametrize("shape", [(0,), (1,), (3, 5), (1000, 33), (257, 2, 8, 96)])
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32, jnp.int8])
def test_every_element_is_zero(shape, dtype):
    array = lazy_zeros(shape, dtype)
    assert (array.shape, array.dtype) == (shape, dtype)
    assert not np.asarray(array).any()


def test_the_arrays_of_a_tree_are_different_memory():
    like = [{"k": jax.ShapeDtypeStruct((300, 7), jnp.float32)} for _ in range(5)]
    arrays = jax.tree.leaves(cleared(jax.jit(lambda: unfilled(like))()))
    assert len({array.unsafe_buffer_pointer() for array in arrays}) == 5


@linux
def test_memory_that_held_numbers_before_is_cleared():
    # Most of these get the memory of those before them.
    for _ in range(30):
        for size in (100, 1023, 5000, 300_000):
            array = lazy_zeros((size,), jnp.float32)
            assert not np.asarray(array).any()
            ctypes.memset(array.unsafe_buffer_pointer(), 7, array.nbytes)
            del array


@linux
def test_pages_that_cannot_be_given_back_hold_zeros(monkeypatch):
    monkeypatch.setattr(pages, "page_release", lambda: lambda address, length: False)
    for _ in range(3):
        array = lazy_zeros((300_000,), jnp.float32)
        assert not np.asarray(array).any()
        ctypes.memset(array.unsafe_buffer_pointer(), 7, array.nbytes)


@linux
def test_memory_around_an_array_is_left_alone():
    # One after another in the allocator's hands: a page too many would clear a neighbour's numbers.
    kept, cleared = [], []
    for size in [1023, 1024, 1025, 2047, 5000] * 20:
        kept.append(jax.device_put(np.full(size, 7.0, np.float32), may_alias=False))
        cleared.append(lazy_zeros((size,), jnp.float32))
    assert all((np.asarray(array) == 7.0).all() for array in kept)


@linux
def test_a_written_array_keeps_its_place():
    array = lazy_zeros((1 << 12, 1 << 10), jnp.float32)
    place = array.unsafe_buffer_pointer()
    write = jax.jit(lambda array, row: array.at[row].set(1.0), donate_argnums=0)
    for row in range(3):
        array = write(array, row)
    assert array.unsafe_buffer_pointer() == place
    assert float(array.sum()) == 3 << 10


_ENGINE = """
import sys
from pathlib import Path
from jaxllm.kv_cache import pages
if sys.argv[1] == "xla":
    pages.untouched = lambda like: None
from support import greedy, run, tiny_engine

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

before = resident()
engine = tiny_engine(kv_cache_bytes=2 << 30)
pool = engine._runner.cache
assert sum(array.nbytes for layer in pool for array in layer.values()) > 1.99 * 2**30
run(engine, [([9, 10, 11], greedy(3))])
print(resident() - before)
"""


@linux
def test_an_engine_with_a_pool_of_2_gib_takes_a_fraction_of_that(allocation):
    # A process of its own: what else holds or gives back memory would blur the figure. Compiling takes about 0.1 GiB.
    tests = Path(__file__).parents[1]
    done = subprocess.run([sys.executable, "-c", _ENGINE, allocation], cwd=tests, capture_output=True, text=True,
                          check=True)
    assert int(done.stdout) < 0.5 * 2**30
