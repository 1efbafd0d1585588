"""Beam search against all sequences there are: scores count the output alone, stop strings end a hypothesis.

Equality with Hugging Face on the same logits, in all its options, is in ``tests/engine/test_beam_engine.py``.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scripted_model import SIZE, START, llm_on, path_table

from jaxllm import BeamSearchParams

A, B, END = 1, 2, 3
PIECES = ["a", "b"]
LENGTH = 3
PROMPTS = [[START], [A, B, A, B, B, START]]
"""Of different lengths and one last token, so that only a score that counts the prompt tells them apart."""


def _table():
    """Two letters and an end; every sequence of three has its own probability."""
    table = np.full((SIZE, SIZE), -1e9, np.float32)
    table[:, [A, B, END]] = np.random.default_rng(6).normal(0, 1, (SIZE, 3))
    return table


@pytest.fixture(scope="module")
def llm(tmp_path_factory):
    return llm_on(tmp_path_factory.mktemp("model") / "m", _table(), *PIECES, special=["</s>"], end=["</s>"])


def _hypotheses(length_penalty, stop):
    """Every finished sequence with its score and text, best first: two letters to the power of three fit in 8 beams."""
    logits = _table().astype(np.float64)[:, [A, B, END]]
    logprobs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    found = {}
    for letters in itertools.product((A, B, END), repeat=LENGTH):
        ids, total, before, text, reason = [], 0.0, START, "", ("length", None)
        for token in letters:
            ids.append(token)
            total += logprobs[before, [A, B, END].index(token)]
            before = token
            text += "ab"[token - 1] if token != END else ""
            if token == END:
                reason = ("stop", None)
                break
            if stop and stop in text:
                text, reason = text[:text.index(stop)], ("stop", stop)
                break
        found[tuple(ids)] = (total / len(ids) ** length_penalty, text, reason)
    return sorted(((*rest, ids) for ids, rest in found.items()), key=lambda each: -each[0])


@pytest.mark.case(40)
@pytest.mark.parametrize("stop", [None, "ab", "b"])
@pytest.mark.parametrize("length_penalty", [-2.0, -1.0, 0.0, 0.5, 1.0, 2.0])
def test_the_best_of_all_sequences_is_found_with_its_text_and_score(llm, length_penalty, stop):
    params = BeamSearchParams(8, LENGTH, length_penalty=length_penalty, stop=stop, early_stopping="never")
    wanted = _hypotheses(length_penalty, stop)
    for output in llm.beam_search(PROMPTS, params):
        assert output.error is None
        for found, (score, text, reason, ids) in zip(output.sequences, wanted, strict=False):
            assert tuple(found.token_ids) == ids
            assert found.score == pytest.approx(score, abs=1e-5)  # sums of three float32 log-probabilities
            assert found.text == text
            assert (found.finish_reason, found.stop_reason) == reason


@pytest.mark.case(40)
def test_a_penalty_above_0_favours_long_outputs_and_one_below_0_short_ones(tmp_path):
    table = path_table([START, A, A])
    table[[START, A], END] = 29.5
    llm = llm_on(tmp_path / "m", table, *PIECES, special=["</s>"], end=["</s>"])
    lengths = [len(llm.beam_search(PROMPTS[0], BeamSearchParams(4, 6, length_penalty=penalty, early_stopping="never")
                                   )[0].sequences[0].token_ids) for penalty in (-3.0, 3.0)]
    assert lengths == [1, 6]


@pytest.mark.case(40)
@pytest.mark.parametrize("include", [False, True])
def test_the_stop_string_is_kept_where_that_is_asked_for(llm, include):
    params = BeamSearchParams(8, LENGTH, stop="ab", include_stop_str_in_output=include)
    (output,) = llm.beam_search(PROMPTS[:1], params)
    stopped = [found for found in output.sequences if found.stop_reason == "ab"]
    assert stopped
    for found in stopped:
        assert found.text.endswith("ab") == include
        assert found.token_ids[-2:] == [A, B]
