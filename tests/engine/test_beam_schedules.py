"""Randomized schedules with beam searches among the requests: each finds what it would find alone."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from engine.beam_fake_engine import BeamFakeEngine
from engine.fake_engine import EOS, VOCAB_SIZE, Sizes, blocks_for_windows
from engine.test_random_schedules import PREFIXES, SIZES, WINDOWS, AnySchedule
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule, run_state_machine_as_test


class AnyScheduleWithBeams(AnySchedule):
    """Hypothesis adds beam searches too."""

    @initialize(sizes=SIZES)
    def start(self, sizes):
        self.engine = BeamFakeEngine(dataclasses.replace(sizes, num_blocks=blocks_for_windows(sizes.num_blocks, sizes)))

    @rule(
        prefix=st.sampled_from(PREFIXES),
        rest=st.lists(st.integers(0, EOS), max_size=6),
        width=st.sampled_from([1, 2, 3, 5]),
        max_tokens=st.sampled_from([1, 3, 10, None]),
        ignore_eos=st.booleans(),
        priority=st.integers(-1, 1),
        cache_salt=st.sampled_from([None, None, "a"]),
        length_penalty=st.sampled_from([-1.0, 0.0, 1.0]),
        early_stopping=st.sampled_from([False, True, "never"]),
    )
    def search(self, prefix, rest, **options):
        self.engine.search(prefix + rest, **options)

    @rule(which=st.integers(0, 100), index=st.integers(0, 6))
    def finish_one_sample(self, which, index):
        """Only of requests that sample: a beam is never ended alone."""
        unfinished = [request for request in self.engine.scheduler.requests if request.beams is None]
        if unfinished:
            samples = unfinished[which % len(unfinished)].sequences
            self.engine.scheduler.finish(samples[index % len(samples)], "abort")


def _check_any_schedule(num_examples):
    options = settings(
        max_examples=num_examples, stateful_step_count=40, deadline=None, derandomize=True,
        suppress_health_check=list(HealthCheck))
    run_state_machine_as_test(AnyScheduleWithBeams, settings=options)


def test_any_schedule_keeps_the_invariants_and_finds_what_searches_alone_find():
    _check_any_schedule(20)


@pytest.mark.sweep
def test_many_more_schedules_keep_the_invariants():
    _check_any_schedule(1500)


def _random_run(seed):
    """A busy engine with a small pool, on which beam searches and other requests keep arriving."""
    rng = np.random.default_rng(seed)
    sizes = Sizes(
        num_blocks=int(rng.integers(11, 23)),
        windows=WINDOWS[rng.integers(len(WINDOWS))],
        num_swap_blocks=int(rng.choice([0, 5, 30])),
        enable_prefix_caching=bool(rng.random() < 0.7),
        max_num_seqs=int(rng.integers(2, 8)),
        max_num_batched_tokens=int(rng.choice([1, 4, 8, 16, 32])),
        policy="fcfs" if rng.random() < 0.5 else "priority",
        overlap=bool(seed % 2),
        guesses=bool(seed % 4 >= 2),
    )
    engine = BeamFakeEngine(dataclasses.replace(sizes, num_blocks=blocks_for_windows(sizes.num_blocks, sizes)))
    for _ in range(20):
        prefix = PREFIXES[rng.choice(len(PREFIXES), p=[0.4, 0.2, 0.2, 0.2])]
        prompt = prefix + rng.integers(0, EOS + 1, rng.integers(0, 8)).tolist()
        common = {"ignore_eos": bool(rng.random() < 0.7), "max_tokens": int(rng.integers(1, 40)),
                  "priority": int(rng.integers(3)), "cache_salt": [None, None, "a"][rng.integers(3)]}
        if rng.random() < 0.6:
            engine.search(prompt, int(rng.integers(1, 6)), length_penalty=float(rng.choice([-1, 0, 1])),
                          early_stopping=[True, False, "never"][rng.integers(3)], **common)
        else:
            engine.request(prompt, n=int(rng.choice([1, 1, 3])), seed=int(rng.integers(3)), **common)
        for _ in range(rng.integers(12)):
            engine.step()
        if rng.random() < 0.1 and engine.scheduler.has_unfinished:
            engine.scheduler.abort(str(rng.choice([request.request_id for request in engine.scheduler.requests])))
    engine.finish_all()
    return engine


def _check_random_runs(seeds):
    engines = [_random_run(seed) for seed in seeds]
    # The run proves something only if all this has happened, often.
    assert sum(engine.num_steps for engine in engines) > 200 * len(seeds)
    assert sum(engine.num_preemptions for engine in engines) > 10 * len(seeds)
    assert sum(engine.num_rested for engine in engines) > 2 * len(seeds)
    assert sum(engine.num_beam_forks for engine in engines) > 50 * len(seeds)
    assert sum(engine.num_copies for engine in engines) > 20 * len(seeds)
    assert sum(engine.num_swapped_in for engine in engines) > 2 * len(seeds)


def test_dozens_of_searches_on_small_pools_find_what_they_would_find_alone():
    _check_random_runs(range(8))


@pytest.mark.sweep
@pytest.mark.parametrize("first_seed", range(1000, 1400, 100))
def test_thousands_of_searches_find_what_they_would_find_alone(first_seed):
    _check_random_runs(range(first_seed, first_seed + 100))


@pytest.mark.parametrize("max_num_seqs", [1, 2, 3])
def test_more_beams_than_slots_take_turns(max_num_seqs):
    engine = BeamFakeEngine(Sizes(max_num_seqs=max_num_seqs, num_blocks=80))
    engine.search([0, 1, 2, 3, 1], 4, max_tokens=20, ignore_eos=True)
    engine.finish_all()


def test_one_block_more_than_a_single_beam_needs_is_enough():
    engine = BeamFakeEngine(Sizes(num_blocks=11, max_num_seqs=5))
    engine.search([0, 1, 2, 3, 1], 5, ignore_eos=True)
    engine.finish_all()
    assert engine.num_rested > 0


def test_beams_share_the_blocks_of_their_common_past():
    engine = BeamFakeEngine(Sizes(num_blocks=80, max_num_seqs=4, max_num_batched_tokens=64))
    request = engine.search([0, 1, 2, 3] * 5, VOCAB_SIZE - 1, max_tokens=12, ignore_eos=True)
    engine.step()
    used = [engine.blocks.stats().used_blocks]
    while engine.scheduler.has_unfinished:
        engine.step()
        used.append(engine.blocks.stats().used_blocks)
    # 5 blocks of prompt once, and 3 for each beam at most.
    assert max(used) <= 5 + 3 * len(request.sequences)
    engine.finish_all()
