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
