"""A random Llama of one small layer as a Hugging Face folder, and workloads for it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import safetensors.numpy
import tokenizers

VOCAB = 96
WIDTH, HEADS, KV_HEADS, FFN, LAYERS = 32, 2, 1, 48, 1  # heads of 16, which native attention takes


def write_tiny_checkpoint(folder: Path) -> Path:
    """The folder, with configuration, weights and a tokenizer of one character per id."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": VOCAB, "hidden_size": WIDTH,
        "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS,
        "intermediate_size": FFN, "max_position_embeddings": 256, "tie_word_embeddings": True, "hidden_act": "silu",
    }))
    rng = np.random.default_rng(0)
    kv_width = WIDTH // HEADS * KV_HEADS
    shapes: dict[str, tuple[int, ...]] = {"embed_tokens": (VOCAB, WIDTH), "norm": (WIDTH,)}
    for layer in range(LAYERS):
        shapes |= {f"layers.{layer}.{name}": shape for name, shape in {
            "input_layernorm": (WIDTH,), "post_attention_layernorm": (WIDTH,),
            "self_attn.q_proj": (WIDTH, WIDTH), "self_attn.k_proj": (kv_width, WIDTH),
            "self_attn.v_proj": (kv_width, WIDTH), "self_attn.o_proj": (WIDTH, WIDTH),
            "mlp.gate_proj": (FFN, WIDTH), "mlp.up_proj": (FFN, WIDTH), "mlp.down_proj": (WIDTH, FFN),
        }.items()}
    tensors = {f"model.{name}.weight": rng.standard_normal(shape, np.float32) for name, shape in shapes.items()}
    safetensors.numpy.save_file(tensors, folder / "model.safetensors")
    vocabulary = {chr(32 + index): index for index in range(VOCAB - 1)} | {"<unk>": VOCAB - 1}
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<unk>"))
    backend.save(str(folder / "tokenizer.json"))
    return folder


def write_workload(folder: Path, sizes: list[tuple[int, int]], prefix: int = 0) -> str:
    """A workload file of random prompts, (prompt tokens, output tokens) each, that begin with ``prefix`` equal ones."""
    rng = np.random.default_rng(1)
    first = rng.integers(0, VOCAB, prefix).tolist()
    requests = [{"prompt": first + rng.integers(0, VOCAB, length - prefix).tolist(), "max_tokens": tokens}
                for length, tokens in sizes]
    path = folder / f"tiny-{len(sizes)}.json"
    path.write_text(json.dumps({"name": path.stem, "note": "for tests", "requests": requests}))
    return str(path)
