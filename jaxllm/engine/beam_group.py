"""``BeamGroup``: the sequences of a beam search, and which beam each of them carries."""

from __future__ import annotations

import dataclasses

import numpy as np

from jaxllm.engine.beam import BeamSelector
from jaxllm.engine.integrity import IntegrityError, require
from jaxllm.engine.request import Request, Sequence, SequenceStatus


@dataclasses.dataclass(frozen=True, slots=True)
class Succession:
    """How the sequences of a group go on after a selection.

    resting: those that carry no beam any more.
    forks: (parent, child, token): the child, which carried none or another beam, goes on from the parent's tokens.
    extended: (sequence, token): it goes on from its own.
    """

    resting: list[Sequence]
    forks: list[tuple[Sequence, Sequence, int]]
    extended: list[tuple[Sequence, int]]


class BeamGroup:
    """The state of a request that is a beam search.

    Every running beam is carried by one of the request's sequences. A carrier whose next-token row is known waits for
    the others'; when all are, ``advance`` selects. A carrier that waits may lose its slot and blocks: it then rests
    with its row, and what goes on from it is computed anew.

    row_width: how many of the most likely tokens are wanted of each row.
    """

    def __init__(self, request: Request, selector: BeamSelector, row_width: int) -> None:
        self.selector = selector
        self.row_width = row_width
        self._sequences = request.sequences
        self._carriers = request.sequences[:1]
        self._rows: dict[Sequence, tuple[np.ndarray, np.ndarray]] = {}

    def has_row(self, sequence: Sequence) -> bool:
        """Whether the sequence waits for the others'."""
        return sequence in self._rows

    def add_row(self, sequence: Sequence, top_ids: np.ndarray, top_logprobs: np.ndarray) -> None:
        """Take in the most likely tokens after a carrier, best first."""
        if sequence not in self._carriers or sequence in self._rows:
            raise IntegrityError(f"{sequence} has no row to give")
        self._rows[sequence] = (top_ids, top_logprobs)

    @property
    def ready(self) -> bool:
        """Whether every carrier's row is known."""
        return len(self._rows) == len(self._carriers)

    def advance(self) -> Succession:
        """Select, once ``ready``. When that ends the search (``selector.done``), all sequences rest."""
        top_ids, top_logprobs = map(np.stack, zip(*(self._rows[each] for each in self._carriers), strict=True))
        moves = self.selector.advance(top_ids, top_logprobs)
        before, self._rows = self._carriers, {}
        parents = {before[move.parent] for move in moves}
        # Those with a slot first: they keep it.
        spare = sorted((each for each in self._sequences if each not in parents), key=lambda each: each.slot is None)
        succession = Succession([], [], [])
        self._carriers = []
        for move in moves:
            parent = before[move.parent]
            if parent in parents:
                parents.remove(parent)  # its best child goes on in its place
                succession.extended.append((parent, move.token))
                self._carriers.append(parent)
            else:
                child = spare.pop(0)
                succession.forks.append((parent, child, move.token))
                self._carriers.append(child)
        succession.resting.extend(each for each in spare if each in before)
        return succession

    def check_integrity(self) -> None:
        """Raise ``IntegrityError`` unless every sequence is where its part in the search wants it."""
        require(len(set(self._carriers)) == len(self._carriers) == len(self.selector.beams), "beams are miscounted")
        require(set(self._rows) < set(self._carriers), "a selection is due")
        for sequence in self._sequences:
            resting = sequence.status is SequenceStatus.RESTING
            if sequence not in self._carriers:
                require(resting, "carries no beam", sequence)
                continue
            beam = self.selector.beams[self._carriers.index(sequence)]
            require(sequence.output_token_ids.tolist() == beam.token_ids, "has another beam's tokens", sequence)
            if self.has_row(sequence):
                waits = sequence.status is SequenceStatus.RUNNING and sequence.num_computed == sequence.num_tokens
                require(resting or waits, "has its row", sequence)
            else:
                require(not resting, "has no row and rests", sequence)
