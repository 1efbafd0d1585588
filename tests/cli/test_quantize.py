"""``jaxllm quantize``: what it says and refuses; ``tests/weights/test_requantize.py`` looks into the files."""

from __future__ import annotations

import pytest
from weights.quantized_llama import write_mixture

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


@pytest.mark.parametrize(("arguments", "message"), [
    (("FOLDER", "new.gguf", "--to", "Q8_0"), "a .gguf file; other checkpoints are quantized while they are loaded"),
    (("MIXTURE", "new.bin", "--to", "Q8_0"), "a name that ends in .gguf"),
    (("MIXTURE", "new.gguf", "--to", "Q9"), "kind='Q9' is not allowed: Q4_0 or Q4_1"),
])
def test_what_cannot_be_is_one_line(run, folder, mixture, tmp_path, arguments, message):
    places = {"FOLDER": folder, "MIXTURE": mixture}
    result = run("quantize", *(places.get(each, tmp_path / each if "new" in each else each) for each in arguments))
    assert result.exit_code == 1
    assert message in " ".join(result.stderr.split())
    assert not list(tmp_path.iterdir())
