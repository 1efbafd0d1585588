"""``BeamSelector``: which beams go on with which tokens, and which are finished; equal to Hugging Face's beam search.

The oracle is ``_beam_search`` of transformers 5.24 (``generation/utils.py``), for one prompt. All scores are float32.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from jaxllm.beam_search import EarlyStopping
from jaxllm.outputs import FinishReason


class Ending(NamedTuple):
    """Why a hypothesis is finished."""

    reason: FinishReason
    stop_reason: int | str | None = None


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Beam:
    """A beam's newest token; the ones before it are its ancestors', so that beams share their common past.

    logprob, rank: the token's own. cum_logprob: float32, the sum of all of the beam's tokens'. length: their number.
    """

    parent: Beam | None
    token: int
    logprob: np.float32
    rank: int
    cum_logprob: np.float32
    length: int

    def path(self) -> list[Beam]:
        """The beam at each of its tokens, first to last."""
        beams: list[Beam] = []
        beam = self
        while beam.parent is not None:
            beams.append(beam)
            beam = beam.parent
        return beams[::-1]

    @property
    def token_ids(self) -> list[int]:
        """All its tokens."""
        return [beam.token for beam in self.path()]


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Hypothesis:
    """A finished beam. score: float32, what hypotheses are ranked by."""

    beam: Beam
    score: np.float32
    ending: Ending


class Move(NamedTuple):
    """A beam of the next step: the present beam of number ``parent`` with one more token."""

    parent: int
    token: int


class BeamSelector:
    """The state of one search: running beams and finished hypotheses, both best first.

    Before the first step there is one beam, the prompt's, of length 0. At each step the ``num_candidates`` best
    continuations of all running beams are ranked (ties: the better beam's, then the lower id). Of the first ``width``
    those that end become hypotheses; the ``width`` best of those that do not are the next beams. One beam is greedy
    search.

    max_tokens: beams of that length are finished.
    ends: whether a candidate is finished by what it says; asked in order of rank, and not of those that are past
        making a difference.
    """

    def __init__(
        self,
        width: int,
        *,
        max_tokens: int,
        num_candidates: int,
        ends: Callable[[Beam], Ending | None],
        length_penalty: float = 1.0,
        early_stopping: EarlyStopping = False,
    ) -> None:
        self.width = width
        self.max_tokens = max_tokens
        self.num_candidates = num_candidates
        self.length_penalty = length_penalty
        self.early_stopping: EarlyStopping = True if width == 1 else early_stopping
        self._ends = ends
        self.beams = [Beam(None, -1, np.float32(0), 0, np.float32(0), 0)]
        self.finished: list[Hypothesis] = []
        self.done = False

    def score(self, beam: Beam, length: int | None = None) -> np.float32:
        """The beam's score, at its own length or another. An output is not empty."""
        divisor = float(beam.length if length is None else length) ** self.length_penalty
        return beam.cum_logprob / np.float32(divisor)

    def advance(self, top_ids: np.ndarray, top_logprobs: np.ndarray) -> list[Move]:
        """Take one step; how the new ``beams`` came about, in their order. Empty once ``done``.

        top_ids i32[beams, k], top_logprobs f32[beams, k]: of each beam the most likely next tokens, best first, equal
        ones by id; tokens of no probability (-inf) are none.
        """
        running: list[tuple[Beam, int]] = []
        ended: list[Hypothesis] = []
        for place, (beam, parent) in enumerate(self._candidates(top_ids, top_logprobs)):
            if place >= self.width and len(running) == self.width:
                break
            ending = self._ends(beam) or (Ending("length") if beam.length >= self.max_tokens else None)
            if ending is None:
                if len(running) < self.width:
                    running.append((beam, parent))
            elif place < self.width:
                ended.append(Hypothesis(beam, self.score(beam), ending))
        # A stable sort: of equal scores the one found first stays.
        self.finished = sorted([*self.finished, *ended], key=lambda found: -found.score)[: self.width]
        self.beams = [beam for beam, _ in running]
        self.done = not running or self._may_stop()
        return [] if self.done else [Move(parent, beam.token) for beam, parent in running]

    def _candidates(self, top_ids: np.ndarray, top_logprobs: np.ndarray) -> Iterator[tuple[Beam, int]]:
        """The best continuations, best first, with their parents' numbers."""
        sums = np.array([beam.cum_logprob for beam in self.beams], np.float32)
        totals = (np.asarray(top_logprobs, np.float32) + sums[:, None]).ravel()
        # Row after row, and stable: equal ones come in order of beam, then of id.
        order = np.argsort(-totals, kind="stable")[: self.num_candidates]
        for parent, column in zip(*np.unravel_index(order, top_ids.shape), strict=True):
            logprob = top_logprobs[parent, column]
            if np.isneginf(logprob):
                return
            before = self.beams[parent]
            rank = 1 + int(np.count_nonzero(top_logprobs[parent] > logprob))
            total = np.float32(logprob + before.cum_logprob)
            yield Beam(before, int(top_ids[parent, column]), logprob, rank, total, before.length + 1), int(parent)

    def _may_stop(self) -> bool:
        if len(self.finished) < self.width:
            return False
        if self.early_stopping is True:
            return True
        best = self.beams[0]
        longest = self.early_stopping == "never" and self.length_penalty > 0.0
        reachable = self.score(best, self.max_tokens if longest else best.length)
        return bool(reachable <= self.finished[-1].score)
