"""``Replica``: one copy of the model with a scheduler, blocks and a step loop of its own."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from jaxllm.config import EngineConfig
from jaxllm.engine.block_manager import BlockManager
from jaxllm.engine.limits import SchedulerConfig
from jaxllm.engine.loop import StepLoop, StepRunner
from jaxllm.engine.outcomes import Outcomes
from jaxllm.engine.request import Request
from jaxllm.engine.scheduler import Scheduler
from jaxllm.speculative.cost import StepCost
from jaxllm.speculative.speculator import Speculator


class Replica:
    """What an engine has for each copy of the model; it shares nothing with the others but the engine's locks.

    config: sizes of one replica. on_end: is told of each request that has ended.
    due: whether something has happened since its loop last looked for steps to begin.
    """

    def __init__(self, runner: StepRunner, config: EngineConfig, bookkeeping: AbstractContextManager[Any],
                 on_end: Callable[[Request], None]) -> None:
        self.runner = runner
        self.blocks = BlockManager(config.num_blocks, config.block_size, config.windows,
                                   enable_prefix_caching=config.enable_prefix_caching,
                                   num_swap_blocks=config.num_swap_blocks)
        self.scheduler = Scheduler(
            SchedulerConfig(
                max_num_seqs=config.max_num_seqs,
                max_num_batched_tokens=config.max_num_batched_tokens,
                max_model_len=config.max_model_len,
                policy=config.scheduling_policy,
                num_stages=config.pipeline_parallel_size,
            ),
            self.blocks,
            None if config.speculation is None else Speculator(config.speculation, StepCost.of_engine(config)),
        )
        self.outcomes = Outcomes(self.scheduler, on_end)
        self.loop = StepLoop(runner, self.scheduler, self.outcomes, bookkeeping, overlap=config.overlap,
                             in_flight=config.pipeline_parallel_size)
        self.due = False
