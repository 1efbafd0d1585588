"""Which executables there are: their names, and the sizes that do not depend on a step."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

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

@dataclasses.dataclass(frozen=True, slots=True)
class LayerChunk:
    """A run of layers that one call computes. Runs of the same kind, a number, have equal graphs, and parameters that
    are kept alike, and share their executable."""

    kind: int
    layers: slice


class Key(NamedTuple):
    """Which executable: a program, the bucket it is compiled for (0 if it has one size), and of which kind: the
    sampler's variant, or the number of the kind of layers. Hashed in every call: it holds numbers and a name only."""

    program: str
    bucket: int = 0
    kind: Variant | int | None = None

    def __str__(self) -> str:
        kind = f" ({self.kind.name.lower()})" if isinstance(self.kind, Variant) else ""
        return f"{self.program}{kind}" + (f" for {self.bucket} rows" if self.bucket else "")


def layer_chunks(model: Model, layers_per_program: int) -> list[LayerChunk]:
    """Cut the layers into runs of one length, up to ``layers_per_program``, and what is left: into the fewest kinds of
    runs, of those cuts the one with the fewest runs."""
    layers = model.config.num_layers

    def cut(length: int) -> list[LayerChunk]:
        chunks = [slice(first, min(first + length, layers)) for first in range(0, layers, length)]
        kinds = [tuple(model.layer_kinds[chunk]) for chunk in chunks]
        known = list(dict.fromkeys(kinds))
        return [LayerChunk(known.index(kind), chunk) for kind, chunk in zip(kinds, chunks, strict=True)]

    cuts = (cut(length) for length in range(1, min(layers_per_program, layers) + 1))
    return min(cuts, key=lambda chunks: (len({chunk.kind for chunk in chunks}), len(chunks)))


def prompt_logprob_rows(token_bucket: int) -> int:
    """How many prompt tokens one call of ``prompt_logprobs`` takes at this bucket."""
    return min(token_bucket, PROMPT_LOGPROB_ROWS)
