"""Small checkpoints for the tests, written by the formats' own libraries."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import safetensors.numpy
from gguf import GGMLQuantizationType

HIDDEN, HEADS, KV_HEADS, FFN, VOCAB = 256, 8, 2, 512, 24
LLAMA_METADATA: dict[str, Any] = {
    "llama.block_count": 1, "llama.context_length": 512, "llama.embedding_length": HIDDEN,
    "llama.feed_forward_length": FFN, "llama.attention.head_count": HEADS, "llama.attention.head_count_kv": KV_HEADS,
    "llama.attention.layer_norm_rms_epsilon": 1e-5, "llama.rope.freq_base": 5000.0,
}


def llama_tensors(seed: int = 0) -> dict[str, np.ndarray]:
    """A one-layer Llama under its Hugging Face names, float32."""
    rng = np.random.default_rng(seed)
    head_dim = HIDDEN // HEADS
    shapes = {
        "model.embed_tokens.weight": (VOCAB, HIDDEN),
        "model.norm.weight": (HIDDEN,),
        "model.layers.0.input_layernorm.weight": (HIDDEN,),
        "model.layers.0.post_attention_layernorm.weight": (HIDDEN,),
        "model.layers.0.self_attn.q_proj.weight": (HIDDEN, HIDDEN),
        "model.layers.0.self_attn.k_proj.weight": (KV_HEADS * head_dim, HIDDEN),
        "model.layers.0.self_attn.v_proj.weight": (KV_HEADS * head_dim, HIDDEN),
        "model.layers.0.self_attn.o_proj.weight": (HIDDEN, HIDDEN),
        "model.layers.0.mlp.gate_proj.weight": (FFN, HIDDEN),
        "model.layers.0.mlp.up_proj.weight": (FFN, HIDDEN),
        "model.layers.0.mlp.down_proj.weight": (HIDDEN, FFN),
    }
    return {name: rng.standard_normal(shape, np.float32) for name, shape in shapes.items()}


GGUF_NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
    "model.layers.0.input_layernorm.weight": "blk.0.attn_norm.weight",
    "model.layers.0.post_attention_layernorm.weight": "blk.0.ffn_norm.weight",
    "model.layers.0.self_attn.q_proj.weight": "blk.0.attn_q.weight",
    "model.layers.0.self_attn.k_proj.weight": "blk.0.attn_k.weight",
    "model.layers.0.self_attn.v_proj.weight": "blk.0.attn_v.weight",
    "model.layers.0.self_attn.o_proj.weight": "blk.0.attn_output.weight",
    "model.layers.0.mlp.gate_proj.weight": "blk.0.ffn_gate.weight",
    "model.layers.0.mlp.up_proj.weight": "blk.0.ffn_up.weight",
    "model.layers.0.mlp.down_proj.weight": "blk.0.ffn_down.weight",
}


def permute_rows(weights: np.ndarray, heads: int) -> np.ndarray:
    """What llama.cpp's ``convert_hf_to_gguf.py`` does to query and key projections (``LlamaModel.permute``)."""
    split = weights.reshape(heads, 2, weights.shape[0] // heads // 2, *weights.shape[1:])
    return split.swapaxes(1, 2).reshape(weights.shape)


def stored(values: np.ndarray, kind: GGMLQuantizationType) -> np.ndarray:
    """The bytes (or numbers) that ``GGUFWriter`` takes for a tensor of that type."""
    return values if kind == GGMLQuantizationType.F32 else gguf.quants.quantize(values, kind)


def write_gguf(
    path: Path,
    tensors: Mapping[str, tuple[np.ndarray, GGMLQuantizationType]],
    metadata: Mapping[str, Any] = LLAMA_METADATA,
    architecture: str = "llama",
    endianess: gguf.GGUFEndian = gguf.GGUFEndian.LITTLE,
) -> Path:
    """A GGUF file; ``tensors`` under GGUF names, as ``stored`` gives them."""
    writer = gguf.GGUFWriter(path, architecture, endianess=endianess)
    for key, value in metadata.items():
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        else:
            writer.add_array(key, value)
    for name, (data, kind) in tensors.items():
        writer.add_tensor(name, data, raw_dtype=None if kind in (0, 1) else kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_llama_gguf(
    path: Path,
    kind: GGMLQuantizationType = GGMLQuantizationType.F32,
    extra: Mapping[str, np.ndarray] | None = None,
    metadata: Mapping[str, Any] = LLAMA_METADATA,
) -> tuple[Path, dict[str, np.ndarray]]:
    """The Llama of ``llama_tensors`` (and ``extra``, float32, under GGUF names) as llama.cpp's converter writes it.

    Returns the path and the values to expect, under Hugging Face names: those of the quantized tensors dequantized.
    """
    tensors, expected = {}, {}
    for name, values in llama_tensors().items():
        used = kind if values.ndim == 2 else GGMLQuantizationType.F32
        heads = {"q_proj": HEADS, "k_proj": KV_HEADS}.get(name.split(".")[-2])
        data = stored(values if heads is None else permute_rows(values, heads), used)
        tensors[GGUF_NAMES[name]] = data, used
        plain = gguf.quants.dequantize(stored(values, used).view(np.uint8), used)
        expected[name] = plain.reshape(values.shape)
    for name, values in (extra or {}).items():
        tensors[name] = values, GGMLQuantizationType.F32
    return write_gguf(path, tensors, metadata), expected


def write_hf_folder(
    path: Path, tensors: Mapping[str, np.ndarray] | None = None, config: Mapping[str, Any] | None = None,
    shards: int = 0, index: bool = True,
) -> Path:
    """A Hugging Face folder: one ``model.safetensors``, or that many shards with or without an index."""
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps(config or {"model_type": "llama", "vocab_size": VOCAB}))
    tensors = dict(tensors if tensors is not None else llama_tensors())
    if not shards:
        safetensors.numpy.save_file(tensors, path / "model.safetensors")
        return path
    placed: dict[str, str] = {}
    for shard in range(shards):
        file = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        names = list(tensors)[shard::shards]
        safetensors.numpy.save_file({name: tensors[name] for name in names}, path / file)
        placed |= dict.fromkeys(names, file)
    if index:
        (path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": placed}))
    return path
