"""GGUF files of each architecture mean what the Hugging Face checkpoint they are made from means.

Oracle: the fixtures' checkpoints, written with the tensor names and metadata keys of the ``gguf`` package, and with
what llama.cpp's conversion does to values: norms of Gemma with 1 added (rounded to float32, as here). Equality.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import gguf
import numpy as np
import pytest
from weights.checkpoint_files import permute_rows

from jaxllm.models.registry import family_of
from jaxllm.weights import GGUFSource, SafetensorsSource
from jaxllm.weights.names import ARCHITECTURES as KNOWN

FIXTURES = Path(__file__).parents[1] / "fixtures"
ARCHITECTURES = {"qwen2": gguf.MODEL_ARCH.QWEN2, "qwen3": gguf.MODEL_ARCH.QWEN3, "gemma": gguf.MODEL_ARCH.GEMMA,
                 "gemma2": gguf.MODEL_ARCH.GEMMA2, "gemma3": gguf.MODEL_ARCH.GEMMA3,
                 "phi3": gguf.MODEL_ARCH.PHI3, "phi3_long": gguf.MODEL_ARCH.PHI3,
                 "starcoder2": gguf.MODEL_ARCH.STARCODER2}


def _write_sizes(writer, hf):
    writer.add_block_count(hf["num_hidden_layers"])
    writer.add_context_length(hf["max_position_embeddings"])
    writer.add_embedding_length(hf["hidden_size"])
    writer.add_feed_forward_length(hf["intermediate_size"])
    writer.add_head_count(hf["num_attention_heads"])
    writer.add_head_count_kv(hf["num_key_value_heads"])


def _write(path, name, source, hf):
    writer = gguf.GGUFWriter(path, ARCHITECTURES[name].name.lower())
    _write_sizes(writer, hf)
    if "rms_norm_eps" in hf:
        writer.add_layer_norm_rms_eps(hf["rms_norm_eps"])
    else:
        writer.add_layer_norm_eps(hf["norm_epsilon"])
    if hf.get("head_dim"):
        writer.add_key_length(hf["head_dim"])
        writer.add_value_length(hf["head_dim"])
    ropes = hf["rope_parameters"]
    rope = ropes.get("full_attention", ropes)
    writer.add_rope_freq_base(rope["rope_theta"])
    if rope["rope_type"] == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    if name in ("gemma2", "gemma3", "phi3", "phi3_long", "starcoder2"):
        writer.add_sliding_window(hf["sliding_window"] or 0)
    factors = {}
    if name.startswith("phi3"):
        head_dim = hf["hidden_size"] // hf["num_attention_heads"]
        writer.add_rope_dimension_count(int(head_dim * rope["partial_rotary_factor"]))
        writer.add_rope_scaling_orig_ctx_len(hf["original_max_position_embeddings"])
        factors = {f"rope_factors_{part}.weight": np.asarray(rope[f"{part}_factor"], np.float32)
                   for part in ("long", "short") if f"{part}_factor" in rope}
    if name == "gemma2":
        writer.add_attn_logit_softcapping(hf["attn_logit_softcapping"])
        writer.add_final_logit_softcapping(hf["final_logit_softcapping"])
    raised = "norm.weight" if name.startswith("gemma") else ()
    _write_tensors(writer, ARCHITECTURES[name], hf["num_hidden_layers"], {
        tensor: source.read(tensor).astype(np.float32) + np.float32(tensor.endswith(raised))
        for tensor in source.tensors}, factors)


def _write_tensors(writer, architecture, layers, tensors, as_named=()):
    for name in as_named:
        writer.add_tensor(name, as_named[name])
    names = gguf.get_tensor_name_map(architecture, layers)
    for name, values in tensors.items():
        writer.add_tensor(names.get_name(name, try_suffixes=(".weight", ".bias")), values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_gguf_file_means_what_its_checkpoint_means(name, tmp_path):
    folder = FIXTURES / name
    hf = json.loads((folder / "config.json").read_text())
    if name in ("qwen2", "qwen3"):
        hf |= {"use_sliding_window": False}  # which the format cannot say
    if "query_pre_attn_scalar" in hf:
        hf |= {"query_pre_attn_scalar": hf["head_dim"]}
    if name == "gemma3":
        hf |= {"layer_types": None, "sliding_window_pattern": 6}
        hf["rope_parameters"]["sliding_attention"]["rope_theta"] = 10_000.0
    source = SafetensorsSource(folder)
    _write(tmp_path / "tiny.gguf", name, source, hf)
    found = GGUFSource(tmp_path / "tiny.gguf")
    assert set(found.tensors) == set(source.tensors)
    for tensor in source.tensors:
        raised = name.startswith("gemma") and tensor.endswith("norm.weight")
        values = source.read(tensor).astype(np.float32)
        wanted = values + np.float32(1) - np.float32(1) if raised else values
        np.testing.assert_array_equal(found.read(tensor), wanted)
    family = family_of(hf)
    assert family_of(found.config).name == family.name == name.removesuffix("_long")
    assert family.decoder_config(found.config) == family.decoder_config(hf)


_EXPERTS = {
    "mixtral": ("llama", gguf.MODEL_ARCH.LLAMA, "block_sparse_moe", {
        "w1": "layers.{}.feed_forward.experts.w1", "w2": "layers.{}.feed_forward.experts.w2",
        "w3": "layers.{}.feed_forward.experts.w3"}),
    **{name: (arch.name.lower(), arch, "mlp", {
        part: f"model.layers.{{}}.mlp.experts.{part}" for part in ("gate_proj", "up_proj", "down_proj")})
       for name, arch in (("qwen2_moe", gguf.MODEL_ARCH.QWEN2MOE), ("qwen3_moe", gguf.MODEL_ARCH.QWEN3MOE))},
}


def _write_experts(path, name, source, hf, kept):
    """As llama.cpp writes them: all experts' matrices in one tensor, matrices of one row as vectors, and rows of
    Mixtral's queries and keys in its order."""
    architecture, kind, module, merged = _EXPERTS[name]
    writer = gguf.GGUFWriter(path, architecture)
    _write_sizes(writer, hf)
    writer.add_key_length(hf["head_dim"])
    writer.add_layer_norm_rms_eps(hf["rms_norm_eps"])
    writer.add_rope_freq_base(hf["rope_parameters"]["rope_theta"])
    count = hf["num_local_experts"] if "num_local_experts" in hf else hf["num_experts"]
    writer.add_expert_count(count)
    writer.add_expert_used_count(hf["num_experts_per_tok"])
    if module == "mlp":
        writer.add_expert_feed_forward_length(hf["moe_intermediate_size"])
    if name == "qwen2_moe":
        writer.add_expert_shared_feed_forward_length(hf["shared_expert_intermediate_size"])
    tensors = {tensor: source.read(tensor).astype(np.float32) for tensor in kept}
    if name == "mixtral":
        for tensor, heads in (("q_proj", "num_attention_heads"), ("k_proj", "num_key_value_heads")):
            tensors |= {key: permute_rows(values, hf[heads]) for key, values in tensors.items() if tensor in key}
    for layer in range(hf["num_hidden_layers"]):
        for part, to in merged.items():
            parts = [f"model.layers.{layer}.{module}.experts.{expert}.{part}.weight" for expert in range(count)]
            if parts[0] in tensors:
                tensors[f"{to.format(layer)}.weight"] = np.stack([tensors.pop(key) for key in parts])
    _write_tensors(writer, kind, hf["num_hidden_layers"],
                   {key: values[0] if values.shape[0] == 1 and values.ndim == 2 else values
                    for key, values in tensors.items()})


