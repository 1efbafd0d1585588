"""What is asked for in the environment is had, or said to be missing: never left out in silence."""

from __future__ import annotations

import pytest
from kernels.native import INSTRUCTION_SETS_HERE, needs_native

from pallas_kernels import cpu
from pallas_kernels.cpu import library
from pallas_kernels.environment import CPU_INSTRUCTION_SET, CPU_LIBRARY
from pallas_kernels.errors import ChoiceError


@pytest.fixture
def load():
    """Load anew, whatever this process has loaded before."""
    return library._load.__wrapped__


@pytest.mark.parametrize("content", [None, b"", b"no library"])
def test_a_library_that_is_asked_for_and_cannot_be_loaded_is_an_error(monkeypatch, tmp_path, load, content):
    file = tmp_path / "mine.so"
    if content is not None:
        file.write_bytes(content)
    monkeypatch.setenv(CPU_LIBRARY, str(file))
    with pytest.raises(ChoiceError, match=rf"PALLAS_KERNELS_CPU_LIBRARY='{file}' cannot be loaded"):
        load()


def test_so_is_a_library_of_another_kind(monkeypatch, load):
    import jaxlib._jax as other  # any shared library that is there

    monkeypatch.setenv(CPU_LIBRARY, other.__file__)
    with pytest.raises(ChoiceError, match="undefined symbol"):
        load()


def test_an_installed_library_that_cannot_be_loaded_leaves_everything_to_xla(monkeypatch, tmp_path, load):
    (tmp_path / library._FILE).write_bytes(b"no library")
    monkeypatch.delenv(CPU_LIBRARY, raising=False)
    monkeypatch.setattr(library.package, "__path__", [str(tmp_path)])
    assert "cannot be loaded" in load()


@needs_native
@pytest.mark.parametrize("name", ["sse2", "AMX_BF16", "none"])
def test_an_instruction_set_that_is_not_there_is_an_error_that_names_those_that_are(monkeypatch, load, name):
    monkeypatch.setenv(CPU_INSTRUCTION_SET, name)
    lowest = INSTRUCTION_SETS_HERE[0]
    with pytest.raises(ChoiceError, match=rf"PALLAS_KERNELS_CPU_INSTRUCTION_SET='{name}': .*{lowest}"):
        load()
    with pytest.raises(ChoiceError, match=rf"instruction set='{name}'"):
        cpu.use_instruction_set(name)
