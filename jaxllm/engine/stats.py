"""Figures about an engine: its load at a moment, and its totals."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from jaxllm.engine.block_stats import BlockStats
from jaxllm.engine.scheduler import Scheduler


@dataclasses.dataclass(slots=True)
class EngineTotals:
    """What an engine has done since it was made."""

    num_steps: int = 0
    num_prompt_tokens: int = 0
    num_generated_tokens: int = 0
    num_computed_tokens: int = 0
    num_preemptions: int = 0
    num_swapped_out: int = 0
    num_swapped_in: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class EngineStats:
    """The engine at this moment, and its totals since it was made, over all its replicas.

    num_steps: of each replica, added up.
    num_computed_tokens: tokens that went through the model, those computed anew after a preemption included, guesses
    that did not come true excluded.
    num_draft_tokens, num_accepted_tokens: tokens guessed ahead (``speculative_config``), and those of them that came.
    num_swapped_out, num_swapped_in: blocks copied to host memory, and back. kv_blocks_total excludes the null block.
    swap_blocks_total, swap_blocks_used: host blocks. kv_waste: share of the allocated slots that hold no token.
    prefix_hit_rate: share of the prompt tokens looked up in the prefix cache that were found.
    """

    num_running: int
    num_waiting: int
    num_steps: int
    num_prompt_tokens: int
    num_generated_tokens: int
    num_computed_tokens: int
    num_preemptions: int
    num_swapped_out: int
    num_swapped_in: int
    num_draft_tokens: int
    num_accepted_tokens: int
    kv_blocks_total: int
    kv_blocks_used: int
    kv_blocks_cached: int
    kv_slots_allocated: int
    kv_slots_filled: int
    kv_waste: float
    prefix_hit_rate: float
    swap_blocks_total: int
    swap_blocks_used: int

    @classmethod
    def of(cls, schedulers: Sequence[Scheduler], totals: Sequence[EngineTotals]) -> EngineStats:
        """A snapshot of replicas, those of one engine or one of them."""
        blocks = BlockStats.total([scheduler.blocks.stats() for scheduler in schedulers])
        names = [field.name for field in dataclasses.fields(EngineTotals)]
        return cls(
            num_running=sum(scheduler.num_running for scheduler in schedulers),
            num_waiting=sum(scheduler.num_waiting for scheduler in schedulers),
            **{name: sum(getattr(each, name) for each in totals) for name in names},
            kv_blocks_total=blocks.total_blocks,
            kv_blocks_used=blocks.used_blocks,
            kv_blocks_cached=blocks.cached_blocks,
            kv_slots_allocated=blocks.slots_allocated,
            kv_slots_filled=blocks.slots_filled,
            kv_waste=blocks.kv_waste,
            prefix_hit_rate=blocks.hit_rate,
            swap_blocks_total=sum(scheduler.blocks.swap.num_blocks for scheduler in schedulers),
            swap_blocks_used=sum(scheduler.blocks.swap.num_used for scheduler in schedulers),
        )
