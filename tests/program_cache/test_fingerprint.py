"""The fingerprint changes with what executables depend on, and with nothing else."""

from __future__ import annotations

import os
import subprocess
import sys

import jax

from jaxllm.models.step import StepContext
from jaxllm.program_cache import fingerprint

_PRINT = ("from jaxllm.program_cache import fingerprint; "
          "print(fingerprint.of_machine(), fingerprint.of_sources())")


def prints(**environment):
    """The fingerprints of a new process: of the machine, of the sources."""
    return subprocess.run([sys.executable, "-c", _PRINT], capture_output=True, text=True, check=True,
                          env={**os.environ, **environment}).stdout.split()


def test_processes_agree_and_differ_by_what_matters():
    machine, sources = prints()
    assert prints(JAX_COMPILATION_CACHE_DIR="/elsewhere", PYTHONHASHSEED="7") == [machine, sources]
    # A setting of JAX and a flag of XLA; an unavailable kernel would show in the sources.
    assert prints(JAX_DEFAULT_MATMUL_PRECISION="highest")[0] != machine
    assert prints(XLA_FLAGS="--xla_cpu_enable_fast_math=false")[0] != machine


def test_a_setting_changed_in_the_process_is_seen():
    before = fingerprint.of_machine()
    with_default = jax.config.jax_default_matmul_precision
    jax.config.update("jax_default_matmul_precision", "float32")
    try:
        assert fingerprint.of_machine() != before
    finally:
        jax.config.update("jax_default_matmul_precision", with_default)
    assert fingerprint.of_machine() == before


def test_parts_cannot_be_mistaken_for_each_other():
    assert len({fingerprint.digest(*parts) for parts in (("ab", "c"), ("a", "bc"), ("abc",), ("abc", ""))}) == 4


def test_the_sources_of_both_packages_are_in_it(tmp_path):
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "code.py").write_text("one = 1\n")
    (tmp_path / "data.txt").write_text("no code\n")
    before = list(fingerprint._texts(tmp_path))
    assert before == [os.path.join("inner", "code.py"), "one = 1\n"]
    for package in ("jaxllm", "pallas_kernels"):
        assert any(True for folder in __import__(package).__path__ for _ in fingerprint._texts(folder))


def test_the_classes_of_a_tree_are_named_by_where_they_are():
    tree = jax.tree.structure({"a": StepContext((1, 2), 3, 4, 5, [])})
    assert fingerprint.types_of(tree)[:3] == ["builtins.dict", "jaxllm.models.step.StepContext", "builtins.tuple"]
    assert fingerprint.types_of(jax.tree.structure(1)) == []
