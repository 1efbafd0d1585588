"""Which executables there are: their names, and the sizes that do not depend on a step."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

from jaxllm.kv_cache.spec import KVSpec
from jaxllm.models.model import Model
from jaxllm.sampling import Variant

TABLE_CHANGES = 128
"""Table entries changed per call of ``update_table``."""
BLOCK_COPIES = 16
"""Blocks copied per call of ``copy_blocks``."""
SWAP_BLOCKS = 16
"""Blocks moved per call of ``read_blocks`` and ``write_blocks``."""
PROMPT_LOGPROB_ROWS = 64
"""Prompt tokens whose logits are in memory at once."""
VOCAB_LOGPROB_ROWS = 8
"""Rows whose log-probabilities of the whole vocabulary are computed per call of ``vocab_logprobs``."""
FILL_LAYERS = 10
"""Of longer runs of layers no ``fill`` is compiled: it would take as long as the run, and save one layer of many."""


@dataclasses.dataclass(frozen=True, slots=True)
class LayerChunk:
    """A run of layers that one call computes. Runs of the same kind, a number, have equal graphs, and parameters that
    are kept alike, and share their executable.

    groups, arrays: of the cache (``KVSpec.places``), those that the run uses. places: of each layer, where among these
    its own are; equal for runs of the same kind.
    """

    kind: int
    layers: slice
    groups: tuple[int, ...]
    arrays: tuple[int, ...]
    places: tuple[tuple[int, int], ...]


class Key(NamedTuple):
    """Which executable: a program, the bucket it is compiled for (0 if it has one size), and of which kind: the
    sampler's variant, or the number of the kind of layers. Hashed in every call: it holds numbers and a name only."""

    program: str
    bucket: int = 0
    kind: Variant | int | None = None

    def __str__(self) -> str:
        kind = f" ({self.kind.name.lower()})" if isinstance(self.kind, Variant) else ""
        return f"{self.program}{kind}" + (f" for {self.bucket} rows" if self.bucket else "")


def layer_chunks(model: Model, spec: KVSpec, layers_per_program: int) -> list[LayerChunk]:
    """Cut the layers that ``spec`` has into runs of one length, up to ``layers_per_program``, and what is left: into
    the fewest kinds of runs, of those cuts the one with the fewest runs."""
    start, stop = spec.layers[0], spec.layers[-1] + 1

    def cut(length: int) -> list[LayerChunk]:
        chunks = [slice(first, min(first + length, stop)) for first in range(start, stop, length)]
        used = [_used(spec.places[chunk]) for chunk in chunks]
        kinds = [(tuple(model.layer_kinds[chunk]), places) for chunk, (_, _, places) in zip(chunks, used, strict=True)]
        known = list(dict.fromkeys(kinds))
        return [LayerChunk(known.index(kind), chunk, *each)
                for kind, chunk, each in zip(kinds, chunks, used, strict=True)]

    cuts = (cut(length) for length in range(1, min(layers_per_program, stop - start) + 1))
    return min(cuts, key=lambda chunks: (len({chunk.kind for chunk in chunks}), len(chunks)))


def _used(places: Sequence[tuple[int, int]]
          ) -> tuple[tuple[int, ...], tuple[int, ...], tuple[tuple[int, int], ...]]:
    """The groups and arrays of some places, each once, and where among them those of each place are."""
    groups, arrays = (list(dict.fromkeys(numbers)) for numbers in zip(*places, strict=True))
    return (tuple(groups), tuple(arrays),
            tuple((groups.index(group), arrays.index(array)) for group, array in places))


def prompt_logprob_rows(token_bucket: int) -> int:
    """How many prompt tokens one call of ``prompt_logprobs`` takes at this bucket."""
    return min(token_bucket, PROMPT_LOGPROB_ROWS)
