"""``jaxllm.quantize``: its arguments, and that it is there without its weight."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest
from tiny_folder import write_tiny_folder
from weights.quantized_llama import write_mixture

import jaxllm
from jaxllm.errors import CapacityError, ParameterError
from jaxllm.quantization import KINDS
from jaxllm.weights import CompressedTensorsSource, GGUFSource, SafetensorsSource, resolve


def test_any_model_becomes_what_is_asked_for(tmp_path):
    folder, file = write_tiny_folder(tmp_path / "tiny"), write_mixture(tmp_path / "mixture.gguf")
    for model in (folder, str(folder), SafetensorsSource(folder), file):
        found = jaxllm.quantize(model, tmp_path / "int8", "Int8", overwrite=True)
        assert isinstance(found, jaxllm.Quantized)
        assert isinstance(resolve(tmp_path / "int8"), CompressedTensorsSource)
    jaxllm.quantize(file, str(tmp_path / "new.gguf"), "q4_0")
    assert isinstance(resolve(tmp_path / "new.gguf"), GGUFSource)


@pytest.mark.parametrize(("target", "to", "parameter", "message"), [
    ("new", "int4", "to", "to='int4' is not allowed: int8 or Q4_0"),
    ("new", 8, "to", "to=8 is not allowed"),
    ("", "int8", "target", "the path of a folder for int8"),
    (None, "int8", "target", "the path of a folder for int8"),
    ("new.gguf", "int8", "target", "a folder, as int8 is no type"),
    ("new", "Q8_0", "target", r"a name that ends in \.gguf for Q8_0"),
])
def test_what_is_not_allowed_is_named_before_the_model_is_looked_for(target, to, parameter, message):
    with pytest.raises(ParameterError, match=message) as caught:
        jaxllm.quantize("no/such/model", target, to)
    assert caught.value.parameter == parameter


def test_a_revision_needs_a_hub_model(tmp_path):
    with pytest.raises(ParameterError, match="revision='main' is not allowed: only for hub ids"):
        jaxllm.quantize(write_tiny_folder(tmp_path / "tiny"), tmp_path / "new", "int8", revision="main")


def test_the_kinds_are_those_that_the_command_line_lists():
    import inspect

    from jaxllm.cli.quantize import quantize

    (option,) = inspect.get_annotations(quantize, eval_str=True)["kind"].__metadata__
    assert all(kind in option.help for kind in KINDS)


def test_importing_jaxllm_does_not_import_it():
    code = "import sys, jaxllm; sys.exit('jaxllm.quantization' in sys.modules or 'jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.fixture
def small_files():
    """The system refuses to let a file of this process grow beyond some bytes, as a full disk does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize(("target", "to"), [("new", "int8"), ("new.gguf", "Q8_0")])
def test_a_disk_that_is_full_leaves_what_was_there(tmp_path, request, target, to):
    source = write_mixture(tmp_path / "mixture.gguf")
    jaxllm.quantize(source, tmp_path / target, to)
    files = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    request.getfixturevalue("small_files")
    with pytest.raises(CapacityError, match=r"no room for its [\d,]+ bytes"):
        jaxllm.quantize(source, tmp_path / target, to, overwrite=True)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == files
