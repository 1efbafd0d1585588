"""What a start costs and touches, each in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys


def _python(code, **environment):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True,
                          env={**os.environ, **environment}).stdout.split()


def test_importing_jaxllm_loads_nothing_heavy():
    heavy = ("jax", "flax", "numpy", "tokenizers", "transformers", "gguf", "huggingface_hub", "jinja2", "tqdm")
    code = f"import sys, jaxllm; jaxllm.SamplingParams(); print(*[name for name in {heavy} if name in sys.modules])"
    assert _python(code) == []


def test_every_public_name_exists_and_kernels_know_nothing_of_jaxllm():
    _python("import jaxllm; [getattr(jaxllm, name) for name in jaxllm.__all__]")
    assert _python("import sys, pallas_kernels; print('jaxllm' in sys.modules)") == ["False"]


def test_the_compilation_cache_is_set_unless_the_user_has_one(tmp_path):
    code = ("from jaxllm.compilation import use_persistent_cache as use; import jax; use(); "
            "print(jax.config.jax_compilation_cache_dir)")
    ours = {"JAXLLM_COMPILATION_CACHE": str(tmp_path / "ours")}
    clean = {name: value for name, value in os.environ.items() if not name.startswith("JAX_COMPILATION")}
    for environment, expected in (
        (ours, str(tmp_path / "ours")),
        ({**ours, "JAX_COMPILATION_CACHE_DIR": str(tmp_path / "theirs")}, str(tmp_path / "theirs")),
        ({"JAXLLM_COMPILATION_CACHE": "off"}, "None"),
        ({"XDG_CACHE_HOME": str(tmp_path)}, str(tmp_path / "jaxllm" / "xla")),
    ):
        found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True,
                               env={**clean, **environment}).stdout.strip()
        assert found == expected
