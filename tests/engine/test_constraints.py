"""Grammars and bad words in the engine: a mixed batch, each request by its own rules, one failure no other's."""

from __future__ import annotations

import json

import numpy as np
import pytest
from scripted_model import SIZE, START, engine_on, flat_table, path_table, spelling
from support import run

from jaxllm import ParameterError, SamplingParams
from jaxllm.engine.constraints import Constraints, TokenConstraint, bad_word_tokens, constraint_masks
from jaxllm.errors import EngineError
from jaxllm.structured import StructuredOutputsParams

PIECES = [*"abcdefghij0123456789{}[]\":, ", "true", "false", "ab", " ab"]
PROMPT = [START]


def grammar(**options):
    return StructuredOutputsParams(**options)


@pytest.fixture(scope="module")
def engine():
    return engine_on(flat_table(), spelling(*PIECES, special=["<end>"], end=["<end>"]))


def sampled(**options):
    return SamplingParams(**{"temperature": 1.0, "max_tokens": 40, "seed": 3, **options})


def test_a_batch_of_free_and_constrained_requests_gives_each_its_own(engine):
    schema = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"],
              "additionalProperties": False}
    wanted = [
        sampled(structured_outputs=grammar(json=schema)), sampled(max_tokens=5),
        sampled(structured_outputs=grammar(regex="(ab|cd){2,5}")),
        sampled(structured_outputs=grammar(choice=["a", "ba"])),
        sampled(temperature=0, structured_outputs=grammar(regex="[0-9]{4}")), sampled(bad_words=["ab"], max_tokens=39),
    ]
    outputs = run(engine, [(PROMPT, one) for one in wanted])
    assert not any(output.error for output in outputs)
    texts = [output.outputs[0].text for output in outputs]
    assert isinstance(json.loads(texts[0])["a"], bool)
    assert texts[2].replace("ab", "").replace("cd", "") == "" != texts[2]
    assert texts[3] in ("a", "ba")
    assert texts[4] == "0000"
    assert [outputs[row].outputs[0].finish_reason for row in (0, 2, 3, 4)] == ["stop"] * 4
    alone = [run(engine, [(PROMPT, one)])[0].outputs[0].token_ids for one in wanted]
    assert [output.outputs[0].token_ids for output in outputs] == alone


def test_samples_of_one_request_follow_the_grammar_each_by_itself(engine):
    (output,) = run(engine, [(PROMPT, sampled(n=6, structured_outputs=grammar(regex="[a-j]{3}|[0-9]{2}")))])
    texts = {sample.text for sample in output.outputs}
    assert len(texts) > 2
    assert all(len(text) == (3 if text.isalpha() else 2) for text in texts)


def test_a_text_cut_by_the_length_is_not_called_complete(engine):
    wanted = sampled(structured_outputs=grammar(regex="[ab]{20}"), max_tokens=6)
    (output,) = run(engine, [(PROMPT, wanted)])
    assert output.outputs[0].finish_reason == "length"
    assert len(output.outputs[0].token_ids) == 6


def test_without_an_end_of_sequence_a_complete_text_ends():
    bare = engine_on(flat_table(), spelling(*PIECES))
    (output,) = run(bare, [(PROMPT, sampled(structured_outputs=grammar(regex="a[01]")))])
    sample = output.outputs[0]
    assert (sample.text[0], len(sample.text), sample.finish_reason, sample.stop_reason) == ("a", 2, "stop", None)


def test_the_end_of_sequence_is_not_shown_behind_a_grammars_text(engine):
    wanted = sampled(structured_outputs=grammar(choice=["true"]), skip_special_tokens=False)
    (output,) = run(engine, [(PROMPT, wanted)])
    assert output.outputs[0].text == "true"
    assert output.outputs[0].token_ids[-1] == 1 + len(PIECES)


def test_penalties_biases_and_processed_logprobs_stay_within_the_grammar(engine):
    wanted = sampled(structured_outputs=grammar(regex="[ab]{8}"), frequency_penalty=2.0, logit_bias={3: 50.0},
                     logprobs=5, logprobs_mode="processed_logprobs")
    (output,) = run(engine, [(PROMPT, wanted)])
    sample = output.outputs[0]
    assert set(sample.text) <= {"a", "b"}
    assert len(sample.text) == 8
    for line in sample.logprobs[:-1]:
        assert np.exp([one.logprob for one in line.values()]).sum() == pytest.approx(1, abs=1e-5)


