"""What a step has to read and compute, from the model's description: a lower bound of its time (Williams, Waterman and
Patterson 2009, Roofline)."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable

from jaxllm.kv_cache.spec import KVSpec
from jaxllm.models.model import Model
from jaxllm.weights.spec import ParamSpec


@dataclasses.dataclass(frozen=True)
class Cost:
    """Bytes that go through memory and floating-point operations, of one or more steps."""

    bytes: float = 0.0
    flops: float = 0.0

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.bytes + other.bytes, self.flops + other.flops)

    def seconds(self, bytes_per_second: float, flops_per_second: float) -> float:
        """The least time for it, if reading and computing overlap perfectly."""
        return max(self.bytes / bytes_per_second, self.flops / flops_per_second)


@dataclasses.dataclass(frozen=True)
class Chunk:
    """Tokens of one sequence that a step computes.

    start, count: ``count`` tokens after ``start`` others. sampled: whether the last one's successor is sampled.
    shared: how many of the first tokens' keys and values another chunk of the step reads anyway.
    """

    start: int
    count: int
    sampled: bool = True
    shared: int = 0


@dataclasses.dataclass(frozen=True)
class ModelCosts:
    """A model's share of each cost.

    Counted are the weights, once per step and whatever the number of tokens; keys and values of the contexts, read once
    per chunk, and those of new tokens, written once; two operations per weight of a matrix and token, and four per
    head dimension, query and key it sees. Of experts, those count that one token takes: the fewest that a step reads,
    and all that each token computes with. Not counted: activations, norms, rotary embeddings, the sampler.

    layer_bytes, head_bytes: of weights, the embedding counting where it is the head; layer_flops: per token of a chunk;
    head_flops: per sampled token. attention_flops: per layer and pair of a query and a key. kv_bytes: per layer and
    token. windows: the most keys that a query sees, if limited, and in how many layers. embedding_bytes: of a token's
    row.
    """

    layer_bytes: int
    head_bytes: int
    layer_flops: int
    head_flops: int
    attention_flops: int
    kv_bytes: int
    embedding_bytes: int
    windows: tuple[tuple[int | None, int], ...]

    @classmethod
    def of(cls, model: Model, kv: KVSpec) -> ModelCosts:
        """From the description of all parameters."""
        config = model.config
        layers = [spec for path, spec in model.specs.items() if path.startswith("layers.")]
        taken, of = (1, 1) if config.moe is None else (config.moe.experts_per_token, config.moe.num_experts)

        def counted(spec: ParamSpec, number: int) -> int:
            return number * taken // of if spec.is_of_experts else number

        head = model.head_spec
        return cls(
            layer_bytes=sum(counted(spec, spec.nbytes) for spec in layers),
            head_bytes=head.nbytes,
            layer_flops=2 * sum(counted(spec, spec.size) for spec in layers if len(spec.shape) > 1),
            head_flops=2 * head.size,
            attention_flops=4 * config.num_heads * config.head_dim,
            kv_bytes=kv.bytes_per_token // config.num_layers,
            embedding_bytes=model.specs["embedding.weight"].nbytes // config.vocab_size,
            windows=tuple(Counter(map(config.window_of, range(config.num_layers))).items()),
        )

    def step(self, chunks: Iterable[Chunk]) -> Cost:
        """One step over all these chunks."""
        chunks = list(chunks)
        tokens = sum(chunk.count for chunk in chunks)
        sampled = sum(chunk.sampled for chunk in chunks)
        pairs = sum(layers * _pairs(chunk, window) for chunk in chunks for window, layers in self.windows)
        keys = sum(layers * _keys(chunk, window) for chunk in chunks for window, layers in self.windows)
        written = tokens * sum(layers for _, layers in self.windows)
        return Cost(
            bytes=(self.layer_bytes + (self.head_bytes if sampled else 0) + (keys + written) * self.kv_bytes
                   + tokens * self.embedding_bytes),
            flops=tokens * self.layer_flops + sampled * self.head_flops + pairs * self.attention_flops)

    def prefill(self, prompts: Iterable[Chunk], budget: int) -> Cost:
        """The steps of at most ``budget`` tokens that compute these prompts one after the other."""
        total, filled = Cost(), 0
        chunks: list[Chunk] = []
        for prompt in prompts:
            start, end = prompt.start, prompt.start + prompt.count
            while start < end:
                length = min(end - start, budget - filled)
                chunks.append(Chunk(start, length, prompt.sampled and start + length == end, prompt.shared))
                start, filled = start + length, filled + length
                if filled == budget:
                    total, chunks, filled = total + self.step(chunks), [], 0
        return total + self.step(chunks) if chunks else total

    def decode(self, context: int, count: int, sequences: int = 1) -> Cost:
        """The ``count`` steps that each compute one more token of so many sequences, from ``context`` tokens on."""
        steps = (self.step([Chunk(context + number, 1)] * sequences) for number in range(count))
        return sum(steps, Cost())


def _pairs(chunk: Chunk, window: int | None) -> int:
    """Queries times the keys that each sees, itself included."""
    return _pairs_of_first(chunk.start + chunk.count, window) - _pairs_of_first(chunk.start, window)


def _pairs_of_first(tokens: int, window: int | None) -> int:
    """The same of a sequence's first tokens."""
    whole = tokens if window is None else min(tokens, window)
    return whole * (whole + 1) // 2 + (tokens - whole) * whole


def _keys(chunk: Chunk, window: int | None) -> int:
    """Earlier tokens whose keys and values only this chunk's queries need."""
    first = chunk.shared if window is None else max(chunk.shared, chunk.start - window + 1)
    return max(chunk.start - first, 0)
