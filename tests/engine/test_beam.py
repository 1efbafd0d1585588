"""The selection of beams by itself: equal to Hugging Face's on the same logits, in every option.

Oracle: tests/golden/beam_hf.json, made by transformers 5.24 (make_beam_hf.py). Ids must be equal; scores within 1e-5
relative, as two float32 log-softmaxes may differ in their last bits.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from jaxllm.engine.beam import BeamSelector, Ending

GOLDEN = json.loads(Path(__file__).parents[1].joinpath("golden/beam_hf.json").read_text())
TABLE = np.array(GOLDEN["table"], np.float32)
ITEMS = GOLDEN["items"]


def log_softmax(logits):
    shifted = logits - logits.max(-1, keepdims=True)
    return (shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))).astype(np.float32)


def top(logprobs, k):
    """The k best of each row, equal ones by id."""
    order = np.argsort(-logprobs, axis=-1, kind="stable")[:, :k]
    return order.astype(np.int32), np.take_along_axis(logprobs, order, axis=-1)


def search(selector, logprobs_after, prompt, k):
    """Run a search to its end on a function from the output so far to float32 log-probabilities."""
    while not selector.done:
        rows = np.stack([logprobs_after(prompt + beam.token_ids) for beam in selector.beams])
        before = selector.beams
        moves = selector.advance(*top(rows, k))
        if not selector.done:
            assert [[*before[move.parent].token_ids, move.token] for move in moves] == [
                beam.token_ids for beam in selector.beams]
    return selector.finished


def golden_selector(item, **changes):
    ends = set(item["eos_token_ids"])
    runs = item.get("stop_runs", [])

    def ended(beam):
        if beam.token in ends or any(beam.token_ids[-len(run):] == run for run in runs):
            return Ending("stop")
        return None

    return BeamSelector(**{
        "width": item["beam_width"], "max_tokens": item["max_tokens"], "ends": ended,
        "num_candidates": max(2, 1 + len(ends)) * item["beam_width"], "length_penalty": item["length_penalty"],
        "early_stopping": item["early_stopping"], **changes})


def name(item):
    return "-".join(str(item[key]) for key in ("beam_width", "length_penalty", "early_stopping", "eos_token_ids"))


@pytest.mark.parametrize("item", ITEMS, ids=name)
def test_hypotheses_and_scores_equal_hugging_faces(item):
    found = search(golden_selector(item), lambda ids: log_softmax(TABLE[ids[-1]]), item["prompt"], len(TABLE))
    found = found[: item["num_return_sequences"]]
    assert [hypothesis.beam.token_ids for hypothesis in found] == [each["token_ids"] for each in item["sequences"]]
    if item["beam_width"] > 1:
        assert [float(hypothesis.score) for hypothesis in found] == pytest.approx(
            [each["score"] for each in item["sequences"]], rel=1e-5)


@pytest.mark.parametrize("item", [item for item in ITEMS if "stop_runs" not in item], ids=name)
def test_a_row_needs_no_more_tokens_than_beams_and_ends(item):
    width = item["beam_width"] + len(item["eos_token_ids"])
    whole, short = (
        search(golden_selector(item), lambda ids: log_softmax(TABLE[ids[-1]]), item["prompt"], k)
        for k in (len(TABLE), width))
    assert [(found.beam.token_ids, found.score) for found in whole] == [
        (found.beam.token_ids, found.score) for found in short]


def never(beam):
    return None


def selector(width, max_tokens, ends=never, **options):
    return BeamSelector(width, max_tokens=max_tokens, num_candidates=2 * width, ends=ends, **options)


def flat(ids, size=64):
    return np.full(size, -np.log(size), np.float32)


def test_of_equal_candidates_the_better_beam_and_the_lower_id_come_first():
    found = search(selector(8, 3), flat, [0], 64)
    assert [hypothesis.beam.token_ids for hypothesis in found] == [[0, 0, token] for token in range(8)]


def test_the_order_of_many_equal_candidates_is_that_of_beam_and_id():
    rng = np.random.default_rng(0)
    rows = -rng.integers(1, 4, (8, 64)).astype(np.float32)
    chosen = selector(8, 9)
    chosen.advance(*top(np.broadcast_to(flat([]), (1, 64)), 64))
    moves = chosen.advance(*top(rows, 64))
    in_order = sorted(np.ndindex(rows.shape), key=lambda place: (-rows[place], *place))
    assert [(move.parent, move.token) for move in moves] == in_order[:8]


def test_of_equal_hypotheses_the_one_found_first_comes_first():
    ended = lambda beam: Ending("stop") if beam.token == 1 else None  # noqa: E731

    def logprobs(ids):
        # Whether a beam ends at once or after one more token, its score is the same.
        return np.array([0.0, 0.0, -np.inf] if len(ids) > 1 else [-1.0, -1.0, -np.inf], np.float32)

    found = search(selector(2, 4, ended, length_penalty=0.0), logprobs, [2], 3)
    assert [hypothesis.beam.token_ids for hypothesis in found] == [[1], [0, 1]]


def test_tokens_that_cannot_come_make_no_beams():
    def logprobs(ids):
        return np.array([-0.5, -1.0, -np.inf, -np.inf], np.float32)

    found = search(selector(4, 2), logprobs, [0], 4)
    assert sorted(hypothesis.beam.token_ids for hypothesis in found) == [[0, 0], [0, 1], [1, 0], [1, 1]]
    alone = search(selector(4, 1), logprobs, [0], 4)
    assert [hypothesis.beam.token_ids for hypothesis in alone] == [[0], [1]]


def test_a_search_ends_when_every_candidate_ends():
    found = search(selector(2, 9, lambda beam: Ending("stop", beam.token)), flat, [0], 64)
    assert [(each.beam.token_ids, each.ending) for each in found] == [([0], ("stop", 0)), ([1], ("stop", 1))]


def test_only_the_best_candidates_can_finish():
    # The end of sequence is the third best of the first step, and the beams are two.
    def logprobs(ids):
        return log_softmax(np.array([3, 2, 1, 0] if len(ids) == 1 else [3, 2, -9, 0], np.float32))

    found = search(selector(2, 2, lambda beam: Ending("stop") if beam.token == 2 else None), logprobs, [0], 4)
    assert [each.ending.reason for each in found] == ["length", "length"]


@pytest.mark.parametrize(("early_stopping", "steps"), [(True, 2), (False, 4), ("never", 7)])
def test_when_to_stop_is_early_stoppings_choice(early_stopping, steps):
    # Ends are found at -1.0 after one token, and at (-1.2 - 0.5) / 2 after two: then there are enough. The beam that
    # goes on has the score -1.8 / 2 by then, -2.8 / 3 and -4.8 / 4 later; over 9 tokens it reaches -8.8 / 9 after 6.
    goes_on, ends = [-1.2, -0.6, -1.0, -2.0], [-1.0, -0.5, -9.0, -9.0]
    steps_taken = []

    def logprobs(ids):
        step = min(len(ids) - 1, 3)
        steps_taken.append(ids)
        return np.array([goes_on[step], ends[step], -np.inf], np.float32)

    chosen = selector(2, 9, lambda beam: Ending("stop") if beam.token == 1 else None, early_stopping=early_stopping)
    found = search(chosen, logprobs, [2], 3)
    assert len(steps_taken) == steps
    assert [hypothesis.beam.token_ids for hypothesis in found] == [[0, 1], [1]]


def test_scores_are_float32_sums_in_order():
    found = search(selector(3, 5), lambda ids: log_softmax(TABLE[ids[-1]]), [0], 8)
    for hypothesis in found:
        total, last = np.float32(0), 0
        for token in hypothesis.beam.token_ids:
            total = np.float32(total + log_softmax(TABLE[last])[token])
            last = token
        assert hypothesis.beam.cum_logprob == total
        assert hypothesis.score == total / np.float32(5.0)
