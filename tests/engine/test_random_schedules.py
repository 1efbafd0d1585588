"""Randomized schedules: whatever happens, the invariants hold and every answer is what the request would get alone."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from engine.fake_engine import EOS, FakeEngine, Sizes, blocks_for_windows
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

PREFIXES = ([0], [1, 2, 3], [0, 1, 2, 3] * 3, [3, 3, 1, 0, 2, 2, 1] * 3)

WINDOWS = ((None,), (None,), (None, None), (None, 6), (5,), (None, 2, 13))

SIZES = st.builds(
    Sizes,
    num_blocks=st.sampled_from([12, 16, 25, 80]),
    block_size=st.sampled_from([4, 8]),
    windows=st.sampled_from(WINDOWS),
    num_swap_blocks=st.sampled_from([0, 3, 8, 100]),
    enable_prefix_caching=st.booleans(),
    max_num_seqs=st.integers(1, 6),
    max_num_batched_tokens=st.sampled_from([1, 2, 3, 7, 16, 64]),
    policy=st.sampled_from(["fcfs", "priority"]),
    overlap=st.booleans(),
    guesses=st.booleans(),
    num_stages=st.sampled_from([1, 1, 2, 4]),
)


class AnySchedule(RuleBasedStateMachine):
    """Hypothesis chooses what users do between and during steps."""

    @initialize(sizes=SIZES)
    def start(self, sizes: Sizes) -> None:
        self.engine = FakeEngine(dataclasses.replace(sizes, num_blocks=blocks_for_windows(sizes.num_blocks, sizes)))

    @rule(
        prefix=st.sampled_from(PREFIXES),
        rest=st.lists(st.integers(0, EOS), max_size=6),
        n=st.sampled_from([1, 1, 1, 2, 4, 7]),
        max_tokens=st.sampled_from([1, 3, 10, None]),
        ignore_eos=st.booleans(),
        seed=st.integers(0, 2),
        priority=st.integers(-1, 1),
        cache_salt=st.sampled_from([None, None, None, "", "a"]),
        prompt_logprobs=st.sampled_from([None, None, None, 0]),
    )
    def add(self, prefix: list[int], rest: list[int], **params: Any) -> None:
        self.engine.request(prefix + rest, **params)

    @rule(times=st.sampled_from([1, 1, 3, 10]))
    def step(self, times: int) -> None:
        for _ in range(times):
            self.engine.step()

    @rule(which=st.integers(0, 100))
    def abort(self, which: int) -> None:
        self._abort(which)

    @rule(which=st.integers(0, 100))
    def abort_while_a_step_runs(self, which: int) -> None:
        plan = self.engine.schedule()
        self._abort(which)
        if plan is not None:
            self.engine.complete(plan)

    @rule(which=st.integers(0, 100), index=st.integers(0, 6))
    def finish_one_sample(self, which: int, index: int) -> None:
        unfinished = list(self.engine.scheduler.requests)
        if unfinished:
            samples = unfinished[which % len(unfinished)].sequences
            self.engine.scheduler.finish(samples[index % len(samples)], "abort")

    @rule()
    def drop_a_step_that_failed(self) -> None:
        plan = self.engine.schedule()
        if plan is not None:
            dropped = self.engine.scheduler.drop(plan)
            assert {sequence.request for sequence in plan.sequences} <= set(dropped)

    @rule(weights_changed=st.booleans(), while_a_step_runs=st.booleans())
    def forget_prefixes(self, weights_changed: bool, while_a_step_runs: bool) -> None:
        plan = self.engine.schedule() if while_a_step_runs else None
        self.engine.forget_prefixes(weights_changed=weights_changed)
        if plan is not None:
            self.engine.complete(plan)

    @rule()
    def interrupt(self) -> None:
        unfinished = list(self.engine.scheduler.requests)
        self.engine.schedule()
        assert self.engine.reset() == unfinished

    @invariant()
    def integrity(self) -> None:
        if hasattr(self, "engine"):
            self.engine.scheduler.check_integrity()

    def teardown(self) -> None:
        if hasattr(self, "engine"):
            self.engine.finish_all()

    def _abort(self, which: int) -> None:
        unfinished = list(self.engine.scheduler.requests)
        if unfinished:
            assert self.engine.scheduler.abort(unfinished[which % len(unfinished)].request_id)
        assert not self.engine.scheduler.abort("nobody")


def _check_any_schedule(num_examples: int) -> None:
    # Derandomized: the same schedules on every run. Slow machines must not fail it.
    options = settings(
        max_examples=num_examples,
        stateful_step_count=40,
        deadline=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(AnySchedule, settings=options)


def test_any_schedule_keeps_the_invariants_and_gives_the_answers_of_requests_run_alone() -> None:
    _check_any_schedule(40)


@pytest.mark.sweep
def test_many_more_schedules_keep_the_invariants() -> None:
    _check_any_schedule(1500)


def _random_run(seed: int, num_stages: int = 1) -> FakeEngine:
    """A busy engine with a small pool, on which requests keep arriving."""
    rng = np.random.default_rng(seed)
    sizes = Sizes(
        num_blocks=int(rng.integers(11, 19)),
        windows=WINDOWS[rng.integers(len(WINDOWS))],
        num_swap_blocks=int(rng.choice([0, 5, 30])),
        enable_prefix_caching=bool(rng.random() < 0.7),
        max_num_seqs=int(rng.integers(3, 8)),
        max_num_batched_tokens=int(rng.choice([1, 4, 8, 16, 32])),
        policy="fcfs" if rng.random() < 0.5 else "priority",
        overlap=bool(seed % 2),
        guesses=bool(seed % 4 >= 2),
        num_stages=num_stages,
    )
    engine = FakeEngine(dataclasses.replace(sizes, num_blocks=blocks_for_windows(sizes.num_blocks, sizes)))
    for _ in range(25):
        prefix = PREFIXES[rng.choice(len(PREFIXES), p=[0.4, 0.2, 0.2, 0.2])]
        prompt = prefix + rng.integers(0, EOS + 1, rng.integers(0, 8)).tolist()
        engine.request(
            prompt,
            n=int(rng.choice([1, 1, 2, 5])),
            ignore_eos=bool(rng.random() < 0.7),
            max_tokens=int(rng.integers(1, 40)),
            seed=int(rng.integers(3)),
            priority=int(rng.integers(3)),
            cache_salt=[None, None, "a"][rng.integers(3)],
            prompt_logprobs=[None, None, 1][rng.integers(3)],
        )
        for _ in range(rng.integers(6)):
            engine.step()
        if rng.random() < 0.1 and engine.scheduler.has_unfinished:
            engine.scheduler.abort(str(rng.choice([request.request_id for request in engine.scheduler.requests])))
        if rng.random() < 0.05:
            engine.forget_prefixes(weights_changed=bool(rng.integers(2)))
        if rng.random() < 0.05 and (plan := engine.schedule()) is not None:
            engine.scheduler.drop(plan)
    engine.finish_all()
    return engine


def _check_random_runs(seeds: range) -> None:
    engines = [_random_run(seed) for seed in seeds]
    # The run proves something only if all this has happened, often.
    assert sum(engine.num_steps for engine in engines) > 300 * len(seeds)
    assert sum(engine.num_preemptions for engine in engines) > 10 * len(seeds)
    assert sum(engine.num_fed for engine in engines) > 100 * len(seeds)
    assert sum(engine.num_guessed for engine in engines) > 100 * len(seeds)
    assert sum(engine.num_right for engine in engines) > 40 * len(seeds)
    assert sum(engine.num_surplus for engine in engines) > 2 * len(seeds)
    assert sum(engine.num_forks for engine in engines) > 5 * len(seeds)
    assert sum(engine.num_copies for engine in engines) > 2 * len(seeds)
    assert sum(engine.num_swapped_out for engine in engines) > 20 * len(seeds)
    assert sum(engine.num_swapped_in for engine in engines) > 10 * len(seeds)
    assert sum(engine.blocks.stats().prefix_hits for engine in engines) > 20 * len(seeds)


def test_schedules_on_small_pools_give_the_answers_of_requests_run_alone() -> None:
    _check_random_runs(range(8))


def _check_pipelines(seeds: range) -> None:
    engines = [_random_run(seed, num_stages=2 + seed % 3) for seed in seeds]
    assert sum(engine.num_preemptions for engine in engines) > 10 * len(seeds)
    assert sum(engine.num_fed for engine in engines) > 50 * len(seeds)
    assert sum(engine.num_surplus for engine in engines) > 2 * len(seeds)
    assert sum(engine.num_swapped_in for engine in engines) > 5 * len(seeds)


def test_steps_in_the_stages_of_a_pipeline_give_the_answers_of_requests_run_alone() -> None:
    _check_pipelines(range(6))


@pytest.mark.sweep
def test_hundreds_of_pipelines_give_the_answers_of_requests_run_alone() -> None:
    _check_pipelines(range(2000, 2200))


@pytest.mark.sweep
@pytest.mark.parametrize("first_seed", range(1000, 1400, 100))
def test_tens_of_thousands_of_schedules_give_the_answers_of_requests_run_alone(first_seed: int) -> None:
    _check_random_runs(range(first_seed, first_seed + 100))