def test_a_grammar_that_another_option_leaves_without_a_token_fails_alone(engine):
    stuck = sampled(structured_outputs=grammar(choice=["a"]), banned_token_ids=[1])
    outputs = run(engine, [(PROMPT, sampled(max_tokens=4)), (PROMPT, stuck), (PROMPT, sampled(max_tokens=4))])
    assert [output.error is not None for output in outputs] == [False, True, False]
    assert "no token could be chosen at position 1" in outputs[1].error.message


@pytest.mark.parametrize("options", [
    {"regex": "("}, {"choice": ["§"]}, {"json": {"type": "integer", "minimum": 5, "maximum": 3}},
    {"grammar": "start: x"},
])
def test_a_grammar_that_no_text_can_follow_is_refused_before_anything_runs(engine, options):
    with pytest.raises(ParameterError, match="structured_outputs") as caught:
        engine.add_request(PROMPT, sampled(structured_outputs=grammar(**options)))
    assert caught.value.parameter == "structured_outputs"
    assert not engine.has_unfinished()


@pytest.mark.parametrize("option", [{"structured_outputs": grammar(regex="a")}, {"bad_words": ["a"]}, {"stop": "a"}])
def test_what_needs_a_tokenizer_is_refused_without_one(option):
    with pytest.raises(ParameterError, match="tokenizer"):
        engine_on(flat_table()).add_request(PROMPT, sampled(**option))


def test_bad_words_of_one_token_and_of_several_never_come(engine):
    # After "a" the table wants "b", after "c" it wants " ab".
    ids = {piece: number for number, piece in enumerate(PIECES, 1)}
    table = path_table([START, ids["a"], ids["b"], ids["c"], ids[" ab"], ids["d"]], logit=3.0)
    tokenizer = spelling(*PIECES)
    wanted = SamplingParams(temperature=0.0, max_tokens=30, bad_words=["ab"])
    assert "ab" in run(engine_on(table, tokenizer), [(PROMPT, wanted.replace(bad_words=None))])[0].outputs[0].text
    sample = run(engine_on(table, tokenizer), [(PROMPT, wanted)])[0].outputs[0]
    pairs = list(zip(sample.token_ids, sample.token_ids[1:], strict=False))
    assert (ids["a"], ids["b"]) not in pairs
    assert ids["a"] in sample.token_ids


def test_words_of_several_tokens_are_masked_only_where_they_would_complete():
    constraint = TokenConstraint(Constraints(SIZE, bad_words=((5, 6, 7), (6, 9))))
    seen = []
    for token in (5, 6, 5, 6, 7, 6):
        seen.append(constraint.banned_next())
        constraint.accept(token)
    assert seen == [[], [], [7, 9], [], [7, 9], []]
    assert constraint.banned_next() == [9]
    assert constraint_masks([None, constraint], 2).tolist() == [[2**32 - 1] * 2, [2**32 - 1 - 2**9, 2**32 - 1]]
    assert constraint_masks([None, None], 2) is None


def test_one_grammar_that_fails_masks_its_own_row_alone(engine, monkeypatch):
    compiled = engine._admission._grammars.compile(grammar(regex="[ab]+"))
    constraints = [TokenConstraint(Constraints(SIZE, compiled)) for _ in range(3)]
    monkeypatch.setattr(constraints[1].matcher, "fill_mask", _broken)
    monkeypatch.setattr("jaxllm.structured.fill_masks", _broken)
    masks = constraint_masks(constraints, 2)
    assert [bool(row.any()) for row in masks] == [True, False, True]
    assert constraints[1].error is not None


def _broken(*arguments):
    raise EngineError("broken")


def test_a_bad_word_is_known_by_every_spelling_the_tokenizer_gives_it():
    alone, several = bad_word_tokens(["ab", " cd"], spelling(*PIECES))
    assert several == ((1, 2), (3, 4), (28, 1, 2), (28, 3, 4))
    assert alone == ()