@pytest.mark.parametrize("name", _EXPERTS)
def test_experts_that_lie_in_one_tensor_are_those_of_the_checkpoint(name, tmp_path):
    folder = FIXTURES / name
    hf = json.loads((folder / "config.json").read_text())
    # What the format cannot say; layers without experts are left out.
    hf |= {"sliding_window": None, "use_sliding_window": False, "mlp_only_layers": [], "decoder_sparse_step": 1}
    source = SafetensorsSource(folder)
    kept = {tensor for tensor in source.tensors if not re.search(r"\.mlp\.(gate|up|down)_proj", tensor)}
    _write_experts(tmp_path / "tiny.gguf", name, source, hf, kept)
    found = GGUFSource(tmp_path / "tiny.gguf")
    assert set(found.tensors) == kept
    for tensor in kept:
        values = source.read(tensor).astype(np.float32)
        np.testing.assert_array_equal(found.read(tensor).reshape(values.shape), values)
    part = np.empty((3, hf["hidden_size"]), np.float32)
    tensor = next(tensor for tensor in source.tensors if ".experts.2." in tensor and tensor.endswith(
        ("w3.weight", "up_proj.weight")))
    found.read_rows(tensor, 5, 8, part)
    np.testing.assert_array_equal(part, source.read(tensor)[5:8].astype(np.float32))
    family = family_of(hf)
    assert family_of(found.config).name == family.name == name
    assert family.decoder_config(found.config) == family.decoder_config(hf)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_matrices_of_gpt2_lie_the_other_way_round(dtype, tmp_path):
    hf = json.loads((FIXTURES / "gpt2" / "config.json").read_text())
    source = SafetensorsSource(FIXTURES / "gpt2")
    writer = gguf.GGUFWriter(tmp_path / "tiny.gguf", "gpt2")
    writer.add_block_count(hf["n_layer"])
    writer.add_context_length(hf["n_positions"])
    writer.add_embedding_length(hf["n_embd"])
    writer.add_feed_forward_length(4 * hf["n_embd"])
    writer.add_head_count(hf["n_head"])
    writer.add_layer_norm_eps(hf["layer_norm_epsilon"])
    values = {name: source.read(name).astype(np.float32) for name in source.tensors}
    turned = (".c_attn.weight", ".c_proj.weight", ".c_fc.weight")
    _write_tensors(writer, gguf.MODEL_ARCH.GPT2, hf["n_layer"], {
        name: np.ascontiguousarray(tensor.T).astype(dtype) if name.endswith(turned) else tensor
        for name, tensor in values.items()})
    found = GGUFSource(tmp_path / "tiny.gguf")
    assert {name: info.shape for name, info in found.tensors.items()} == {
        name: info.shape for name, info in source.tensors.items()}
    for name, wanted in values.items():
        wanted = wanted.astype(dtype) if name.endswith(turned) else wanted
        np.testing.assert_array_equal(found.read(name), wanted)
    part = np.empty((3, 144), np.float32)
    found.read_rows("transformer.h.1.attn.c_attn.weight", 5, 8, part)
    np.testing.assert_array_equal(part, values["transformer.h.1.attn.c_attn.weight"].astype(dtype)[5:8])
    family = family_of(hf)
    assert family.decoder_config(found.config) == family.decoder_config(hf)


@pytest.mark.parametrize(("architecture", "layers"), [("gemma2", 46), ("gemma3", 62)])
def test_attention_of_the_largest_gemma_is_scaled_by_the_width_per_head(architecture, layers):
    metadata = {f"{architecture}.{key}": value for key, value in {
        "block_count": layers, "context_length": 8192, "embedding_length": 5376, "feed_forward_length": 21504,
        "attention.head_count": 32, "attention.head_count_kv": 16, "attention.key_length": 128,
        "attention.layer_norm_rms_epsilon": 1e-6, "attention.sliding_window": 1024}.items()}
    config = KNOWN[architecture].config(metadata)
    assert config["query_pre_attn_scalar"] == 168
    metadata[f"{architecture}.block_count"] = layers - 1
    assert KNOWN[architecture].config(metadata)["query_pre_attn_scalar"] == 128
