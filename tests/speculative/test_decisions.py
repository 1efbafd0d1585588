"""How many tokens are guessed, and which stand."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxllm.speculative.acceptance import Acceptance
from jaxllm.speculative.cost import LEAST_GAIN, StepCost, choose
from jaxllm.speculative.verify import num_standing

COST = StepCost((8, 32, 64, 128), (8, 32, 64))
SMALL = st.lists(st.integers(-1, 2), min_size=1, max_size=6)


@given(sampled=SMALL, drafts=st.lists(st.integers(0, 2), min_size=5, max_size=5))
def test_a_draft_stands_while_it_and_all_before_it_are_what_was_sampled(sampled, drafts):
    drafts = drafts[:len(sampled) - 1]
    standing = num_standing(sampled, drafts)
    assert 1 <= standing <= len(sampled)
    assert sampled[:standing - 1] == drafts[:standing - 1]
    assert -1 not in sampled[1:standing]
    if standing < len(sampled):
        assert sampled[standing - 1] != drafts[standing - 1] or sampled[standing] == -1


def test_a_first_token_that_could_not_be_sampled_is_left_to_be_reported():
    assert num_standing([-1], []) == 1
    assert num_standing([-1, 5], [4]) == 1


def test_guesses_that_keep_coming_true_are_trusted_and_those_that_do_not_are_not():
    good, bad = Acceptance(), Acceptance()
    for _ in range(30):
        good.record(4, right=True)
        bad.record(4, right=False)
    assert good.gains(4, 1)[0] > 0.95
    assert bad.gains(4, 1)[0] < LEAST_GAIN
    assert good.share > 0.9
    assert bad.share == 0.0


def test_trust_comes_back_after_a_while():
    acceptance = Acceptance()
    for _ in range(100):
        acceptance.record(2, right=False)
    for _ in range(12):
        acceptance.record(2, right=True)
    assert acceptance.gains(2, 1)[0] > 0.6


def test_short_matches_that_fail_leave_long_ones_trusted():
    acceptance = Acceptance()
    before = acceptance.gains(16, 1)
    for _ in range(30):
        acceptance.record(2, right=False)
    assert acceptance.gains(16, 1) == before


@given(matched=st.integers(1, 40), outcomes=st.lists(st.booleans(), max_size=30))
def test_a_later_guess_never_counts_for_more_than_an_earlier_one(matched, outcomes):
    acceptance = Acceptance()
    for right in outcomes:
        acceptance.record(matched, right=right)
    gains = acceptance.gains(matched, 10)
    assert all(1 >= one >= other >= 0 for one, other in itertools.pairwise(gains))


@pytest.mark.parametrize(("num_tokens", "num_rows", "budget", "fits"), [
    (1, 1, 128, [7, 31, 63]),      # a single stream: up to as many rows as there are
    (8, 8, 128, [0, 24, 56]),
    (64, 64, 128, [0]),            # rows are full
    (40, 40, 128, [24]),
    (1, 1, 16, [7, 15]),           # the budget of a step
    (100, 3, 128, [5]),            # beside a prompt: padding only, of the tokens and of the rows
    (128, 3, 128, [0]),
])
def test_drafts_fit_into_padding_and_into_the_next_sizes(num_tokens, num_rows, budget, fits):
    assert [fit for fit, _ in COST.room(num_tokens, num_rows, budget)][:len(fits)] == fits


def test_padding_is_filled_with_what_is_likely_enough():
    room = COST.room(1, 1, 128)
    assert choose([0.6, 0.4, 0.2, LEAST_GAIN / 2], 1, room).number == 3
    assert choose([], 1, room).number == 0


def test_a_larger_step_is_paid_for_by_likely_drafts_alone():
    room = COST.room(1, 1, 128)
    assert choose([0.99**ahead for ahead in range(1, 32)], 1, room).number > 7
    assert choose([0.6**ahead for ahead in range(1, 32)], 1, room).number <= 7


@given(gains=st.lists(st.floats(0, 1), max_size=80), num_rows=st.integers(1, 64), beside=st.integers(0, 64))
def test_no_other_number_of_drafts_is_expected_to_bring_more_tokens_for_their_cost(gains, num_rows, beside):
    gains = sorted(gains, reverse=True)
    room = COST.room(num_rows + beside, num_rows, 128)
    count = choose(gains, num_rows, room).number
    likely = [gain for gain in gains if gain >= LEAST_GAIN]

    def rate(number):
        cost = next(cost for fit, cost in room if number <= fit)
        return (num_rows + sum(likely[:number])) / cost

    assert count <= min(len(likely), room[-1][0])
    most = min(len(likely), room[-1][0])
    assert rate(count) >= max(rate(number) for number in range(most + 1)) - 1e-9
