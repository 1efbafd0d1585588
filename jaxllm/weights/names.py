"""GGUF architectures: how their tensor names and metadata become a Hugging Face checkpoint's.

A new architecture is one more entry of ``ARCHITECTURES``.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from jaxllm.errors import UnsupportedModelError
from jaxllm.weights.gguf_configs import (
    Metadata,
    gemma2_config,
    gemma3_config,
    gemma_config,
    gpt2_config,
    llama_config,
    phi3_config,
    qwen2_config,
    qwen2_moe_config,
    qwen3_config,
    qwen3_moe_config,
    starcoder2_config,
)

_END_OF_TURN = ("<|eot_id|>", "<|im_end|>", "<|end|>", "<|end_of_turn|>", "<end_of_turn>")


@dataclasses.dataclass(frozen=True)
class Architecture:
    """One GGUF ``general.architecture``.

    name: what Hugging Face calls it in ``config.json``. name_with_experts: where the file has experts.
    tensors: GGUF names to Hugging Face names; ``{}`` stands for the layer number in both. ``*`` stands for the expert:
        such tensors hold those of all experts, along their first axis.
    config: the metadata to the rest of a ``config.json``; what depends on the tensors (``vocab_size``, tied embeddings,
        biases) and the tokenizer (``bos_token_id``, ``eos_token_id``) is added by the reader, for all architectures
        alike.
    permuted: GGUF names (with ``{}``) whose rows llama.cpp reorders for its rotary embedding, to the ``config`` key
        that holds their number of heads.
    raised: GGUF names (with ``{}``) of norms that llama.cpp stores with 1 added.
    transposed: GGUF names (with ``{}``) of matrices that Hugging Face keeps ``[in, out]``.
    """

    name: str
    tensors: Mapping[str, str]
    config: Callable[[Metadata], dict[str, Any]]
    permuted: Mapping[str, str] = dataclasses.field(default_factory=dict)
    raised: frozenset[str] = frozenset()
    transposed: frozenset[str] = frozenset()
    name_with_experts: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """All that it can be in ``config.json``."""
        return (self.name, self.name_with_experts) if self.name_with_experts else (self.name,)


def architecture_of(metadata: Metadata, where: object) -> Architecture:
    """The entry for a file's architecture, or ``UnsupportedModelError``."""
    name = metadata.get("general.architecture")
    if not isinstance(name, str) or name not in ARCHITECTURES:
        raise UnsupportedModelError(f"{where} has the GGUF architecture {name!r}; supported: "
                                    + ", ".join(sorted(ARCHITECTURES)))
    return ARCHITECTURES[name]


def split_layer(name: str) -> tuple[str, str]:
    """A GGUF name with its layer number replaced by ``{}``, and that number (empty if it has none)."""
    match = re.match(r"blk\.(\d+)\.", name)
    return (name, "") if match is None else (f"blk.{{}}.{name[match.end():]}", match[1])


def unpermuted_rows(rows: int, heads: int) -> np.ndarray:
    """For each row of a query or key projection in Hugging Face's order, its row in llama.cpp's.

    Hugging Face rotates the first half of a head's rows against its second half, llama.cpp even rows against odd ones.
    """
    return np.arange(rows).reshape(heads, rows // heads // 2, 2).swapaxes(1, 2).reshape(-1)


def end_ids(metadata: Metadata) -> list[int]:
    """The token ids that end a text or a turn, without repetition, the end-of-sequence id first.

    Files made before ``eot_token_id`` existed name only the end of a text; there, an end-of-turn token is known by its
    text, and taken only if the chat template uses it.
    """
    ids = [metadata.get(f"tokenizer.ggml.{key}_token_id") for key in ("eos", "eot", "eom")]
    template, tokens = metadata.get("tokenizer.chat_template"), metadata.get("tokenizer.ggml.tokens")
    if isinstance(template, str) and isinstance(tokens, list):
        ids += [tokens.index(text) for text in _END_OF_TURN if text in template and text in tokens]
    return list(dict.fromkeys(number for number in ids if number is not None))


_LLAMA_TENSORS = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
    "blk.{}.attn_norm.weight": "model.layers.{}.input_layernorm.weight",
    "blk.{}.ffn_norm.weight": "model.layers.{}.post_attention_layernorm.weight",
    **{
        f"blk.{{}}.{ours}.{part}": f"model.layers.{{}}.{theirs}.{part}"
        for part in ("weight", "bias")
        for ours, theirs in {
            "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
            "attn_output": "self_attn.o_proj",
            "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
        }.items()
    },
}

_QK_NORMS = {
    "blk.{}.attn_q_norm.weight": "model.layers.{}.self_attn.q_norm.weight",
    "blk.{}.attn_k_norm.weight": "model.layers.{}.self_attn.k_norm.weight",
}

_MIXTRAL_EXPERTS = {
    "blk.{}.ffn_gate_inp.weight": "model.layers.{}.block_sparse_moe.gate.weight",
    **{f"blk.{{}}.ffn_{ours}_exps.weight": f"model.layers.{{}}.block_sparse_moe.experts.*.{theirs}.weight"
       for ours, theirs in {"gate": "w1", "up": "w3", "down": "w2"}.items()},
}

