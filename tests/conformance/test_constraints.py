"""Words that must not come, and texts that must follow a grammar."""

from __future__ import annotations

import json

import pytest
import tokenizers
from scripted_model import SIZE, START, engine_on, flat_table, path_table, script, spelling
from support import greedy, run
from tokenizers import decoders, models, pre_tokenizers

from jaxllm.errors import ParameterError
from jaxllm.sampling_params import SamplingParams
from jaxllm.structured import StructuredOutputsParams
from jaxllm.tokenization import Tokenizer

PIECES = ["<start>", *"describ", "Ġ", "de", "des", "desc", "ri", "rib", "ribe", "Ġdesc", "Ġdescribe"]
DESC, RIBE, SPACE_DESCRIBE = (PIECES.index(piece) for piece in ("desc", "ribe", "Ġdescribe"))
OTHER = len(PIECES)


def _describe_tokenizer():
    """In which "describe" is "desc" and "ribe", and " describe" one token."""
    vocabulary = {piece: token for token, piece in enumerate(PIECES)}
    vocabulary |= {f"<other {token}>": token for token in range(len(PIECES), SIZE)}
    merges = [("d", "e"), ("de", "s"), ("des", "c"), ("r", "i"), ("ri", "b"), ("rib", "e"), ("Ġ", "desc"),
              ("Ġdesc", "ribe")]
    backend = tokenizers.Tokenizer(models.BPE(vocabulary, merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return Tokenizer(backend)


def _say(table, **options):
    (output,) = run(engine_on(table, _describe_tokenizer()), [([START], greedy(**options))])
    assert output.error is None
    return output.outputs[0]


def _table(*, spaced):
    """Says the word, in the one spelling or the other, and where that is blocked ``OTHER``."""
    table = path_table([START, SPACE_DESCRIBE, START] if spaced else [START, DESC, RIBE, START])
    table[:, OTHER] = 10.0
    table[OTHER] = table[START]
    return table


@pytest.mark.case(20)
@pytest.mark.parametrize("word", ["describe", " describe", ["describe"], ["x", "describe"]])
def test_a_bad_word_is_blocked_with_and_without_a_space_before_it(word):
    plain = _say(_table(spaced=False), max_tokens=4, bad_words=word)
    assert plain.token_ids == [DESC, OTHER, DESC, OTHER]
    spaced = _say(_table(spaced=True), max_tokens=4, bad_words=word)
    assert spaced.token_ids == [OTHER] * 4
    for sample in (plain, spaced):
        assert "describe" not in sample.text


@pytest.mark.case(20)
def test_without_bad_words_both_spellings_are_said():
    assert _say(_table(spaced=False), max_tokens=2).text == "describe"
    assert _say(_table(spaced=True), max_tokens=1).text == " describe"


@pytest.mark.case(20)
def test_only_the_last_token_of_a_word_is_blocked_and_only_after_the_others():
    table = path_table([START, RIBE, DESC, DESC])
    assert _say(table, max_tokens=4, bad_words="describe").token_ids == [RIBE, DESC, DESC, DESC]


@pytest.mark.case(20)
def test_a_word_that_begins_in_the_prompt_is_not_one():
    (output,) = run(engine_on(path_table([START, DESC, RIBE]), _describe_tokenizer()), [
        ([START, DESC], greedy(1, bad_words="describe"))])
    assert output.outputs[0].token_ids == [RIBE]


@pytest.mark.case(20)
def test_samples_of_a_prompt_are_blocked_each_by_its_own_tokens():
    table = flat_table()
    table[:, [DESC, RIBE]] = 4.0
    params = SamplingParams(n=8, seed=1, max_tokens=30, bad_words="describe", ignore_eos=True)
    (output,) = run(engine_on(table, _describe_tokenizer()), [([START], params)])
    for sample in output.outputs:
        assert RIBE in sample.token_ids
        assert (DESC, RIBE) not in set(zip(sample.token_ids, sample.token_ids[1:], strict=False))


@pytest.mark.case(20)
@pytest.mark.parametrize("words", ["", [""], [5], 5, [None], {"a": 1}], ids=repr)
def test_bad_words_that_are_none_are_refused(words):
    with pytest.raises(ParameterError, match="bad_words"):
        SamplingParams(bad_words=words)


NUMBER = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}
JSON_PIECES = ['{"n', '":', " ", "1", "2", "3", "}", "x", '"']
SAYS_OBJECT = path_table([START, 1, 2, 3, 4, 5, 6, 7, 10])  # {"n": 123} and the end
WANDERS = path_table([START, 8, 8])  # xxx for ever, unless something stops it


def _constrained(table, kind=None, **options):
    tokenizer = spelling(*JSON_PIECES, special=["</s>"], end=["</s>"])
    structured = StructuredOutputsParams(**(kind or {"json": NUMBER}))
    params = SamplingParams(**{"temperature": 0.0, "max_tokens": 20, "structured_outputs": structured, **options})
    (output,) = run(engine_on(table, tokenizer), [([START], params)])
    assert output.error is None, output.error
    return output.outputs[0]


@pytest.mark.case(32)
@pytest.mark.parametrize("max_tokens", range(1, 7))
def test_json_cut_off_by_max_tokens_says_length(max_tokens):
    sample = _constrained(SAYS_OBJECT, max_tokens=max_tokens)
    assert sample.finish_reason == "length"
    assert len(sample.token_ids) == max_tokens
    assert '{"n": 123}'.startswith(sample.text)
    with pytest.raises(json.JSONDecodeError):
        json.loads(sample.text)


@pytest.mark.case(32)
@pytest.mark.parametrize("max_tokens", [8, 20])
def test_json_that_the_model_ends_says_stop(max_tokens):
    sample = _constrained(SAYS_OBJECT, max_tokens=max_tokens)
    assert json.loads(sample.text) == {"n": 123}
    assert sample.finish_reason == "stop"


@pytest.mark.case(32)
def test_json_that_the_last_token_allowed_completes_is_whole():
    sample = _constrained(SAYS_OBJECT, max_tokens=7)
    assert json.loads(sample.text) == {"n": 123}


@pytest.mark.case(32)
@pytest.mark.parametrize("seed", range(8))
def test_a_model_that_would_say_anything_says_what_the_schema_allows(seed):
    sample = _constrained(flat_table(), temperature=1.0, seed=seed, max_tokens=40)
    if sample.finish_reason == "stop":
        assert isinstance(json.loads(sample.text)["n"], int)
    else:
        assert len(sample.token_ids) == 40


@pytest.mark.case(32)
@pytest.mark.parametrize(("kind", "cut", "whole"), [
    ({"choice": ["123", "3"]}, "12", "123"), ({"regex": "1[12]{3}"}, "111", "1111"),
    ({"grammar": 'start: "1" "2" "3" "}"'}, "123", "123}")], ids=["choice", "regex", "grammar"])
def test_other_constraints_cut_off_say_length_too(kind, cut, whole):
    table = path_table([START, 4, 5, 6, 7, 10])
    if "regex" in kind:
        table = path_table([START, 4, 4])
    short = _constrained(table, kind, max_tokens=len(cut))
    assert (short.text, short.finish_reason) == (cut, "length")
    full = _constrained(table, kind)
    assert (full.text, full.finish_reason) == (whole, "stop")


@pytest.mark.case(32)
def test_constrained_and_free_requests_share_a_batch():
    tokenizer = spelling(*JSON_PIECES, special=["</s>"], end=["</s>"])
    structured = StructuredOutputsParams(json=NUMBER)
    requests = [([START], greedy(6)), ([START], SamplingParams(temperature=0.0, structured_outputs=structured)),
                ([START], greedy(3, bad_words="x"))]
    free, bound, _ = run(engine_on(script(8), tokenizer), requests)
    assert free.outputs[0].token_ids == [1, 2, 3, 4, 5, 6]
    assert json.loads(bound.outputs[0].text) == {"n": 123}


@pytest.mark.case(32)
@pytest.mark.parametrize("options", [{"stop": "2"}, {"stop_token_ids": [5]}])
def test_a_stop_that_cuts_json_short_is_reported_as_that_stop(options):
    sample = _constrained(SAYS_OBJECT, **options)
    assert sample.finish_reason == "stop"
    assert sample.stop_reason in ("2", 5)


@pytest.mark.case(32)
def test_a_constraint_that_nothing_satisfies_fails_its_request_alone():
    tokenizer = spelling(*JSON_PIECES, special=["</s>"], end=["</s>"])
    engine = engine_on(SAYS_OBJECT, tokenizer)
    impossible = {"type": "integer", "minimum": 3, "maximum": 2}
    with pytest.raises(ParameterError) as caught:
        engine.add_request([START], SamplingParams(structured_outputs=StructuredOutputsParams(json=impossible)))
    assert caught.value.parameter == "structured_outputs"
    assert not engine.has_unfinished()
