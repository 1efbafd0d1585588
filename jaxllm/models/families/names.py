"""Tables of weight names: which modules of a checkpoint make up which module of the decoder."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Collection, Mapping

import numpy as np

from jaxllm.models.config import DecoderConfig
from jaxllm.weights.spec import ParamSpec, Piece


@dataclasses.dataclass(frozen=True)
class Stored:
    """A module of a checkpoint that keeps its tensors otherwise than the decoder does.

    read: its weight or bias, and the model's config, to what the decoder has; it changes places alone, never numbers.
    write: what undoes that, if it is not one of ``_INVERSES``. part: as of ``Piece``.
    """

    name: str
    read: Callable[[np.ndarray, DecoderConfig], np.ndarray]
    write: Callable[[np.ndarray, DecoderConfig], np.ndarray] | None = None
    part: int | None = None


Names = Mapping[str, tuple[str | Stored, ...]]
"""For each module of the decoder, the modules of a checkpoint that make it up, stacked along their first axis; ``{}``
stands for the layer's number in both. Modules that a model does not have are left out of account. A parameter can have
an entry of its own, "layers.{}.mlp.router.correction", with the whole names of tensors."""

LLAMA_NAMES: Names = {
    "embedding": ("model.embed_tokens",),
    "norm": ("model.norm",),
    "head": ("lm_head",),
    "layers.{}.attention_norm": ("model.layers.{}.input_layernorm",),
    "layers.{}.attention.qkv": (
        "model.layers.{}.self_attn.q_proj", "model.layers.{}.self_attn.k_proj", "model.layers.{}.self_attn.v_proj"),
    "layers.{}.attention.out": ("model.layers.{}.self_attn.o_proj",),
    "layers.{}.mlp_norm": ("model.layers.{}.post_attention_layernorm",),
    "layers.{}.mlp.gate_up": ("model.layers.{}.mlp.gate_proj", "model.layers.{}.mlp.up_proj"),
    "layers.{}.mlp.down": ("model.layers.{}.mlp.down_proj",),
}
"""Most families name their weights as Llama does."""

QK_NORM_NAMES: Names = {
    "layers.{}.attention.q_norm": ("model.layers.{}.self_attn.q_norm",),
    "layers.{}.attention.k_norm": ("model.layers.{}.self_attn.k_norm",),
}

PLAIN_MLP_NAMES: Names = {"layers.{}.mlp.up": ("model.layers.{}.mlp.up_proj",)}


def expert_names(config: DecoderConfig, module: str, gate_up: tuple[str, str] = ("gate_proj", "up_proj"),
                 down: str = "down_proj", router: str = "gate") -> Names:
    """Of experts whose matrices are tensors of their own, ``module.experts.7.gate_proj``, beside a router.

    module: with ``{}`` for the layer's number. gate_up, down, router: what its parts are called.
    """
    count = 0 if config.moe is None else config.moe.num_experts
    return {
        "layers.{}.mlp.router": (f"{module}.{router}",),
        "layers.{}.mlp.experts.gate_up": tuple(
            f"{module}.experts.{expert}.{part}" for expert in range(count) for part in gate_up),
        "layers.{}.mlp.experts.down": tuple(f"{module}.experts.{expert}.{down}" for expert in range(count)),
    }


Aliases = tuple[tuple[str, str], ...]
"""Other names that checkpoints use: a regular expression found in a name of the table, and what replaces it."""


def weight_map(names: Names, config: DecoderConfig, specs: Mapping[str, ParamSpec]) -> dict[str, tuple[Piece, ...]]:
    """For each parameter, the checkpoint tensors that make it up, stacked along their first axis."""
    found = {}
    for path in specs:
        module, _, leaf = path.rpartition(".")
        layer = ""
        if module.startswith("layers."):
            _, layer, rest = module.split(".", 2)
            module = f"layers.{{}}.{rest}"
        whole = f"{module}.{leaf}"
        found[path] = tuple(_piece(stored, layer, "", config) for stored in names[whole]) if whole in names else tuple(
            _piece(stored, layer, f".{leaf}", config) for stored in names[module])
    return found


def _piece(stored: str | Stored, layer: str, leaf: str, config: DecoderConfig) -> Piece:
    if isinstance(stored, str):
        return Piece(f"{stored.format(layer)}{leaf}")
    read, write = stored.read, stored.write or _INVERSES.get(stored.read)
    return Piece(f"{stored.name.format(layer)}{leaf}", lambda tensor: read(tensor, config),
                 None if write is None else lambda tensor: write(tensor, config), stored.part)


def transposed(tensor: np.ndarray, config: DecoderConfig) -> np.ndarray:
    """Of GPT-2's ``Conv1D``, which keeps matrices ``[in, out]``."""
    return tensor.T


