"""Memory that is given back is gone from the process, and what is needed of it comes back."""

from __future__ import annotations

import subprocess
import sys

import pytest

from jaxllm import memory

linux = pytest.mark.skipif(sys.platform != "linux", reason="pages are given back on Linux only")

_CODE = """
import re
from pathlib import Path
import jax, jax.numpy as jnp
from jaxllm import memory

def resident():
    return int(re.search(r"RssFile:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) << 10

def answer():
    return jax.jit(lambda x: jnp.sort(x @ x.T))(jnp.arange(12.0).reshape(3, 4)).tolist()

expected = answer()
before = resident()
assert memory.forget_code("jaxlib") > 100 << 20
assert before - resident() > 40 << 20
jax.clear_caches()
assert answer() == expected
assert before - resident() > 20 << 20
memory.own_process()
memory.give_back_memory()
assert answer() == expected
"""


@linux
def test_code_of_jax_that_is_not_running_is_let_go_of_and_comes_back():
    # A library of 270 MiB, of which importing and compiling touch 130.
    subprocess.run([sys.executable, "-c", _CODE], check=True)


@linux
def test_only_code_of_the_package_is_let_go_of(monkeypatch, tmp_path):
    import jaxlib

    folder = jaxlib.__path__[0]
    maps = tmp_path / "maps"
    maps.write_text(f"10000-12000 r-xp 00000000 fe:00 7     {folder}/libjax.so\n"
                    f"12000-14000 r--p 00000000 fe:00 7     {folder}/libjax.so\n"
                    f"14000-16000 rw-p 00000000 fe:00 7     {folder}/libjax.so\n"
                    f"16000-18000 r-xp 00000000 fe:00 7     {folder}_other/libjax.so\n"
                    "18000-1a000 r-xp 00000000 00:00 0 \n"
                    f"1a000-1f000 r-xp 00000000 fe:00 7     {folder}/a b.so\n")
    given = []
    monkeypatch.setattr(memory, "_MAPS", maps)
    monkeypatch.setattr(memory, "page_release", lambda: lambda *mapping: given.append(mapping) is None)
    assert memory.forget_code("jaxlib") == 0x7000
    assert given == [(0x10000, 0x2000), (0x1a000, 0x5000)]


@pytest.mark.parametrize("owner", [False, True])
def test_code_stays_where_it_is_in_a_process_of_somebody_elses(owner, monkeypatch):
    forgotten = []
    monkeypatch.setattr(memory, "_owner", False)
    monkeypatch.setattr(memory, "forget_code", forgotten.append)
    if owner:
        memory.own_process()
    memory.give_back_memory()
    assert forgotten == ["jaxlib"] * owner


def test_where_pages_cannot_be_given_back_nothing_happens(monkeypatch):
    monkeypatch.setattr(memory, "page_release", lambda: None)
    assert memory.forget_code("jaxlib") == 0
    memory.give_back_memory()
