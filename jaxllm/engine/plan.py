"""``StepPlan``: everything the runner needs for one step, as plain numpy."""

from __future__ import annotations

import dataclasses
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from jaxllm.engine.request import Sequence

Drafts = dict[Sequence, np.ndarray]
"""By sequence, i32[drafts]: the tokens that are guessed to follow."""


class Sampler(NamedTuple):
    """One token to sample: for which sequence, with which slot's sampling state, from the last token of which row.

    A sequence forked in this step has no row of its own and samples from its parent's. ahead: from how many drafts
    after the row's last certain token instead.
    """

    sequence: Sequence
    slot: int
    row: int
    ahead: int = 0


_NO_DRAFTS = np.zeros(0, np.int32)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class StepPlan:
    """What one step computes. The runner applies, in order: swap_out, swap_in, block_copies, table_updates,
    forward, sample.

    sequences: one per row, rows sorted by slot.
    slot, start, count: i32[rows]; row r computes tokens start[r] .. start[r] + count[r] - 1 of its sequence.
    fed: the rows whose one token is what an earlier step samples for their slot, which the host need not know yet: the
        step before, or one as many steps before as a pipeline has stages.
    sampled, ahead: of each sampler, its sequence and from how many drafts ahead it samples; sorted by slot, then by
        ``ahead``. One sampled token is expected for each, in this order.
    sampler_row, sampler_slot, sampler_position: integers [samplers]; each one's row and slot, and where in its sequence
        the token goes.
    forks: those of them that have no row of their own, with the one they sample from.
    table_updates: i32[k, 4] of (group, slot, column, block), no two for the same place.
    block_copies: i32[c, 2] of (source, destination), destinations distinct; all sources are read before any is written.
    admitted: sequences that were given a slot in this step: their sampling state has to be set. Forks included, and
        beams that have gone on from another since the last plan, which need not compute anything in this one.
    preempted: sequences that lost their slot and blocks, to be swapped in or recomputed later.
    swap_out: i32[o, 2] of (device block, host block), host blocks distinct.
    swap_in: i32[i, 2] of (host block, device block), device blocks distinct.
    num_tokens: the sum of ``count``, at most the token budget.
    drafts: of the sequences that guess ahead, which the last tokens of their rows are.

    A plan that is never run must be dropped (``Scheduler.drop``): the device then lacks its updates, which concern only
    sequences that the plan itself names.
    """

    sequences: list[Sequence]
    slot: np.ndarray
    start: np.ndarray
    count: np.ndarray
    fed: np.ndarray
    sampled: list[Sequence]
    ahead: list[int]
    sampler_row: np.ndarray
    sampler_slot: np.ndarray
    sampler_position: np.ndarray
    forks: list[tuple[Sequence, int]]
    table_updates: np.ndarray
    block_copies: np.ndarray
    admitted: list[Sequence]
    preempted: list[Sequence]
    swap_out: np.ndarray
    swap_in: np.ndarray
    num_tokens: int
    drafts: Drafts = dataclasses.field(default_factory=dict)

    @property
    def samplers(self) -> list[Sampler]:
        """``sampled`` with all that there is to say of each."""
        return list(map(Sampler, self.sampled, self.sampler_slot.tolist(), self.sampler_row.tolist(), self.ahead))

    @property
    def ends(self) -> np.ndarray:
        """i32[rows]: up to where each row's sequence is computed, whatever becomes of its drafts."""
        ends = self.start + self.count
        if self.drafts:
            ends -= np.fromiter(map(len, map(self._drafts_of, self.sequences)), np.int32, len(ends))
        return ends

    def _drafts_of(self, sequence: Sequence) -> np.ndarray:
        return self.drafts.get(sequence, _NO_DRAFTS)

    def token_ids(self) -> np.ndarray:
        """i32[num_tokens]: the tokens to compute, row after row; 0 for those that are fed.

        Only before the next ``Scheduler.update``.
        """
        ids = np.zeros(self.num_tokens, np.int32)
        if len(self.fed) == len(self.sequences):
            return ids
        is_fed = np.zeros(len(self.sequences), bool)
        is_fed[self.fed] = True
        start_of, count_of, end_of = self.start.tolist(), self.count.tolist(), np.cumsum(self.count).tolist()
        for row in np.flatnonzero(~is_fed).tolist():
            sequence, start, count, end = self.sequences[row], start_of[row], count_of[row], end_of[row]
            first = end - count
            known = sequence.token_ids[start : start + count]
            ids[first : first + len(known)] = known
            if sequence in self.drafts:
                drafts = self.drafts[sequence]
                ids[end - len(drafts) : end] = drafts
        return ids

    def positions(self) -> np.ndarray:
        """i32[num_tokens]: each token's position in its sequence."""
        first_of_row = np.cumsum(self.count) - self.count
        return (np.arange(self.num_tokens) + np.repeat(self.start - first_of_row, self.count)).astype(np.int32)