_QWEN_EXPERTS = {
    "blk.{}.ffn_gate_inp.weight": "model.layers.{}.mlp.gate.weight",
    "blk.{}.ffn_gate_inp_shexp.weight": "model.layers.{}.mlp.shared_expert_gate.weight",
    **{f"blk.{{}}.ffn_{part}_{ours}.weight": f"model.layers.{{}}.mlp.{theirs}.{part}_proj.weight"
       for part in ("gate", "up", "down") for ours, theirs in {"exps": "experts.*", "shexp": "shared_expert"}.items()},
}

_GEMMA2_TENSORS = _LLAMA_TENSORS | {
    "blk.{}.post_attention_norm.weight": "model.layers.{}.post_attention_layernorm.weight",
    "blk.{}.ffn_norm.weight": "model.layers.{}.pre_feedforward_layernorm.weight",
    "blk.{}.post_ffw_norm.weight": "model.layers.{}.post_feedforward_layernorm.weight",
}


_GPT2_MATRICES = {
    "attn_qkv": "attn.c_attn", "attn_output": "attn.c_proj", "ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj"}
_GPT2_TENSORS = {
    "token_embd.weight": "transformer.wte.weight",
    "position_embd.weight": "transformer.wpe.weight",
    "output.weight": "lm_head.weight",
    **{f"{ours}.{part}": f"transformer.{theirs}.{part}"
       for part in ("weight", "bias")
       for ours, theirs in {
           "output_norm": "ln_f", "blk.{}.attn_norm": "h.{}.ln_1", "blk.{}.ffn_norm": "h.{}.ln_2",
           **{f"blk.{{}}.{ours}": f"h.{{}}.{theirs}" for ours, theirs in _GPT2_MATRICES.items()}}.items()},
}

_STARCODER2_TENSORS = _LLAMA_TENSORS | {
    "output_norm.bias": "model.norm.bias",
    "blk.{}.attn_norm.bias": "model.layers.{}.input_layernorm.bias",
    "blk.{}.ffn_norm.bias": "model.layers.{}.post_attention_layernorm.bias",
    **{f"blk.{{}}.ffn_{ours}.{part}": f"model.layers.{{}}.mlp.{theirs}.{part}"
       for part in ("weight", "bias") for ours, theirs in {"up": "c_fc", "down": "c_proj"}.items()},
}


_PHI3_TENSORS = _LLAMA_TENSORS | {
    "blk.{}.attn_qkv.weight": "model.layers.{}.self_attn.qkv_proj.weight",
    "blk.{}.ffn_up.weight": "model.layers.{}.mlp.gate_up_proj.weight",
}


def _gemma(name: str, tensors: Mapping[str, str], config: Callable[[Metadata], dict[str, Any]]) -> Architecture:
    raised = frozenset(tensor for tensor in tensors if tensor.endswith("norm.weight"))
    return Architecture(name, tensors, config, raised=raised)


ARCHITECTURES: dict[str, Architecture] = {
    # Llama 2 and 3, Mistral, Mixtral, SmolLM2, TinyLlama: llama.cpp calls all of them "llama".
    "llama": Architecture(
        "LlamaForCausalLM",
        tensors=_LLAMA_TENSORS | _MIXTRAL_EXPERTS,
        config=llama_config,
        name_with_experts="MixtralForCausalLM",
        permuted={
            "blk.{}.attn_q.weight": "num_attention_heads", "blk.{}.attn_q.bias": "num_attention_heads",
            "blk.{}.attn_k.weight": "num_key_value_heads", "blk.{}.attn_k.bias": "num_key_value_heads",
        },
    ),
    "qwen2": Architecture("Qwen2ForCausalLM", _LLAMA_TENSORS, qwen2_config),
    "qwen3": Architecture("Qwen3ForCausalLM", _LLAMA_TENSORS | _QK_NORMS, qwen3_config),
    "qwen2moe": Architecture("Qwen2MoeForCausalLM", _LLAMA_TENSORS | _QWEN_EXPERTS, qwen2_moe_config),
    "qwen3moe": Architecture("Qwen3MoeForCausalLM", _LLAMA_TENSORS | _QK_NORMS | _QWEN_EXPERTS, qwen3_moe_config),
    "gemma": _gemma("GemmaForCausalLM", _LLAMA_TENSORS, gemma_config),
    "gemma2": _gemma("Gemma2ForCausalLM", _GEMMA2_TENSORS, gemma2_config),
    "gemma3": _gemma("Gemma3ForCausalLM", _GEMMA2_TENSORS | _QK_NORMS, gemma3_config),
    "gpt2": Architecture("GPT2LMHeadModel", _GPT2_TENSORS, gpt2_config,
                         transposed=frozenset(f"blk.{{}}.{name}.weight" for name in _GPT2_MATRICES)),
    "phi3": Architecture("Phi3ForCausalLM", _PHI3_TENSORS, phi3_config),
    "starcoder2": Architecture("Starcoder2ForCausalLM", _STARCODER2_TENSORS, starcoder2_config),
}
