"""A tiny random Llama as a Hugging Face folder: config, safetensors, a byte-level tokenizer with a chat template."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import tokenizers
from safetensors.numpy import save_file
from tokenizers import AddedToken, decoders, models, pre_tokenizers

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 264, "hidden_size": 32,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 48,
    "max_position_embeddings": 256, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": True,
    "bos_token_id": 257, "eos_token_id": 258,
}


def write_tiny_folder(path: Path, *, seed: int = 0, scale: float = 0.3, **changes) -> Path:
    """Make the folder and return it; ``changes`` go into ``config.json``."""
    path.mkdir(parents=True, exist_ok=True)
    config = {**CONFIG, **changes}
    (path / "config.json").write_text(json.dumps(config))
    save_file(_tensors(config, seed, scale), path / "model.safetensors")
    _tokenizer().save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text(json.dumps(
        {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "chat_template": CHAT_TEMPLATE}))
    return path


def _tensors(config, seed, scale):
    generator = np.random.default_rng(seed)
    width, inner = config["hidden_size"], config["intermediate_size"]
    size = width // config["num_attention_heads"]
    kv_width = config["num_key_value_heads"] * size

    def matrix(rows, columns):
        return generator.normal(0, scale, (rows, columns)).astype(np.float32)

    tensors = {"model.embed_tokens.weight": matrix(config["vocab_size"], width),
               "model.norm.weight": np.ones(width, np.float32)}
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        for name, shape in {
            "self_attn.q_proj": (width, width), "self_attn.k_proj": (kv_width, width),
            "self_attn.v_proj": (kv_width, width), "self_attn.o_proj": (width, width),
            "mlp.gate_proj": (inner, width), "mlp.up_proj": (inner, width), "mlp.down_proj": (width, inner),
        }.items():
            tensors[f"{at}{name}.weight"] = matrix(*shape)
        for name in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{at}{name}.weight"] = np.ones(width, np.float32)
    return tensors


def _tokenizer():
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = tokenizers.Tokenizer(models.BPE({letter: index for index, letter in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    return backend
