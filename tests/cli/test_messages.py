"""What counts as one message of standard input that is no terminal."""

from __future__ import annotations

import io

import pytest

from jaxllm.cli.messages import MessageReader


def messages(text, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO(text))
    return list(_messages(MessageReader()))


def _messages(reader):
    while True:
        try:
            yield reader.read()
        except EOFError:
            return


@pytest.mark.parametrize(("text", "expected"), [
    ("", []),
    ("one\ntwo\n", ["one", "two"]),
    ("one\n\ntwo", ["one", "", "two"]),
    ("one\\\ntwo\\\nthree\nfour\n", ["one\ntwo\nthree", "four"]),
    ("cut short\\\n", ["cut short"]),
    ('"""one line"""\nnext\n', ["one line", "next"]),
    ('"""\nfirst\n\n  second\n"""\nnext\n', ["first\n\n  second", "next"]),
    ('  """first\nsecond"""  \nnext\n', ["first\nsecond", "next"]),
    ('"""never\nclosed\n', ["never\nclosed"]),
    ('"""\nno \\\nescape\n"""\n', ["no \\\nescape"]),
    ('a """ inside\nb\n', ['a """ inside', "b"]),
])
def test_lines_become_messages(text, expected, monkeypatch):
    assert messages(text, monkeypatch) == expected
