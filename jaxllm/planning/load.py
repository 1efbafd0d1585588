"""``StageLoad``: what one GPU of a stage keeps, and what a step makes it read and compute."""

from __future__ import annotations

import dataclasses
from collections import Counter

from jaxllm.bench.roofline import Cost
from jaxllm.kv_cache.spec import KVSpec
from jaxllm.models.model import Model
from jaxllm.parallel.pipeline import balanced_layers
from jaxllm.planning.mesh import MeshSizes
from jaxllm.planning.shards import cache_of_one, config_of_one, specs_of_one
from jaxllm.weights.spec import ParamSpec

_FIRST = ("embedding", "project_in", "positions", "embedding_norm")
"""Of the parameters beside the layers, those that the first stage needs; the others are the last one's."""


@dataclasses.dataclass(frozen=True)
class StageLoad:
    """One GPU's share of a stage.

    weight_bytes: all that it keeps. dense_bytes: of weights that a step reads whatever its tokens; expert_bytes: of
        experts, of which it reads those that some token takes; head_bytes: of the head, where tokens are sampled;
        embedding_bytes: of a token's row, where they come in.
    dense_flops: per token; head_flops: per sampled token; expert_flops: per token of all GPUs that share the experts,
        if tokens spread evenly over them; attention_flops: per layer and pair of a query and a key.
    kv_layer_bytes: per token and layer. pool_arrays: of the cache, each with ``kv_layer_bytes`` for every slot.
    windows: the most keys that a query sees, if limited, and in how many layers.
    expert_layers: layers with experts. experts, experts_taken: of such a layer, and of them by a token.
    """

    layers: range
    weight_bytes: int
    dense_bytes: int
    expert_bytes: int
    head_bytes: int
    embedding_bytes: int
    dense_flops: int
    head_flops: int
    expert_flops: float
    attention_flops: int
    kv_layer_bytes: int
    pool_arrays: int
    windows: tuple[tuple[int | None, int], ...]
    expert_layers: int
    experts: int
    experts_taken: int

    def step(self, tokens: int, sampled: int, group_tokens: int, keys: float, pairs: float) -> Cost:
        """What a step reads and computes.

        tokens: of this replica. sampled: of them. group_tokens: of all replicas that share the experts. keys: earlier
        tokens whose keys and values are read, pairs: of queries and keys, both summed over the layers.
        """
        unread = (1 - self.experts_taken / self.experts) ** group_tokens if self.experts else 0.0
        kv = (keys + tokens * len(self.layers)) * self.kv_layer_bytes
        return Cost(
            bytes=(self.dense_bytes + self.expert_bytes * (1 - unread) + (self.head_bytes if sampled else 0)
                   + tokens * self.embedding_bytes + kv),
            flops=(tokens * self.dense_flops + group_tokens * self.expert_flops + sampled * self.head_flops
                   + pairs * self.attention_flops))


def stage_loads(model: Model, kv: KVSpec, mesh: MeshSizes) -> list[StageLoad]:
    """Of every stage, in their order."""
    config = model.config
    own, local = specs_of_one(model, mesh), config_of_one(config, mesh)
    by_layer: dict[int, list[ParamSpec]] = {layer: [] for layer in range(config.num_layers)}
    for path, spec in own.items():
        match path.split(".", 2):
            case ["layers", layer_number, _]:
                by_layer[int(layer_number)].append(spec)
    cache = cache_of_one(kv, local.num_kv_heads)
    moe = config.moe
    head = own["embedding.weight" if config.tie_word_embeddings else "head.weight"]
    loads = []
    stages = balanced_layers(model, mesh.pipe)
    for number, layers in enumerate(stages):
        first, last = number == 0, number == len(stages) - 1
        outer = {path: spec for path, spec in own.items() if not path.startswith("layers.")
                 and (first if path.split(".")[0] in _FIRST else last)}
        if last and config.tie_word_embeddings:
            outer["embedding.weight"] = head
        inner = [spec for layer in layers for spec in by_layer[layer]]
        experts = [spec for spec in inner if spec.is_of_experts]
        dense = [spec for spec in inner if not spec.is_of_experts]
        taken = 0.0 if moe is None else moe.experts_per_token / moe.num_experts
        loads.append(StageLoad(
            layers=layers,
            weight_bytes=sum(spec.nbytes for spec in (*inner, *outer.values())),
            dense_bytes=sum(spec.nbytes for spec in dense),
            expert_bytes=sum(spec.nbytes for spec in experts),
            head_bytes=head.nbytes if last else 0,
            embedding_bytes=model.specs["embedding.weight"].nbytes // config.vocab_size if first else 0,
            dense_flops=2 * sum(spec.size for spec in dense if len(spec.shape) > 1),
            head_flops=2 * head.size if last else 0,
            expert_flops=2 * taken * sum(spec.size for spec in experts if len(spec.shape) > 1),
            attention_flops=4 * local.num_heads * config.head_dim,
            kv_layer_bytes=cache.bytes_per_token // config.num_layers,
            pool_arrays=kv.of_layers(layers).arrays_per_group,
            windows=tuple(Counter(map(config.window_of, layers)).items()),
            expert_layers=sum(moe is not None and layer not in moe.dense_layers for layer in layers),
            experts=0 if moe is None else moe.num_experts,
            experts_taken=0 if moe is None else moe.experts_per_token,
        ))
    return loads
