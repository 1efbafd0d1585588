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


def test_making_an_engine_leaves_the_settings_of_jax_alone():
    code = ("import jax; before = dict(jax.config.values); from support import tiny_engine; tiny_engine(); "
            "print(dict(jax.config.values) == before)")
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True,
                           cwd=os.path.dirname(__file__)).stdout
    assert found == "True\n"