@dataclasses.dataclass(slots=True)
class StepDraft:
    """A plan in the making: the tokens left to give, those given to each sequence, and what else changes.

    number: of the plans made before it.
    forks: (parent, child), the parent being among those given tokens. drafts: what those that are given their last
    certain token compute besides.
    """

    budget: int
    number: int = 0
    counts: dict[Sequence, int] = dataclasses.field(default_factory=dict)
    forks: list[tuple[Sequence, Sequence]] = dataclasses.field(default_factory=list)
    admitted: list[Sequence] = dataclasses.field(default_factory=list)
    preempted: list[Sequence] = dataclasses.field(default_factory=list)
    drafts: Drafts = dataclasses.field(default_factory=dict)

    def give(self, sequence: Sequence, count: int) -> None:
        """Give the sequence ``count`` tokens of the budget."""
        self.counts[sequence] = count
        self.budget -= count

    def plan(self, table_updates: np.ndarray, block_copies: np.ndarray, swap_out: np.ndarray, swap_in: np.ndarray
             ) -> StepPlan:
        """The finished plan."""
        sequences = sorted(self.counts, key=attrgetter("slot"))
        counts, rows = self.counts, len(sequences)
        columns = [s.slot for s in sequences]
        columns += [s.num_computed for s in sequences]
        columns += [counts[s] for s in sequences]
        columns += [s.num_tokens for s in sequences]
        slot, start, count, known = np.fromiter(columns, np.int32, 4 * rows).reshape(4, rows)
        end = start + count
        # A row goes beyond what is known by the token that is pending, if there is one.
        sampler_row, fed = (end >= known).nonzero()[0], (end > known).nonzero()[0]
        sampler_slot, sampler_position = slot[sampler_row], end[sampler_row]
        sampled = [sequences[row] for row in sampler_row.tolist()]
        ahead = [0] * len(sampled)
        forks: list[tuple[Sequence, int]] = []
        if self.forks or self.drafts:
            row_of = {sequence: row for row, sequence in enumerate(sequences)}
            forks = [(child, row_of[parent]) for parent, child in self.forks]
            samplers = list(map(Sampler, sampled, sampler_slot.tolist(), sampler_row.tolist()))
            samplers += [Sampler(child, child.held_slot, row) for child, row in forks]
            for sequence, drafts in self.drafts.items():
                row = row_of[sequence]
                count[row] += len(drafts)
                samplers += [Sampler(sequence, sequence.held_slot, row, nth) for nth in range(1, len(drafts) + 1)]
            samplers.sort(key=lambda sampler: (sampler.slot, sampler.ahead))
            sampled, slots, row_of_each, ahead = map(list, zip(*samplers, strict=True))
            sampler_row, sampler_slot = np.array(row_of_each), np.array(slots, np.int32)
            sampler_position = end[sampler_row] + np.array(ahead, np.int32)
        return StepPlan(
            sequences=sequences,
            slot=slot,
            start=start,
            count=count,
            fed=fed,
            sampled=sampled,
            ahead=ahead,
            sampler_row=sampler_row,
            sampler_slot=sampler_slot,
            sampler_position=sampler_position,
            forks=forks,
            table_updates=table_updates,
            block_copies=block_copies,
            # A beam may have lost its slot again.
            admitted=[sequence for sequence in dict.fromkeys(self.admitted) if sequence.slot is not None],
            preempted=self.preempted,
            swap_out=swap_out,
            swap_in=swap_in,
            num_tokens=int(count.sum()),
            drafts=self.drafts,
        )