def flat(tensor: np.ndarray, config: DecoderConfig) -> np.ndarray:
    """Of norms of each head, ``[heads, head_dim]``."""
    return tensor.reshape(-1)


def rows_of_experts(tensor: np.ndarray, config: DecoderConfig) -> np.ndarray:
    """Of all experts' matrices in one tensor, ``[E, out, in]``."""
    return tensor.reshape(-1, tensor.shape[-1])


def by_expert(tensor: np.ndarray, config: DecoderConfig) -> np.ndarray:
    """The rows, or numbers, of each expert apart: ``[E, out, in]`` or ``[E, out]``."""
    assert config.moe is not None
    return tensor.reshape(config.moe.num_experts, -1, *tensor.shape[1:])


def one_row(tensor: np.ndarray, config: DecoderConfig) -> np.ndarray:
    """Of a matrix of one row, which some formats keep as a vector."""
    return tensor.reshape(1, -1)


def grouped_by_head(tensor: np.ndarray, config: DecoderConfig) -> np.ndarray:
    """Of a product of which each kv head's queries, key and value lie together: first all queries, then all keys, then
    all values."""
    kv_heads, size = config.num_kv_heads, config.head_dim
    if tensor.shape[0] % (kv_heads * size):
        return tensor  # of a wrong shape, which is said where all are compared
    return tensor[_rows_grouped_by_head(tensor.shape[0], config)]


def _rows_grouped_by_head(count: int, config: DecoderConfig) -> np.ndarray:
    rows = np.arange(count).reshape(config.num_kv_heads, -1, config.head_dim)
    return np.concatenate([part.reshape(-1) for part in np.split(rows, (-2, -1), axis=1)])


def _to_groups(tensor: np.ndarray, config: DecoderConfig) -> np.ndarray:
    return tensor[np.argsort(_rows_grouped_by_head(tensor.shape[0], config))]


def _to_heads(tensor: np.ndarray, config: DecoderConfig) -> np.ndarray:
    return tensor.reshape(-1, config.head_dim)


_Change = Callable[[np.ndarray, DecoderConfig], np.ndarray]
_INVERSES: Mapping[_Change, _Change] = {transposed: transposed, flat: _to_heads, grouped_by_head: _to_groups,
                                        rows_of_experts: by_expert, one_row: one_row}
"""By ``Stored.read``, what undoes it, for models that are written."""


def with_aliases(plan: Mapping[str, tuple[Piece, ...]], aliases: Aliases, stored: Collection[str]
                 ) -> dict[str, tuple[Piece, ...]]:
    """The same for a checkpoint that has the tensors ``stored``: where it has another name only, that one."""
    def named(piece: Piece) -> Piece:
        others = (re.sub(pattern, name, piece.name) for pattern, name in aliases)
        found = next((other for other in (piece.name, *others) if other in stored), piece.name)
        return dataclasses.replace(piece, name=found)

    return {path: tuple(map(named, pieces)) for path, pieces in plan.items()}


def ignored_tensors(config: DecoderConfig) -> tuple[str, ...]:
    """Patterns of checkpoint tensors that hold nothing the config and the other tensors do not say."""
    ignored = (r".*\.rotary_emb\.inv_freq", r"\.(attn|attention)\.(masked_)?bias$")
    return (*ignored, r"(lm_head|embed_out)\.weight") if config.tie_word_embeddings else ignored
