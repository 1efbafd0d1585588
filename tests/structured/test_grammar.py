from __future__ import annotations

import threading

import numpy as np
import pytest
from llguidance import LLExecutor
from structured.walks import accepts, allowed_ids, refuses, unpacked, words
from tokenization.toy_tokenizers import byte_level_tokenizer

from jaxllm.errors import EngineError, ParameterError
from jaxllm.structured import GrammarCompiler, StructuredOutputsParams, fill_masks
from jaxllm.structured import grammar as grammar_module

VOCAB = 259
END, STOP, TOOL = 256, 257, 258


def allowed(matcher):
    return set(allowed_ids(matcher, VOCAB))


def feed(matcher, text):
    for byte in text.encode():
        matcher.accept(byte)
    return matcher


def test_every_end_of_sequence_is_allowed_exactly_when_the_text_is_complete(compile_bytes):
    matcher = compile_bytes(regex="ab?").matcher()
    assert allowed(matcher) == {ord("a")}
    assert not matcher.accepting
    feed(matcher, "a")
    assert allowed(matcher) == {ord("b"), END, STOP}
    assert matcher.accepting
    assert not matcher.complete
    feed(matcher, "b")
    assert allowed(matcher) == {END, STOP}
    assert matcher.complete


@pytest.mark.parametrize("params", [{"regex": "a{2}"}, {"choice": ["aa"]}, {"grammar": 'start: "a" "a"'},
                                    {"grammar": 'root ::= "a" "a"'}], ids=str)
def test_complete_is_seen_at_once_for_every_kind(compile_bytes, params):
    matcher = compile_bytes(**params).matcher()
    assert [feed(matcher, "a").complete, feed(matcher, "a").complete] == [False, True]


def test_an_empty_text_can_be_all_that_is_allowed(compile_bytes):
    matcher = compile_bytes(choice=[""]).matcher()
    assert matcher.complete
    assert allowed(matcher) == {END, STOP}


def test_nothing_but_end_of_sequence_follows_the_end(compile_bytes):
    matcher = feed(compile_bytes(regex="a*").matcher(), "aa")
    matcher.accept(STOP)
    assert allowed(matcher) == {END, STOP}
    assert matcher.accepting
    assert matcher.complete
    assert refuses(matcher, ord("a"))
    matcher.accept(END)
    assert matcher.complete


@pytest.mark.parametrize("token", [ord("b"), END, TOOL, VOCAB, -1])
def test_tokens_that_the_mask_forbids_are_refused(compile_bytes, token):
    assert refuses(compile_bytes(regex="a+").matcher(), token)


def test_special_tokens_come_only_where_the_grammar_names_them(compile_bytes):
    assert TOOL not in allowed(compile_bytes(regex="(?s:.)*").matcher())
    named = compile_bytes(grammar='start: <tool> "<tool>"').matcher()
    assert allowed(named) == {TOOL}
    named.accept(TOOL)
    assert allowed(named) == {ord("<")}
    assert feed(named, "<tool>").complete
    ending = feed(compile_bytes(grammar='start: "a" <stop> | "a" "b"').matcher(), "a")
    assert not ending.accepting
    assert allowed(ending) == {STOP, ord("b")}
    ending.accept(STOP)
    assert ending.complete


def test_without_an_end_of_sequence_a_complete_text_allows_nothing():
    tokenizer = byte_level_tokenizer(["a", "b"])
    matcher = GrammarCompiler(tokenizer, 2, frozenset()).compile(StructuredOutputsParams(regex="a")).matcher()
    matcher.accept(0)
    assert matcher.complete
    assert not words(matcher, 2).any()


