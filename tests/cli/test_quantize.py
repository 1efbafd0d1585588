"""``jaxllm quantize``: what it says and refuses; ``tests/quantization`` looks into what is written."""

from __future__ import annotations

import pytest
from weights.quantized_llama import write_mixture

from jaxllm.weights import resolve
from jaxllm.weights.gguf import GGUFSource


@pytest.fixture(scope="module")
def mixture(tmp_path_factory):
    return write_mixture(tmp_path_factory.mktemp("quantize") / "mixture.gguf")


def test_a_file_is_written_and_told_of(run, mixture, tmp_path):
    target = tmp_path / "new.gguf"
    result = run("quantize", mixture, target, "--to", "q8_0", "--quiet")
    assert (result.exit_code, result.stdout) == (0, "")
    kinds = {tensor.dtype for name, tensor in GGUFSource(target).tensors.items() if len(tensor.shape) > 1}
    assert kinds == {"Q8_0"}
    told = run("quantize", mixture, target, "--to", "Q4_1", "--overwrite").stderr
    assert "35 matrices in Q4_1, 12 tensors as they were" in told


def test_a_folder_is_written_and_generates(run, generate, folder, small, tmp_path):
    target = tmp_path / "new"
    told = run("quantize", folder, target, "--to", "INT8").stderr
    assert "14 matrices in int8, 6 tensors as they were" in told
    expected = run("generate", "-m", folder, *small, "hello", "--max-tokens", "5", "--quiet", "--quantization", "int8")
    found = run("generate", "-m", target, *small, "hello", "--max-tokens", "5", "--quiet")
    assert (found.exit_code, found.stdout) == (0, expected.stdout)
    assert "I8" in run("info", target).stdout


@pytest.mark.parametrize(("arguments", "message"), [
    (("MIXTURE", "new.bin", "--to", "Q8_0"), "a name that ends in .gguf for Q8_0"),
    (("MIXTURE", "new.gguf", "--to", "int8"), "a folder, as int8 is no type of .gguf files"),
    (("MIXTURE", "new.gguf", "--to", "Q9"), "to='Q9' is not allowed: int8 or Q4_0 or Q4_1"),
    (("FOLDER", "new.gguf", "--to", "Q8_0"), "it has no merges, and GGUF no empty lists"),
    (("MIXTURE", "new/er", "--to", "int8"), "a name in a folder that exists"),
])
def test_what_cannot_be_is_one_line(run, folder, mixture, tmp_path, arguments, message):
    places = {"FOLDER": folder, "MIXTURE": mixture}
    result = run("quantize", *(places.get(each, tmp_path / each if "new" in each else each) for each in arguments))
    assert result.exit_code == 1
    assert message in " ".join(result.stderr.split())
    assert not list(tmp_path.iterdir())


def test_what_is_there_is_replaced_only_when_told_to(run, folder, tmp_path):
    target = tmp_path / "new"
    assert run("quantize", folder, target, "--to", "int8", "--quiet").exit_code == 0
    before = (target / "model.safetensors").stat().st_ino
    refused = run("quantize", folder, target, "--to", "int8")
    assert refused.exit_code == 1
    assert "a folder that is not there yet, or overwrite" in " ".join(refused.stderr.split())
    assert (target / "model.safetensors").stat().st_ino == before
    assert run("quantize", folder, target, "--to", "int8", "--quiet", "--overwrite").exit_code == 0
    assert (target / "model.safetensors").stat().st_ino != before
    resolve(target)
