"""Where requests go: to the replica that has their beginning, unless it is too far ahead of the others."""

from __future__ import annotations

import itertools

import pytest

from jaxllm.engine.request import Request
from jaxllm.engine.router import EXPECTED_OUTPUT, RECOMPUTED, Router
from jaxllm.sampling_params import SamplingParams

_numbers = itertools.count()


def _request(prompt, **params):
    return Request(str(next(_numbers)), prompt, SamplingParams(**{"max_tokens": 10, **params}), max_model_len=4096)


def _router(num_replicas, **changes):
    return Router(num_replicas, **{"block_size": 4, "num_blocks": 1000, **changes})


def test_unrelated_requests_are_spread_by_their_tokens():
    router = _router(3)
    assert [router.route(_request([first] * length)) for first, length in enumerate([40, 10, 10, 15, 30])] == [
        0, 1, 2, 1, 2]
    assert router.loads == (50, 45, 60)


def test_a_request_follows_its_prefix_until_that_replica_is_too_far_ahead():
    router, prefix = _router(2), list(range(100, 140))
    chosen = [router.route(_request([*prefix, number])) for number in range(10)]
    # The first computes 41 + 10, each that follows 1 + 10; elsewhere the prefix would have to be computed anew.
    follow = next(count for count in range(1, 10) if 51 + 11 * (count - 1) + RECOMPUTED > RECOMPUTED * 41)
    assert chosen[:follow + 1] == [0] * follow + [1]
    # Then both have it.
    assert set(chosen[follow:]) == {0, 1}
    assert abs(router.loads[0] - router.loads[1]) <= 11 + 41


def test_groups_of_requests_with_a_common_beginning_stay_together():
    router = _router(4)
    groups = [[*range(1000 * group, 1000 * group + 400)] for group in range(8)]
    chosen = [{router.route(_request([*groups[group], number])) for number in range(5)} for group in range(8)]
    assert all(len(each) == 1 for each in chosen)
    assert sorted(number for each in chosen for number in each) == [0, 0, 1, 1, 2, 2, 3, 3]


def test_what_is_open_counts_and_what_has_ended_does_not():
    router = _router(2)
    long = _request([1] * 100)
    assert router.route(long) == 0
    assert [router.route(_request([number])) for number in (2, 3)] == [1, 1]
    router.release(long.request_id)
    assert router.route(_request([4])) == 0


def test_all_samples_count_and_of_endless_outputs_what_may_be_expected():
    router = _router(2)
    router.route(_request([1], n=3))
    router.route(_request([2], max_tokens=None))
    assert router.loads == (1 + 3 * 10, 1 + EXPECTED_OUTPUT)


@pytest.mark.parametrize("forget", ["all", "that replica", "another replica"])
def test_prefixes_are_forgotten_with_the_caches(forget):
    router, prefix = _router(2), [5] * 40
    router.release(_routed(router, prefix))
    _routed(router, [6] * 8)
    router.forget_prefixes({"all": None, "that replica": 0, "another replica": 1}[forget])
    assert router.route(_request([*prefix, 7])) == (0 if forget == "another replica" else 1)


@pytest.mark.parametrize(("changes", "params"), [
    ({"enable_prefix_caching": False}, {}),
    ({}, {"cache_salt": "another"}),
    ({}, {"prompt_logprobs": 1}),  # its prompt has to go through the model
    ({"num_blocks": 2}, {}),
])
def test_prefixes_that_cannot_be_found_do_not_count(changes, params):
    router, prefix = _router(2, **changes), [5] * 40
    router.release(_routed(router, prefix))
    _routed(router, [6] * 8)  # to the first: none has any load
    assert router.route(_request([*prefix, 7], **params)) == 1


def _routed(router, prompt):
    request = _request(prompt)
    assert router.route(request) == 0
    return request.request_id


def test_of_a_prefix_the_end_is_forgotten_first():
    router = _router(2, num_blocks=12)
    first = _routed(router, range(40))
    router.release(first)
    router.route(_request([9] * 28))  # 7 blocks: 5 are left of the first
    router.route(_request(range(40)))
    assert router.loads == (28 + 10 + 20 + 10, 0)


def test_the_last_token_is_computed_whatever_is_cached():
    router = _router(2)
    router.route(_request([5] * 40))
    router.route(_request([5] * 40))
    assert router.loads == (40 + 10 + 4 + 10, 0)


def test_lost_replicas_get_nothing():
    router = _router(3)
    router.lose(0)
    assert [router.route(_request([number])) for number in range(4)] == [1, 2, 1, 2]
    router.lose(1)
    router.lose(2)
    assert router.route(_request([1])) is None


def test_the_same_requests_go_the_same_ways():
    requests = [_request([number % 7] * (number % 30 + 1)) for number in range(200)]

    def ways():
        router = _router(5, num_blocks=20)
        chosen = []
        for number, request in enumerate(requests):
            chosen.append(router.route(request))
            if number > 20:
                router.release(requests[number - 20].request_id)
        return chosen

    assert ways() == ways()
    assert len(set(ways())) == 5
