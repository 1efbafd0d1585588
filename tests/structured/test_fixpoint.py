"""``follows``: the least set, each name asked about again only for a reason."""

from __future__ import annotations

import collections

import pytest

from jaxllm.structured.fixpoint import follows

CHAIN = {number: [number + 1] for number in range(500)} | {500: []}


@pytest.mark.parametrize(("needs", "expected"), [
    ({0: []}, True),
    ({0: [0]}, False),
    ({0: [1, 2], 1: [], 2: [1]}, True),
    ({0: [1], 1: [2], 2: [0]}, False),
    ({0: [1, 2], 1: [], 2: [2]}, False),
    (CHAIN, True),
    ({**CHAIN, 500: [250]}, False),
])
def test_a_name_follows_if_all_that_it_needs_does(needs, expected):
    assert follows(0, lambda name, known: all(known(other) for other in needs[name])) is expected


def test_a_name_follows_if_any_that_it_needs_does():
    needs = {0: [0, 1], 1: [1, 2], 2: [3], 3: [2, 4], 4: []}
    assert follows(0, lambda name, known: not needs[name] or any(known(other) for other in needs[name]))


def test_a_long_chain_takes_no_more_than_two_questions_a_name():
    asked = collections.Counter()

    def holds(name, known):
        asked[name] += 1
        return all(known(other) for other in CHAIN[name])

    assert follows(0, holds)
    assert max(asked.values()) == 2