@pytest.mark.parametrize("vocab_size", [31, 32, 33, 63, 64, 65])
def test_rows_are_written_completely_and_padded_with_zeros(vocab_size):
    tokenizer = byte_level_tokenizer([chr(0x100 + number) for number in range(vocab_size)])
    compiler = GrammarCompiler(tokenizer, vocab_size, frozenset({vocab_size - 1}))
    matcher = compiler.compile(StructuredOutputsParams(regex="(?s:.)*")).matcher()
    row = words(matcher, vocab_size)
    assert row.shape == (-(-vocab_size // 32),)
    assert unpacked(row).tolist() == [index < vocab_size for index in range(32 * len(row))]


def test_matchers_of_a_grammar_do_not_touch_each_other(compile_bytes):
    grammar = compile_bytes(regex="(ab|cd)*")
    first, second = grammar.matcher(), grammar.matcher()
    feed(first, "a")
    assert allowed(second) == {ord("a"), ord("c"), END, STOP}
    feed(second, "c")
    assert allowed(first) == {ord("b")}
    assert allowed(second) == {ord("d")}
    assert allowed(grammar.matcher()) == {ord("a"), ord("c"), END, STOP}


def test_rolling_back_restores_every_earlier_state(compile_bytes):
    grammar = compile_bytes(json={"type": "object", "properties": {"é": {"type": "array"}}, "required": ["é"]})
    tokens = [*'{"é": [1, {"a": "\\n"}]}'.encode(), STOP, END]
    matcher = grammar.matcher()
    states = []
    for token in tokens:
        states.append((words(matcher, VOCAB).tolist(), matcher.accepting, matcher.complete))
        matcher.accept(token)
    generator = np.random.default_rng(0)
    at = len(tokens)
    for _ in range(200):
        back = int(generator.integers(0, at + 1))
        matcher.rollback(back)
        at -= back
        if at < len(tokens):
            assert (words(matcher, VOCAB).tolist(), matcher.accepting, matcher.complete) == states[at]
        for _ in range(int(generator.integers(0, len(tokens) - at + 1))):
            matcher.accept(tokens[at])
            at += 1


@pytest.mark.parametrize("count", [4, -1])
def test_no_more_is_rolled_back_than_was_accepted(compile_bytes, count):
    matcher = feed(compile_bytes(regex="a*").matcher(), "aaa")
    with pytest.raises(EngineError, match="3 accepted"):
        matcher.rollback(count)
    assert len(matcher._steps) == 3


@pytest.fixture(params=[None, 2], ids=["in this thread", "in two threads"])
def threads(request, monkeypatch):
    executor = None if request.param is None else LLExecutor(request.param)
    monkeypatch.setattr(grammar_module, "_executor", lambda: executor)


@pytest.mark.usefixtures("threads")
def test_many_masks_at_once_are_those_of_one_at_a_time(compile_bytes):
    texts = ["", "1", "12-", "12-é", "12-é."]
    matchers = [feed(compile_bytes(regex=r"\d+-\w*é?\.").matcher(), text) for text in texts]
    matchers.append(feed(compile_bytes(choice=["12", "1"]).matcher(), "1"))
    matchers[4].accept(END)
    expected = [words(feed(compile_bytes(regex=r"\d+-\w*é?\.").matcher(), text), VOCAB) for text in texts]
    rows = np.full((6, 9), 0xFFFFFFFF, np.uint32)
    for _ in range(2):
        fill_masks(matchers, rows)
        for row, want in zip(rows, expected[:4], strict=False):
            assert row.tolist() == want.tolist()
        assert set(np.flatnonzero(unpacked(rows[4]))) == {END, STOP}
        assert set(np.flatnonzero(unpacked(rows[5]))) == {ord("2"), END, STOP}
    fill_masks([], rows[:0])


@pytest.mark.usefixtures("threads")
def test_a_text_without_continuation_fails_alone():
    tokenizer = byte_level_tokenizer(["a", "b", "</s>"])
    compiler = GrammarCompiler(tokenizer, 3, frozenset({2}))
    stuck, fine, other = (compiler.compile(StructuredOutputsParams(choice=choice)).matcher()
                          for choice in (["abc", "abd"], ["ab"], ["b"]))
    stuck.accept(0)
    stuck.accept(1)
    rows = np.zeros((3, 1), np.uint32)
    with pytest.raises(EngineError, match=r"no token of the vocabulary|cannot go on"):
        fill_masks([stuck, fine, other], rows)
    assert rows[1:].tolist() == [[1], [2]]
    with pytest.raises(EngineError):
        stuck.fill_mask(rows[0])


@pytest.mark.parametrize("params", [
    {"regex": "["}, {"regex": r"(a)\1"}, {"regex": "(?=a)a"}, {"regex": r"a\b"}, {"regex": "a^b"}, {"regex": "a$b"},
    {"regex": "(?m)^a$"}, {"regex": "a{2,1}"}, {"regex": r"[^\s\S]"}, {"regex": "[a&&b]"},
    {"json": {"type": "integer", "minimum": 3, "maximum": 1}},
    {"json": {"type": "string", "minLength": 2, "maxLength": 1}}, {"json": {"enum": []}},
    {"json": {"type": "thing"}}, {"json": {"$ref": "#/$defs/nowhere"}},
    {"json": {"$ref": "https://example.com/schema.json"}}, {"json": {"type": "string", "pattern": "["}},
    {"json": {"properties": []}}, {"json": {"allOf": [{"type": "string"}, {"type": "integer"}]}},
    {"json": {"const": 1}, "whitespace_pattern": "["}, {"grammar": "start"}, {"grammar": 'begin: "a"'},
    {"grammar": "start: missing"}, {"grammar": "start: <no-such-token>"}, {"grammar": "start: %json {"},
], ids=str)
def test_what_is_malformed_or_allows_no_text_is_refused_when_compiled(compile_bytes, params):
    with pytest.raises(ParameterError) as raised:
        compile_bytes(**params)
    assert raised.value.parameter == "structured_outputs"
    assert raised.value.allowed.strip()
    assert "llguidance" not in str(raised.value)


@pytest.mark.parametrize("regex", ["^ab$", "^(ab)", "(ab)$", r"\Aab\z", "^ab|^cd$"])
def test_anchors_at_the_ends_of_a_regular_expression_change_nothing(compile_bytes, regex):
    grammar = compile_bytes(regex=regex)
    assert accepts(grammar, "ab")
    assert not accepts(grammar, "xab")
    assert not accepts(grammar, "abx")


@pytest.mark.parametrize(("regex", "good", "bad"), [
    (r"\d+", "12", "१"), (r"\w+", "a_1", "é"), (r"\D", "१", "1"), (r"a/b", "a/b", "a"), ("a\nb", "a\nb", "a b"),
    (r"a\/b", "a/b", r"a\/b"), ('"#', '"#', "#"), (".", "é", "\n"), ("(?s:.)", "\n", ""), ("(?i)É", "é", "e"),
    (r"\u00e9", "é", "e"), ("[/]", "/", "a"), ("🙂{2}", "🙂🙂", "🙂"), ("(?P<n>a)", "a", "n"), (" a ", " a ", "a"),
])
def test_regular_expressions_match_whole_texts(compile_bytes, regex, good, bad):
    grammar = compile_bytes(regex=regex)
    assert accepts(grammar, good)
    assert not accepts(grammar, bad)


def test_what_was_compiled_is_kept_and_what_was_not_used_is_dropped(byte_compiler, monkeypatch):
    monkeypatch.setattr(grammar_module, "CACHED_GRAMMARS", 3)
    compiled = [byte_compiler.compile(StructuredOutputsParams(regex=f"x{number}")) for number in range(3)]
    assert byte_compiler.compile(StructuredOutputsParams(regex="x0")) is compiled[0]
    byte_compiler.compile(StructuredOutputsParams(regex="x3"))
    assert byte_compiler.compile(StructuredOutputsParams(regex="x0")) is compiled[0]
    assert byte_compiler.compile(StructuredOutputsParams(regex="x1")) is not compiled[1]


def test_threads_compile_and_match_side_by_side(byte_compiler):
    failures = []

    def work(seed):
        try:
            for number in range(30):
                letter = chr(ord("a") + (number * 7 + seed) % 26)
                grammar = byte_compiler.compile(StructuredOutputsParams(regex=f"{letter}{{3}}"))
                matcher = grammar.matcher()
                for _ in range(3):
                    assert allowed(matcher) == {ord(letter)}
                    matcher.accept(ord(letter))
                assert matcher.complete
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


@pytest.mark.parametrize(("given", "begins"), [
    ({"regex": "("}, "invalid regex"), ({"json": {"properties": {"a": {"type": "strin"}}}}, "failed to compile"),
    ({"grammar": "start: /a/\nb: (\n"}, "2(5): "),
], ids=["regex", "schema", "lark"])
def test_an_error_names_a_place_only_in_a_text_that_was_given(byte_compiler, given, begins):
    with pytest.raises(ParameterError) as caught:
        byte_compiler.compile(StructuredOutputsParams(**given))
    assert str(caught.value).partition("is not allowed: ")[2].startswith(begins)
