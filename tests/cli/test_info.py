"""``jaxllm info``: figures against the checkpoint's files and the engine that would be built."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import jax
import numpy as np
import pytest
import safetensors.numpy
from support import tiny_model
from tiny_folder import CONFIG, write_tiny_folder

from jaxllm.cli.report import kernels_of
from jaxllm.engine.sizes import cache_spec
from jaxllm.environment import COMPILATION_CACHE, COMPILATION_CACHE_BYTES
from jaxllm.weights import ConfigSource
from jaxllm.weights.packaged import PACKAGED_MODELS


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv(COMPILATION_CACHE, str(tmp_path / "cache"))
    monkeypatch.setenv(COMPILATION_CACHE_BYTES, "3M")
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "a.program").write_bytes(b"x" * 2048)
    of_jax = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", None)
    yield
    jax.config.update("jax_compilation_cache_dir", of_jax)


def report(run, *arguments, exit_code=0):
    result = run("info", "--json", *arguments)
    assert result.exit_code == exit_code, result.stderr
    return json.loads(result.stdout)


def test_the_checkpoints_own_figures(run, folder, tmp_path):
    found = report(run, folder, "--dtype", "float32")
    tensors = safetensors.numpy.load_file(folder / "model.safetensors")
    nbytes = sum(tensor.nbytes for tensor in tensors.values())
    assert found["stored"] == {"tensors": len(tensors), "bytes": nbytes,
                               "types": {"F32": {"tensors": len(tensors), "bytes": nbytes}}}
    model = found["model"]
    assert model["parameters"] == sum(tensor.size for tensor in tensors.values())
    assert (model["architectures"], model["family"]) == (["LlamaForCausalLM"], "llama")
    assert (model["num_layers"], model["num_kv_heads"]) == (CONFIG["num_hidden_layers"], CONFIG["num_key_value_heads"])
    for name in ("hidden_size", "intermediate_size", "vocab_size", "max_position_embeddings"):
        assert model[name] == CONFIG[name]
    assert found["running"]["weight_bytes"] == nbytes
    kv = 2 * CONFIG["num_hidden_layers"] * CONFIG["num_key_value_heads"] * 8 * 4
    assert found["running"]["kv_bytes_per_token"] == kv
    assert found["running"]["kv_bytes_full_context"] == kv * 256
    assert found["running"]["kv_cache_dtype"] == "float32"
    assert found["tokenizer"] == {"kind": "BPE", "vocab_size": 259, "chat_template": True, "bos_token_id": None,
                                  "end_token_ids": {"258": "<|im_end|>"}}
    assert found["compilation"]["cache"] == {"path": str(tmp_path / "cache"), "files": 1, "bytes": 2048,
                                             "limit": 3 << 20}
    assert found["compilation"]["cache_of_jax"] is None
    assert found["error"] is None


def test_what_would_fit_is_what_the_engine_takes(run, folder, small, llm):
    found = report(run, folder, *small)
    config, stats = llm.engine.config, llm.stats()
    for name in ("max_model_len", "max_num_seqs", "max_num_batched_tokens", "block_size", "num_blocks"):
        assert found["fits"][name] == getattr(config, name)
    assert found["fits"]["kv_tokens"] == stats.kv_blocks_total * 8
    assert found["fits"]["kv_cache_bytes"] == found["running"]["kv_bytes_per_token"] * 8 * config.num_blocks
    assert found["compilation"]["programs"] == llm.engine._runner.programs.formula()


def test_the_text_says_the_same(run, folder, small):
    result = run("info", folder, *small, "--dtype", "float32")
    assert result.exit_code == 0
    text = " ".join(result.stdout.split())
    matrices = 2 * (32 * 32 + 2 * 16 * 32 + 32 * 32 + 3 * 48 * 32) + 264 * 32
    weights = f"{4 * (matrices + 2 * 2 * 32) / 1024:.1f} KiB of weights"
    for part in (weights, "256 B per token of its context", "0.256 kFLOP per token of its context",
                 f"{2 * matrices / 1e9:.3g} GFLOP for each sequence", "LlamaForCausalLM (family llama)",
                 "2, width 32, MLP 48", "4 heads, 2 KV heads, head dim 8",
                 "256 tokens", "chat template yes", "258 '<|im_end|>'", "paged_attention: xla", "in float32",
                 "longest request 128 tokens", "8 samples, 32 tokens a step", "at most ",
                 "1 files, 2.0 KiB of at most 3.0 MiB"):
        assert part in text


def test_a_cache_of_jax_is_left_to_it(run, folder, small, tmp_path):
    jax.config.update("jax_compilation_cache_dir", str(tmp_path / "theirs"))
    found = report(run, folder, *small)["compilation"]
    assert (found["cache"], found["cache_of_jax"]) == (None, str(tmp_path / "theirs"))
    assert f"JAX's own, {tmp_path / 'theirs'}" in run("info", folder, *small).stdout


def test_what_does_not_fit_says_which_number_to_change(run, folder):
    found = report(run, folder, "--kv-cache-bytes", "64K", "--max-model-len", "256", "--dtype", "float32")
    assert "raise kv_cache_bytes" in found["fits"]["error"]
    assert "programs" not in found["compilation"]
    text = run("info", folder, "--kv-cache-bytes", "64K", "--max-model-len", "256", "--dtype", "float32").stdout
    assert "no: max_model_len=256 needs" in text


@pytest.mark.parametrize(("option", "value"), [("--kv-cache-dtype", "int3"), ("--max-model-len", "99999999")])
def test_a_model_is_described_as_far_as_a_refused_option_lets_it(run, folder, option, value):
    result = run("info", folder, option, value)
    assert result.exit_code == 1
    assert "This machine" in result.stdout
    assert value in result.stderr


def test_an_unsupported_architecture_is_described_as_far_as_it_goes(run, tmp_path):
    write_tiny_folder(tmp_path / "odd", architectures=["Qwen9ForCausalLM"])
    found = report(run, tmp_path / "odd", exit_code=1)
    assert found["model"]["architectures"] == ["Qwen9ForCausalLM"]
    assert found["stored"]["types"].keys() == {"F32"}
    assert found["tokenizer"]["chat_template"]
    assert "'Qwen9ForCausalLM' is not supported" in found["error"]["message"]
    result = run("info", tmp_path / "odd")
    assert result.exit_code == 1
    assert "Qwen9ForCausalLM" in result.stdout
    assert result.stderr.startswith("error: architecture 'Qwen9ForCausalLM' is not supported")


def test_an_unsupported_gguf_architecture_is_described_as_far_as_it_goes(run, tmp_path):
    path = tmp_path / "odd.gguf"
    writer = gguf.GGUFWriter(path, "odd9")
    writer.add_name("Odd Nine")
    writer.add_tensor("token_embd.weight", np.zeros((4, 8), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    found = report(run, path, exit_code=1)
    assert found["model"] == {"path": str(path), "name": "Odd Nine", "architecture": "odd9"}
    assert found["stored"] == {"tensors": 1, "bytes": 128, "types": {"F32": {"tensors": 1, "bytes": 128}}}
    assert "architecture 'odd9'" in found["error"]["message"]
    assert "odd9" in run("info", path).stdout


def test_a_hub_model_is_described_without_its_weights(run, folder, tmp_path, monkeypatch):
    bare = tmp_path / "bare"
    bare.mkdir()
    for file in folder.iterdir():
        if file.suffix != ".safetensors":
            (bare / file.name).symlink_to(file)
    monkeypatch.setattr("jaxllm.weights.locate.download_configuration", lambda name, revision: bare)
    found = report(run, "org/name", "--dtype", "float32")
    assert found["stored"] == {"tensors": 0, "bytes": 0, "types": {}}
    whole = report(run, folder, "--dtype", "float32")
    for section in ("running", "tokenizer"):
        assert found[section] == whole[section]
    assert "not downloaded" in run("info", "org/name").stdout
    assert ConfigSource(bare).tensors == {}


def test_the_packaged_model_is_the_default(run):
    found = report(run)
    assert found["model"]["name"] == PACKAGED_MODELS[0].name
    assert found["model"]["parameters"] == 134_515_008
    assert found["stored"]["types"].keys() == {"Q4_1", "Q8_0", "F32"}
    assert found["running"]["kv_bytes_per_token"] % (2 * 30 * 3 * 64) == 0


def test_a_cache_in_int8_is_said_and_counted_with_its_scales(run):
    found = report(run, "--kv-cache-dtype", "int8")
    assert found["running"]["kv_cache_dtype"] == "int8"
    assert found["running"]["kv_bytes_per_token"] == 2 * 30 * 3 * (64 + 4)
    assert "KV cache per token" in (text := run("info", "--kv-cache-dtype", "int8").stdout)
    assert "in int8" in text


def test_linear_biases_are_said_to_run_in_xla():
    model, _ = tiny_model("bfloat16", head_dim=16, rope=None, alibi_slopes=(0.5,) * 6)
    assert kernels_of(model, cache_spec(model, "auto"))["paged_attention"] == "xla"


def test_a_model_that_is_not_there_is_an_error(run):
    result = run("info", "/no/such/model")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == "error: no such file or folder: '/no/such/model'\n"
    assert run("info", "a", "-m", "b").exit_code == 2


def test_native_kernels_are_named_with_their_instruction_set_or_what_is_missing(run, folder, monkeypatch):
    from pallas_kernels import cpu

    machine = report(run, folder, "--dtype", "bfloat16")["machine"]
    if cpu.unavailable() is None:
        assert machine["native_kernels"] == {"instruction_set": cpu.instruction_set()}
        assert machine["kernels"]["matmul"] == "cpu"
    assert report(run, folder, "--dtype", "float32")["machine"]["kernels"]["matmul"] == "xla"
    monkeypatch.setattr("pallas_kernels.cpu.unavailable", lambda: "no compiler")
    assert "native kernels none: no compiler" in " ".join(run("info", folder, "--dtype", "float32").stdout.split())


def test_experts_are_told(run):
    mixtral = Path(__file__).parents[1] / "fixtures" / "mixtral"
    found = report(run, mixtral, "--dtype", "float32", exit_code=1)  # it has no tokenizer
    assert found["model"]["experts"] == {"num_experts": 5, "experts_per_token": 3, "expert_size": 40, "layers": 2}
    assert found["step"]["weight_bytes"] == found["running"]["weight_bytes"] - 4 * (2 * 2 * 3 * 40 * 48 + 131 * 48 + 48)
    assert "3 of 5 for each token in 2 layers" in run("info", mixtral).stdout
