"""What outputs are compared with: recorded greedy ids and top-5 log-probabilities of Hugging Face transformers, in
float32 on the same dequantized weights (tests/golden).

In float32 the ids must be equal and log-probabilities within 2e-3 (two float32 implementations that sum in different
orders). In bfloat16 an output may leave the golden one only where the golden's two best tokens are within 0.25 nat of
each other.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support import greedy


def golden(model):
    """The recorded items of a model."""
    return json.loads(Path(__file__).parents[1].joinpath(f"golden/{model}_hf_f32.json").read_text())["items"]


def requests(items, most=64):
    """What the items were recorded from."""
    return [(item["prompt_ids"], greedy(min(most, len(item["output_ids"])), logprobs=5)) for item in items]


def assert_golden(item, output):
    """The tokens and log-probabilities that an output has are the golden ones."""
    found = output.outputs[0]
    assert found.token_ids == item["output_ids"][:len(found.token_ids)], item["text"]
    for line, recorded in zip(found.logprobs, item["top5"], strict=False):
        for token, logprob in recorded:
            if token in line:
                assert line[token].logprob == pytest.approx(logprob, abs=2e-3)
        assert recorded[0][0] in line


def assert_leaves_only_at_near_ties(item, output):
    """The first other token is one that was nearly as likely."""
    found = output.outputs[0].token_ids
    pairs = zip(found, item["output_ids"][:len(found)], item["top5"][:len(found)], strict=True)
    first = next((recorded for ours, theirs, recorded in pairs if ours != theirs), None)
    if first is not None:
        margin = first[0][1] - first[1][1]
        assert margin <= 0.25, f"{item['text']!r} left the golden text at a margin of {margin:.3f} nat"
