from __future__ import annotations

import re

import numpy as np
import pytest
from structured.walks import accepts, allowed_ids

from jaxllm.errors import ParameterError
from jaxllm.structured.gbnf import gbnf_to_lark, is_gbnf
from jaxllm.structured.problem import GrammarProblemError

JSON = r'''
# after llama.cpp's json.gbnf
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::=
  "{" ws (
            string ":" ws value
    ("," ws string ":" ws value)*
  )? "}" ws
array  ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::=
  "\"" ( [^"\\\x7F\x00-\x1F] |
    "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) # escapes
  )* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9]+)? ws
ws ::= | " " | "\n" [ \t]{0,20}
'''


@pytest.mark.parametrize(("text", "expected"), [
    ('root ::= "a"', True), ('# comment\n  my-rule::="a"', True), ('start: "a"', False), ('start: "x ::= y"', False),
    ('start: /root ::= "a"/', False), ("", False),
])
def test_the_notation_is_recognized_by_how_rules_are_defined(text, expected):
    assert is_gbnf(text) is expected


@pytest.mark.parametrize(("grammar", "good", "bad"), [
    ('root ::= "ab" | "c"', ["ab", "c"], ["a", "abc", ""]),
    ('root ::= "a"? "b"* "c"+ "d"{2} "e"{1,} "f"{ 0, 2 }', ["cddeff", "abbccddee"], ["cde", "cddefff"]),
    ('root ::= ("a" | "b" "c"){2}', ["aa", "bca"], ["a", "abb"]),
    (r'root ::= [a-c\]\-^] [^a-c\n]', ["bd", "]é", "-x", "^]"], ["da", "b\n", "bb"]),
    (r'root ::= "\x41\u00e9\U0001F642\t\"\\" .', ['Aé🙂\t"\\\n'], ['Aé🙂\t"']),
    ('root ::= ""', [""], ["a"]),
    ('root ::= x-1 x_2\nx-1 ::= "a"\nx_2 ::= "b" | ', ["a", "ab"], ["b"]),
    ('root ::=\n  "a" # one\n  | "b"\n\n# between\nother ::= root', ["a", "b"], ["ab"]),
    ('root ::= (\n"a"\n|\n"b"\n)', ["a", "b"], [""]),
    ('root ::= root "a" | "b"', ["b", "baa"], ["a", "ab"]),
    ('root ::= "\\"" [^"]* "\\""', ['""', '"é"'], ['"', '"""']),
    ('start ::= "a"\nroot ::= start "/" start', ["a/a"], ["a"]),
    ("root ::= [-a] [a-]", ["--", "aa"], ["b-"]),
], ids=repr)
def test_a_grammar_accepts_its_texts_and_no_others(compile_bytes, grammar, good, bad):
    compiled = compile_bytes(grammar=grammar)
    assert [text for text in good if not accepts(compiled, text)] == []
    assert [text for text in bad if accepts(compiled, text)] == []


@pytest.mark.parametrize(("grammar", "good"), [
    ('root ::= word "z"\nword ::= [a-z]+', "abz"),
    ('root ::= "ab" "x" | [a-z] "bc"', "abc"),
    ('root ::= a a "!"\na ::= "x"* "x"', "xx!"),
    ('root ::= "x"* "xy"', "xxxy"),
])
def test_any_division_of_a_text_among_the_rules_counts(compile_bytes, grammar, good):
    assert accepts(compile_bytes(grammar=grammar), good)


def test_a_grammar_for_json_takes_json(compile_bytes):
    grammar = compile_bytes(grammar=JSON)
    assert accepts(grammar, '{"name": "J \\"D\\" é\\u00e9", "n": [-12.5e3, {}, true,\n\tnull]}')
    assert not accepts(grammar, '{"a": 01}')
    assert not accepts(grammar, '{"a": "\n"}')


def test_special_tokens_can_be_named(compile_bytes):
    for token in ("<tool>", "<[258]>"):
        matcher = compile_bytes(grammar=f'root ::= {token} "<tool>"').matcher()
        assert allowed_ids(matcher, 259).tolist() == [258]


def _random_expression(generator, depth=0):
    """A GBNF expression and the regular expression that means the same."""
    kind = generator.integers(0, 3 if depth > 2 else 7)
    if kind == 0:
        literal = "".join(generator.choice(list("abc"), generator.integers(0, 3)))
        return f'"{literal}"', f"(?:{literal})"
    if kind in (1, 2):
        letters = "".join(sorted(set(generator.choice(list("abc"), 2))))
        caret = "^" if generator.random() < 0.2 else ""
        return (f"[{caret}{letters}]",) * 2
    first, second = _random_expression(generator, depth + 1), _random_expression(generator, depth + 1)
    if kind == 3:
        return f"{first[0]} {second[0]}", f"(?:{first[1]}{second[1]})"
    if kind == 4:
        return f"({first[0]} | {second[0]})", f"(?:{first[1]}|{second[1]})"
    repeat = str(generator.choice(["*", "+", "?", "{2}", "{1,}", "{0,2}"]))
    return f"({first[0]}){repeat}", f"(?:{first[1]}){repeat}"


@pytest.mark.parametrize("seed", range(40))
def test_expressions_mean_what_the_same_regular_expressions_mean(compile_bytes, seed):
    """Oracle: Python's ``re``, on random texts and on parts of them."""
    generator = np.random.default_rng(seed)
    expression, regex = _random_expression(generator)
    grammar = compile_bytes(grammar=f"root ::= {expression}")
    texts = {"".join(generator.choice(list("abcd"), generator.integers(0, 6))) for _ in range(60)} | {""}
    wrong = [text for text in texts if accepts(grammar, text) != bool(re.fullmatch(regex, text))]
    assert wrong == [], (expression, regex)


@pytest.mark.parametrize(("grammar", "message"), [
    ('root ::= "a', 'line 1, column 12: expected "'),
    ('root ::= [a\nother ::= "b"', "line 1, column 12: expected ]"),
    ('root ::= ("a"', "line 1, column 14: expected )"),
    ('root ::= "a" )', "line 1, column 14: expected a rule"),
    ('root ::= "a"\n  other', "line 2, column 3: there is no rule named other"),
    ('other ::= "a"', "no rule named root"),
    ('root ::= "a"\nroot ::= "b"', "line 2, column 1: the rule root is defined twice"),
    ('root ::= "a" root', "root requires itself"),
    ('root ::= a | b\na ::= "x" b\nb ::= "y" a', "root requires itself"),
    ("root ::= [b-a]", "column 14: the range from 'b' to 'a' is empty"),
    ("root ::= []", "column 12: a character class without characters"),
    (r'root ::= "\q"', "column 11: an unknown escape"),
    (r'root ::= "\ud800"', "U+D800 is not a character"),
    (r'root ::= "\U00110000"', "U+110000 is not a character"),
    ('root ::= "a"{3,2}', "repeats fewer times"),
    ("root ::= 'a'", "column 10: \"'\" is not expected here"),
    ("root ::= *", "column 10: '*' is not expected here"),
], ids=repr)
def test_what_is_wrong_is_said_with_its_place(grammar, message):
    with pytest.raises(GrammarProblemError, match=re.escape(message)):
        gbnf_to_lark(grammar)


def test_a_character_class_that_no_character_is_in_is_refused(compile_bytes):
    with pytest.raises(ParameterError, match="allows no text"):
        compile_bytes(grammar=r"root ::= [^\x00-\U0010FFFF]")
