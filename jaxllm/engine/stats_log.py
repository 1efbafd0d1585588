"""``StatsLog``: a line of figures about a running engine, every few seconds."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from jaxllm.engine.stats import EngineStats

logger = logging.getLogger("jaxllm.stats")


class StatsLog:
    """Logs an engine's throughput and load every ``interval`` seconds while it runs, and when it runs out of work.

    The lines have level INFO. Where logging is not configured at all they go to standard error: whoever asks for them
    wants to see them.
    """

    def __init__(self, interval: float = 10.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._interval = interval
        self._clock = clock
        self._since: float | None = None
        self._prompt_tokens = self._generated_tokens = 0
        logger.setLevel(logging.INFO)
        if not logger.hasHandlers():
            logger.addHandler(logging.StreamHandler())

    def begin_step(self) -> None:
        """Called before each step: time without work does not count."""
        if self._since is None:
            self._since = self._clock()

    def end_step(self, read: Callable[[], EngineStats], *, idle: bool) -> None:
        """Called after each step. read: gives the figures, where a line is due. idle: nothing is left to do."""
        now = self._clock()
        elapsed = now - (now if self._since is None else self._since)
        if elapsed < self._interval and not idle:
            return
        stats = read()
        seconds = max(elapsed, 1e-9)
        logger.info(
            "%.1f prompt tokens/s, %.1f generated tokens/s; %d running, %d waiting; KV cache %.1f%% used; prefix cache "
            "%.1f%% hits; %d preemptions; %d of %d drafts accepted",
            (stats.num_prompt_tokens - self._prompt_tokens) / seconds,
            (stats.num_generated_tokens - self._generated_tokens) / seconds, stats.num_running, stats.num_waiting,
            100 * stats.kv_blocks_used / stats.kv_blocks_total, 100 * stats.prefix_hit_rate, stats.num_preemptions,
            stats.num_accepted_tokens, stats.num_draft_tokens)
        self._since = None if idle else now
        self._prompt_tokens, self._generated_tokens = stats.num_prompt_tokens, stats.num_generated_tokens
