"""``Collective``: what the GPUs of a mesh exchange in a step. The table in docs/parallelism.md is this."""

from __future__ import annotations

import dataclasses
from typing import Literal

from jaxllm.models.model import Model
from jaxllm.planning.gpus import GPU, START_SECONDS
from jaxllm.planning.load import StageLoad
from jaxllm.planning.mesh import MeshSizes

Kind = Literal["all-reduce", "all-gather", "all-to-all", "ragged-all-to-all", "send"]


@dataclasses.dataclass(frozen=True)
class Collective:
    """Exchanges of one kind that a stage makes in a step.

    where: after what. axis: over which axis of the mesh, of ``size`` GPUs. count: how many. bytes_each: of the operand
        on one GPU; of "ragged-all-to-all" of the buffer for what comes, which has room for every token of all GPUs.
        sent_bytes: what one GPU sends for all of them; with tokens that go to each expert alike. link: over what.
        seconds: for all of them, at least.
    """

    kind: Kind
    where: str
    axis: str
    size: int
    count: int
    bytes_each: int
    sent_bytes: int
    link: str
    seconds: float


def collectives_of(model: Model, mesh: MeshSizes, gpu: GPU, load: StageLoad, tokens: int, sampled: int
                   ) -> list[Collective]:
    """Those of one stage for a step of so many tokens, of which some are sampled greedily (what fills the step up to a
    bucket is not counted)."""
    config = model.config
    row = config.hidden_size * model.dtype.itemsize
    floats, ids = 4, 4
    found: list[Collective] = []

    def add(kind: Kind, where: str, axis: str, size: int, count: int, nbytes: int, sent: int | None = None) -> None:
        if size > 1 and count:
            found.append(_timed(kind, where, axis, size, count, nbytes, mesh, gpu, sent))

    first, last = load.layers.start == 0, load.layers.stop == config.num_layers
    if first:
        add("all-reduce", "the embedding", "tensor", mesh.tensor, 1, tokens * row)
    if config.qk_norm == "all":
        squares = tokens * 2 * floats
        add("all-reduce", "queries and keys, of their squares", "tensor", mesh.tensor, len(load.layers), squares)
    add("all-reduce", "attention", "tensor", mesh.tensor, len(load.layers), tokens * row)
    spread = load.expert_layers if mesh.spread else 0
    add("all-reduce", "MLP and experts", "tensor", mesh.tensor, len(load.layers), tokens * row)
    if spread:
        assert config.moe is not None
        own, taken = -(-tokens // mesh.tensor), config.moe.experts_per_token
        # Of its own rows a GPU sends each to the others that have one of its experts, and gets a result for each.
        reached = (mesh.experts - 1) * (1 - (1 - 1 / mesh.experts) ** taken)
        back = own * taken * (mesh.experts - 1) // mesh.experts
        add("all-to-all", "the router, numbers of rows", "experts", mesh.experts, 3 * spread, mesh.experts * ids)
        add("ragged-all-to-all", "the router, rows", "experts", mesh.experts, spread, mesh.experts * own * row,
            round(own * reached * row))
        add("ragged-all-to-all", "the router, numbers of experts", "experts", mesh.experts, spread,
            mesh.experts * own * taken * ids, round(own * reached * taken * ids))
        if config.moe.weigh_inputs:
            add("ragged-all-to-all", "the router, weights of experts", "experts", mesh.experts, spread,
                mesh.experts * own * taken * floats, round(own * reached * taken * floats))
        add("ragged-all-to-all", "experts, their results", "experts", mesh.experts, spread, own * taken * row,
            back * row)
    if last:
        add("all-gather", "the head, each row's best token", "tensor", mesh.tensor, 1, sampled * (floats + ids))
    else:
        add("send", "the stage's last layer", "pipe", mesh.pipe, 1, tokens * row)
    return found


def _timed(kind: Kind, where: str, axis: str, size: int, count: int, nbytes: int, mesh: MeshSizes, gpu: GPU,
           ragged: int | None) -> Collective:
    """With what a GPU sends, and the time for it, by rings (Patarasuk and Yuan 2009). ragged: what it sends where that
    does not follow from the operand."""
    link = mesh.link(gpu, axis)
    sent, hops = {
        "all-reduce": (2 * (size - 1) * nbytes // size, 2 * (size - 1)),
        "all-gather": ((size - 1) * nbytes, size - 1),
        "all-to-all": ((size - 1) * nbytes // size, 1),
        "ragged-all-to-all": (ragged or 0, 1),
        "send": (nbytes, 1),
    }[kind]
    seconds = START_SECONDS + hops * link.hop_seconds + sent / link.bytes_per_second
    return Collective(kind, where, axis, size, count, nbytes, count * sent, link.name, count * seconds)
