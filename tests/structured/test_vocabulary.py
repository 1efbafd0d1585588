"""What is constrained is the text as the detokenizer shows it, whichever tokens spell it and wherever they stand."""

from __future__ import annotations

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper
from structured.walks import allowed_ids, words
from tokenization.toy_tokenizers import byte_level_tokenizer, sentencepiece_metadata
from tokenizers import AddedToken, decoders, models

from jaxllm.errors import ParameterError
from jaxllm.structured import GrammarCompiler, StructuredOutputsParams
from jaxllm.structured.source import grammar_source
from jaxllm.structured.vocabulary import GrammarVocabulary, _Contents
from jaxllm.tokenization import Tokenizer, from_gguf

_PIECES = ["\u2581", "\u2581\u2581", "a", "b", "\u2581a", "\u2581ab", "ab", "\u2581b\u2581", "a\u2581", "c"]


def _metaspace(scheme):
    # Dropped in the first token wherever it stands; "ba" is the first form of no other token.
    words = ["<unk>", "</s>", *_PIECES, "b\u2581a"]
    ids = {word: index for index, word in enumerate(words)}
    backend = tokenizers.Tokenizer(models.WordLevel(ids, unk_token="<unk>"))
    backend.decoder = decoders.Metaspace(prepend_scheme=scheme)
    backend.add_special_tokens([AddedToken("<unk>", special=True), AddedToken("</s>", special=True)])
    backend.add_tokens([AddedToken("\u2581added")])
    return Tokenizer(backend, eos_token_ids=[1])


TOKENIZERS = {
    "bytes": byte_level_tokenizer(["a", "b", " ", "  ", " a", " ab", "ab", " b ", "a ", "c"], special=["</s>"]),
    "stripping": from_gguf(sentencepiece_metadata(_PIECES)),
    "plain sentencepiece": from_gguf(sentencepiece_metadata(_PIECES, **{"tokenizer.ggml.add_space_prefix": False})),
    "metaspace": _metaspace("always"),
    "metaspace first": _metaspace("first"),
    "metaspace never": _metaspace("never"),
}
CHOICES = st.lists(st.text(alphabet=" abc", max_size=5), min_size=1, max_size=4)


def _ends(tokenizer):
    return frozenset(tokenizer.eos_token_ids or [tokenizer.vocab_size - 1])


@settings(max_examples=40)
@given(data=st.data())
@pytest.mark.parametrize("name", TOKENIZERS)
def test_masks_allow_exactly_the_tokens_whose_decoded_text_goes_on(name, data):
    """Oracle: decode the ids so far with each token behind them, and look whether a choice begins so."""
    tokenizer, choices = TOKENIZERS[name], data.draw(CHOICES)
    ends = _ends(tokenizer)
    compiler = GrammarCompiler(tokenizer, tokenizer.vocab_size, ends)
    matcher = compiler.compile(StructuredOutputsParams(choice=choices)).matcher()
    ids = []
    while True:
        text = tokenizer.decode(ids)
        longer = [choice for choice in choices if choice.startswith(text) and choice != text]
        expected = {token for token in range(tokenizer.vocab_size) if token not in tokenizer.special_token_ids
                    and tokenizer.token_bytes(token)
                    and any(choice.startswith(tokenizer.decode([*ids, token])) for choice in longer)}
        expected |= ends if text in choices else frozenset()
        assert set(allowed_ids(matcher, tokenizer.vocab_size)) == expected, (choices, text)
        assert matcher.accepting == (text in choices)
        if not expected - ends:
            break
        ids.append(data.draw(st.sampled_from(sorted(expected - ends))))
        matcher.accept(ids[-1])
    assert tokenizer.decode(ids) in choices


@pytest.mark.parametrize("name", ["stripping", "metaspace"])
def test_rolling_back_to_the_start_brings_the_rule_for_the_first_token_back(name):
    tokenizer = TOKENIZERS[name]
    compiler = GrammarCompiler(tokenizer, tokenizer.vocab_size, _ends(tokenizer))
    matcher = compiler.compile(StructuredOutputsParams(choice=["a b ", " a"])).matcher()
    ids = [tokenizer.backend.token_to_id(piece) for piece in ("\u2581a", "\u2581b\u2581")]
    first = words(matcher, tokenizer.vocab_size)
    for token in ids:
        matcher.accept(token)
    assert matcher.complete
    matcher.rollback(2)
    assert words(matcher, tokenizer.vocab_size).tolist() == first.tolist()
    for token in (tokenizer.backend.token_to_id("\u2581"), tokenizer.backend.token_to_id("\u2581a")):
        matcher.accept(token)
    assert matcher.complete
    matcher.rollback(1)
    assert not matcher.accepting


