"""Gives a step its drafts, and them their blocks."""

from __future__ import annotations

from jaxllm.engine.block_manager import BlockManager
from jaxllm.engine.plan import StepDraft
from jaxllm.engine.request import Sequence
from jaxllm.engine.running import Running
from jaxllm.speculative.speculator import Speculator


def add_drafts(step: StepDraft, speculator: Speculator, running: Running, blocks: BlockManager, budget: int) -> None:
    """Let sequences guess ahead in what a step, otherwise complete, has room for.

    They take blocks only from those that no running sequence may need for its next tokens. budget: the most tokens of a
    step.
    """
    sampled = [sequence for sequence, count in step.counts.items()
               if sequence.num_computed + count == sequence.target]

    def limit(sequence: Sequence) -> int:
        spare = max(running.spare_blocks, 0) // blocks.num_groups * blocks.block_size
        return blocks.num_held_slots(sequence) + spare - sequence.target

    drafts = speculator.draft(sampled, sum(step.counts.values()), len(sampled) + len(step.forks), budget, limit)
    for sequence, tokens in drafts.items():
        # Several may have counted on the same spare blocks.
        if limit(sequence) >= len(tokens) and blocks.grow(sequence, sequence.target + len(tokens)):
            step.drafts[sequence] = tokens
