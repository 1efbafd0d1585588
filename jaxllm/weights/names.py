"""GGUF architectures: how their tensor names and metadata become a Hugging Face checkpoint's.

A new architecture is one more entry of ``ARCHITECTURES``.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from jaxllm.errors import CheckpointError, UnsupportedModelError

Metadata = Mapping[str, Any]

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


def require(metadata: Metadata, key: str) -> Any:
    """A metadata value without which the model cannot be described."""
    if key not in metadata:
        raise CheckpointError(f"the GGUF metadata has no {key!r}")
    return metadata[key]


def _integer(metadata: Metadata, key: str, default: int | None = None) -> int:
    value = require(metadata, key) if default is None else metadata.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise UnsupportedModelError(f"the GGUF metadata {key!r} is {value!r}; supported is one positive integer for "
                                    "all layers")
    return value


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


def _rope_scaling(metadata: Metadata, prefix: str) -> dict[str, Any] | None:
    kind = metadata.get(f"{prefix}.rope.scaling.type")
    factor = metadata.get(f"{prefix}.rope.scaling.factor", metadata.get(f"{prefix}.rope.scale_linear"))
    if kind == "none" or (kind is None and factor in (None, 0.0, 1.0)):
        return None
    if metadata.get(f"{prefix}.rope.scaling.attn_factor", 1.0) != 1:
        raise UnsupportedModelError(f"the GGUF metadata {f'{prefix}.rope.scaling.attn_factor'!r} is "
                                    f"{metadata[f'{prefix}.rope.scaling.attn_factor']!r}; supported is 1")
    scaling = {"rope_type": kind or "linear", "factor": factor}
    original = metadata.get(f"{prefix}.rope.scaling.original_context_length")
    if original is not None:
        scaling["original_max_position_embeddings"] = original
    return scaling


def _common_config(metadata: Metadata, prefix: str) -> dict[str, Any]:
    """What all architectures with rotary embeddings say alike, but for the norms' epsilon."""
    heads = _integer(metadata, f"{prefix}.attention.head_count")
    width = _integer(metadata, f"{prefix}.embedding_length")
    head_dim = _integer(metadata, f"{prefix}.attention.key_length", max(1, width // heads))
    for key in (f"{prefix}.rope.dimension_count", f"{prefix}.attention.value_length"):
        if metadata.get(key, head_dim) != head_dim:
            raise UnsupportedModelError(f"the GGUF metadata {key!r} is {metadata[key]!r}; for the architecture "
                                        f"{prefix!r} only the head's size, {head_dim}, is supported")
    return {
        "hidden_size": width,
        "intermediate_size": _integer(metadata, f"{prefix}.feed_forward_length"),
        "num_hidden_layers": _integer(metadata, f"{prefix}.block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": _integer(metadata, f"{prefix}.attention.head_count_kv", heads),
        "head_dim": head_dim,
        "rope_theta": metadata.get(f"{prefix}.rope.freq_base", 10000.0),
        "rope_scaling": _rope_scaling(metadata, prefix),
        "max_position_embeddings": _integer(metadata, f"{prefix}.context_length"),
    }


def _rms_config(metadata: Metadata, prefix: str) -> dict[str, Any]:
    """The same, with root-mean-square normalization."""
    epsilon = require(metadata, f"{prefix}.attention.layer_norm_rms_epsilon")
    return _common_config(metadata, prefix) | {"rms_norm_eps": epsilon}


def _llama_config(metadata: Metadata) -> dict[str, Any]:
    config = _rms_config(metadata, "llama") | {"model_type": "llama", "hidden_act": "silu"}
    if not metadata.get("llama.expert_count"):
        return config
    return config | {
        "architectures": ["MixtralForCausalLM"],
        "model_type": "mixtral",
        "num_local_experts": _integer(metadata, "llama.expert_count"),
        "num_experts_per_tok": _integer(metadata, "llama.expert_used_count"),
    }


def _qwen2_config(metadata: Metadata) -> dict[str, Any]:
    return _rms_config(metadata, "qwen2") | {"model_type": "qwen2", "hidden_act": "silu"}


def _qwen3_config(metadata: Metadata) -> dict[str, Any]:
    return _rms_config(metadata, "qwen3") | {"model_type": "qwen3", "hidden_act": "silu"}


def _qwen_moe_config(metadata: Metadata, prefix: str) -> dict[str, Any]:
    """Which layers have experts, and how scores are normalized, the files do not say: all, and as llama.cpp does it."""
    return _rms_config(metadata, prefix) | {
        "hidden_act": "silu",
        "num_experts": _integer(metadata, f"{prefix}.expert_count"),
        "num_experts_per_tok": _integer(metadata, f"{prefix}.expert_used_count"),
        "moe_intermediate_size": _integer(metadata, f"{prefix}.expert_feed_forward_length"),
        "norm_topk_prob": prefix == "qwen3moe",
    }


def _qwen2_moe_config(metadata: Metadata) -> dict[str, Any]:
    shared = "qwen2moe.expert_shared_feed_forward_length"
    return _qwen_moe_config(metadata, "qwen2moe") | {
        "model_type": "qwen2_moe", "shared_expert_intermediate_size": _integer(metadata, shared)}


def _qwen3_moe_config(metadata: Metadata) -> dict[str, Any]:
    return _qwen_moe_config(metadata, "qwen3moe") | {"model_type": "qwen3_moe"}


def _gemma_config(metadata: Metadata) -> dict[str, Any]:
    return _rms_config(metadata, "gemma") | {"model_type": "gemma", "hidden_act": "gelu_pytorch_tanh"}


def _gemma2_config(metadata: Metadata) -> dict[str, Any]:
    config = _rms_config(metadata, "gemma2")
    return config | {
        "model_type": "gemma2",
        "hidden_activation": "gelu_pytorch_tanh",
        "sliding_window": metadata.get("gemma2.attention.sliding_window", 4096),
        "attn_logit_softcapping": metadata.get("gemma2.attn_logit_softcapping", 50.0),
        "final_logit_softcapping": metadata.get("gemma2.final_logit_softcapping", 30.0),
        "query_pre_attn_scalar": _attention_scalar(config, largest=46),
    }


def _gemma3_config(metadata: Metadata) -> dict[str, Any]:
    config = _rms_config(metadata, "gemma3")
    return config | {
        "model_type": "gemma3_text",
        "hidden_activation": "gelu_pytorch_tanh",
        "rope_theta": metadata.get("gemma3.rope.freq_base", 1e6),
        "rope_local_base_freq": metadata.get("gemma3.rope.freq_base_swa", 10000.0),
        "sliding_window": require(metadata, "gemma3.attention.sliding_window"),
        "final_logit_softcapping": metadata.get("gemma3.final_logit_softcapping"),
        "query_pre_attn_scalar": _attention_scalar(config, largest=62),
    }


def _gpt2_config(metadata: Metadata) -> dict[str, Any]:
    return {
        "model_type": "gpt2",
        "n_embd": _integer(metadata, "gpt2.embedding_length"),
        "n_layer": _integer(metadata, "gpt2.block_count"),
        "n_head": _integer(metadata, "gpt2.attention.head_count"),
        "n_inner": _integer(metadata, "gpt2.feed_forward_length"),
        "n_positions": _integer(metadata, "gpt2.context_length"),
        "layer_norm_epsilon": require(metadata, "gpt2.attention.layer_norm_epsilon"),
        "activation_function": "gelu_new",
    }


def _starcoder2_config(metadata: Metadata) -> dict[str, Any]:
    return _common_config(metadata, "starcoder2") | {
        "model_type": "starcoder2",
        "hidden_act": "gelu_pytorch_tanh",
        "norm_epsilon": require(metadata, "starcoder2.attention.layer_norm_epsilon"),
        "sliding_window": metadata.get("starcoder2.attention.sliding_window"),
        "use_bias": True,
    }


def _attention_scalar(config: Mapping[str, Any], largest: int) -> int:
    """Which size attention is scaled by: the head's, in the largest model (27B, known by its layers, as llama.cpp does)
    the width per head. The files do not say."""
    is_largest = config["num_hidden_layers"] == largest
    scalar: int = config["hidden_size"] // config["num_attention_heads"] if is_largest else config["head_dim"]
    return scalar


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


def _gemma(name: str, tensors: Mapping[str, str], config: Callable[[Metadata], dict[str, Any]]) -> Architecture:
    raised = frozenset(tensor for tensor in tensors if tensor.endswith("norm.weight"))
    return Architecture(name, tensors, config, raised=raised)


ARCHITECTURES: dict[str, Architecture] = {
    # Llama 2 and 3, Mistral, Mixtral, SmolLM2, TinyLlama: llama.cpp calls all of them "llama".
    "llama": Architecture(
        "LlamaForCausalLM",
        tensors=_LLAMA_TENSORS | _MIXTRAL_EXPERTS,
        config=_llama_config,
        name_with_experts="MixtralForCausalLM",
        permuted={
            "blk.{}.attn_q.weight": "num_attention_heads", "blk.{}.attn_q.bias": "num_attention_heads",
            "blk.{}.attn_k.weight": "num_key_value_heads", "blk.{}.attn_k.bias": "num_key_value_heads",
        },
    ),
    "qwen2": Architecture("Qwen2ForCausalLM", _LLAMA_TENSORS, _qwen2_config),
    "qwen3": Architecture("Qwen3ForCausalLM", _LLAMA_TENSORS | _QK_NORMS, _qwen3_config),
    "qwen2moe": Architecture("Qwen2MoeForCausalLM", _LLAMA_TENSORS | _QWEN_EXPERTS, _qwen2_moe_config),
    "qwen3moe": Architecture("Qwen3MoeForCausalLM", _LLAMA_TENSORS | _QK_NORMS | _QWEN_EXPERTS, _qwen3_moe_config),
    "gemma": _gemma("GemmaForCausalLM", _LLAMA_TENSORS, _gemma_config),
    "gemma2": _gemma("Gemma2ForCausalLM", _GEMMA2_TENSORS, _gemma2_config),
    "gemma3": _gemma("Gemma3ForCausalLM", _GEMMA2_TENSORS | _QK_NORMS, _gemma3_config),
    "gpt2": Architecture("GPT2LMHeadModel", _GPT2_TENSORS, _gpt2_config,
                         transposed=frozenset(f"blk.{{}}.{name}.weight" for name in _GPT2_MATRICES)),
    "starcoder2": Architecture("Starcoder2ForCausalLM", _STARCODER2_TENSORS, _starcoder2_config),
}