@pytest.mark.parametrize("shown", [False, True])
def test_a_hidden_special_token_leaves_the_text_unbegun_and_a_shown_one_begins_it(shown):
    tokenizer = TOKENIZERS["metaspace"]
    grammar = GrammarCompiler(tokenizer, tokenizer.vocab_size, frozenset()).compile(
        StructuredOutputsParams(grammar='start: </s> ("a" | " a")'))
    matcher = grammar.matcher(skip_special_tokens=not shown)
    ids = [1, tokenizer.backend.token_to_id("\u2581a")]
    for token in ids:
        matcher.accept(token)
    assert matcher.complete
    text = tokenizer.decode(ids, skip_special_tokens=not shown)
    assert text == ("</s> a" if shown else "a")
    other = tokenizer.backend.token_to_id("a")
    matcher.rollback(1)
    assert other in allowed_ids(matcher, tokenizer.vocab_size)


def test_two_tokens_of_the_same_bytes_are_both_allowed():
    tokenizer = TOKENIZERS["plain sentencepiece"]
    compiler = GrammarCompiler(tokenizer, tokenizer.vocab_size, frozenset({2}))
    matcher = compiler.compile(StructuredOutputsParams(regex="a")).matcher()
    letter, byte = (tokenizer.backend.token_to_id(token) for token in ("a", "<0x61>"))
    assert set(allowed_ids(matcher, tokenizer.vocab_size)) == {letter, byte}
    matcher.accept(byte)
    assert matcher.complete


def test_bytes_that_are_in_no_text_are_never_allowed():
    tokenizer = byte_level_tokenizer([bytes([byte]) for byte in range(256)] + [b"\xffa"])
    compiler = GrammarCompiler(tokenizer, 257, frozenset())
    for params in ({"regex": "(?s:.)*"}, {"json": {"type": "string"}}):
        allowed = set(allowed_ids(compiler.compile(StructuredOutputsParams(**params)).matcher(), 257))
        assert allowed
        assert not allowed & {0xC0, 0xFE, 0xFF, 256}


def test_a_tokenizer_that_rewrites_neighbours_is_refused_when_a_grammar_is_asked_for():
    backend = tokenizers.Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    joining = Tokenizer(backend)
    with pytest.raises(ParameterError, match="joins words"):
        GrammarCompiler(joining, 2, frozenset()).compile(StructuredOutputsParams(regex="a"))
    backend.decoder = decoders.Metaspace()
    cleaning = Tokenizer(backend, clean_up_tokenization_spaces=True)
    with pytest.raises(ParameterError, match="joins words"):
        GrammarCompiler(cleaning, 2, frozenset()).compile(StructuredOutputsParams(regex="a"))


def test_ids_without_a_token_are_never_allowed(smollm2):
    padded = smollm2.vocab_size + 70
    matcher = GrammarCompiler(smollm2, padded, frozenset(smollm2.eos_token_ids)).compile(
        StructuredOutputsParams(regex="(?s:.)*")).matcher()
    row = words(matcher, padded)
    assert row.shape == (1539,)
    bits = np.unpackbits(row.view(np.uint8), bitorder="little")
    assert bits[:smollm2.vocab_size].sum() > 40_000
    assert not bits[smollm2.vocab_size:].any()


@pytest.mark.parametrize("regex", [r"[A-Z][a-z]+ \w{2,9}", "[a-z ]{3,}x", r"[^\x00-\x7f]+|.{5}"])
def test_what_the_library_knows_by_heart_changes_no_mask(smollm2, regex):
    vocabulary = GrammarVocabulary(smollm2, smollm2.vocab_size)
    contents = [smollm2.token_bytes(token) for token in range(smollm2.vocab_size)]
    wrapped = TokenizerWrapper(_Contents([*contents, b""], [*smollm2.special_token_ids, len(contents)], len(contents)))
    plain = LLTokenizer(wrapped, eos_token=len(contents), slices=[])
    source = grammar_source(StructuredOutputsParams(regex=regex))
    matchers = [LLMatcher(tokenizer, source) for tokenizer in (vocabulary.ll_tokenizer, plain)]
    generator = np.random.default_rng(0)
    for _ in range(6):
        first, second = (np.frombuffer(matcher.compute_bitmask(), np.uint8) for matcher in matchers)
        assert first.any()
        assert np.array_equal(first, second)
        token = int(generator.choice(np.flatnonzero(np.unpackbits(first, bitorder="little"))))
        if token == len(contents) or not all([matcher.consume_token(token) for matcher in matchers]):  # noqa: C419
            break
