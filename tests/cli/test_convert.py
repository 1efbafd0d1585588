"""``jaxllm convert``: what it says and refuses; ``tests/test_conversion.py`` looks into what is written."""

from __future__ import annotations


def test_a_folder_is_written_described_and_generates(run, generate, folder, small, tmp_path):
    target = tmp_path / "new"
    told = run("convert", folder, target)
    assert (told.exit_code, told.stdout) == (0, "")
    assert "14 arrays in float32, " in told.stderr
    expected = run("generate", "-m", folder, *small, "hello", "--max-tokens", "5", "--quiet")
    found = run("generate", "-m", target, *small, "hello", "--max-tokens", "5", "--quiet")
    assert (found.exit_code, found.stdout) == (0, expected.stdout)
    assert "in 14 tensors: F32" in run("info", target).stdout
    refused = run("convert", folder, target)
    assert refused.exit_code == 1
    assert "a folder that is not there yet, or overwrite" in " ".join(refused.stderr.split())
    assert run("convert", folder, target, "--overwrite", "--dtype", "bfloat16", "--quiet").stderr == ""


def test_a_folder_of_hugging_face_is_written(run, folder, tmp_path):
    told = run("convert", folder, tmp_path / "new", "--to", "safetensors")
    assert (told.exit_code, told.stdout) == (0, "")
    assert (tmp_path / "new" / "model.safetensors").stat().st_size > 4000
    refused = run("convert", folder, tmp_path / "other", "--to", "numpy")
    assert refused.exit_code == 1
    assert "'orbax' or 'safetensors'" in " ".join(refused.stderr.split())
