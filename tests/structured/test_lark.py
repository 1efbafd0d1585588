from __future__ import annotations

import pytest
from structured.walks import accepts

from jaxllm.errors import ParameterError


@pytest.mark.parametrize(("grammar", "good", "bad"), [
    ('start: "a" b\nb: "x" b | "y"', ["ay", "axxy"], ["a", "ax"]),
    ('start: WORD " " WORD\nWORD: /[a-z]+/', ["ab c"], ["ab", "ab "]),
    ('%ignore /[ ]+/\nstart: "a" "b" // comment "x\n', ["ab", "a  b"], ["ba"]),
    ('start: "A"i{2,3}', ["aA", "aaa"], ["a", "aaaa"]),
    ('start: %json {"type": "integer", "title": "%json {"} "%json {"', ["12%json {"], ["12"]),
    ('start: "[" %json {"enum": [1, 2]} "," %json {"type": "null"} "]"', ["[1,null]"], ["[3,null]", "[1,1]"]),
    ('start: line\nline[suffix="stop=1"]: /[ab]*/', ["abstop=1"], ["ab"]),
    ('%import common.INT\nstart: INT # %json {', ["12"], ["a"]),
], ids=repr)
def test_a_grammar_accepts_its_texts_and_no_others(compile_bytes, grammar, good, bad):
    compiled = compile_bytes(grammar=grammar)
    assert [text for text in good if not accepts(compiled, text)] == []
    assert [text for text in bad if accepts(compiled, text)] == []


@pytest.mark.parametrize(("grammar", "message"), [
    ('start: a\na[temperature=0.5]: /x/', "temperature"),
    ('start: a\na[lazy, temperature = 0.5]: /x/', "temperature"),
    ('start: a "!"\na[stop="!"]: /.*/', "stop"),
    ('%llguidance {"allow_invalid_utf8": true}\nstart: "a"', "allow_invalid_utf8"),
    ('start: %json {"not": {}}', "keyword 'not' at #"),
    ('start: "a" %json {"properties": {"a": {"uniqueItems": true}}}', "keyword 'uniqueItems' at #/properties/a"),
    ("start: %json {", "%json is followed by JSON text"),
    ("start: %json [", "%json is followed by JSON text"),
], ids=repr)
def test_what_would_be_ignored_or_break_the_text_is_refused(compile_bytes, grammar, message):
    with pytest.raises(ParameterError, match=message):
        compile_bytes(grammar=grammar)


def test_errors_name_the_line_of_the_grammar_that_was_given(compile_bytes):
    with pytest.raises(ParameterError, match=r"2\(\d+\): unknown name: \"missing\""):
        compile_bytes(grammar='start: "a" b\nb: missing')
