"""What the tests of native kernels share: where they run, with which instructions, and what may not move a bit."""

from __future__ import annotations

import contextlib
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator

import jax
import numpy as np
import pytest

from pallas_kernels import cpu

AVAILABLE = cpu.unavailable() is None
needs_native = pytest.mark.skipif(not AVAILABLE, reason=f"no native kernels: {cpu.unavailable()}")
IMPLEMENTATIONS = ["xla", pytest.param("cpu", marks=needs_native)]
"""Of bfloat16, where the native one computes nothing else."""

INSTRUCTION_SETS_HERE = cpu.INSTRUCTION_SETS[1:5] if platform.machine() == "x86_64" else ("neon",)
"""Those of this kind of processor, in ascending order."""

INSTRUCTION_SETS = [
    pytest.param(name, marks=pytest.mark.skipif(name not in cpu.instruction_sets(), reason=f"no {name} kernels here"))
    for name in INSTRUCTION_SETS_HERE]

FOR_INT8_POOLS = ("avx512_bf16", "amx_bf16")
"""Those whose kernels take pools in int8; the others leave them to XLA."""
needs_int8_pools = pytest.mark.skipif(
    cpu.instruction_set() not in FOR_INT8_POOLS, reason=f"needs {' or '.join(FOR_INT8_POOLS)}")


@contextlib.contextmanager
def using(instruction_set: str) -> Iterator[None]:
    """Native kernels use this instruction set within."""
    before = cpu.instruction_set()
    cpu.use_instruction_set(instruction_set)
    try:
        yield
    finally:
        cpu.use_instruction_set(before)


def check_rows_alone(function: Callable, x: jax.Array, counts: Iterable[int]) -> None:
    """A row of ``function(x)`` has the same bits when it is computed among other numbers of rows, at other places."""
    whole = np.asarray(function(x))
    for count in counts:
        for first in (0, 3):
            np.testing.assert_array_equal(function(x[first : first + count]), whole[first : first + count])


_PROLOGUE = """
import hashlib, os, sys
os.sched_setaffinity(0, [int(core) for core in sys.argv[1:]])
import jax, jax.numpy as jnp, numpy as np
from pallas_kernels import cpu, gated_matmul, matmul
generator = np.random.default_rng(0)
def normal(*shape):
    return jnp.asarray(generator.normal(size=shape), jnp.bfloat16)
def show(arrays):
    print(hashlib.sha256(b"".join(np.asarray(array).tobytes() for array in arrays)).hexdigest())
"""


def in_a_process(program: str, num_cores: int | None = None, **environment: str) -> list[str]:
    """The words that a program prints, run by itself on this many cores, by default all.

    It has ``normal(*shape)``, random bfloat16 numbers, and ``show(arrays)``, which prints a hash of their bits.
    """
    cores = sorted(os.sched_getaffinity(0))[:num_cores]
    command = [sys.executable, "-c", _PROLOGUE + program, *map(str, cores)]
    return subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, **environment}
                          ).stdout.split()
