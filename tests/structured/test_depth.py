"""Chains of thousands of rules: compiled or refused, where they once overflowed the native stack or took minutes."""

from __future__ import annotations

import threading

import pytest

from jaxllm.errors import EngineError, ParameterError
from jaxllm.structured.depth import MAX_RULES, on_deep_stack

LONG = 4000


def lark(count):
    return "start: r0\n" + "".join(f'r{i}: "x" r{i + 1}\n' for i in range(count - 2)) + f'r{count - 2}: "y"\n'


def gbnf(count):
    return "root ::= r0\n" + "".join(f'r{i} ::= "x" r{i + 1}\n' for i in range(count - 2)) + f'r{count - 2} ::= "y"\n'


def schema(count):
    links = {f"a{i}": {"$ref": f"#/$defs/a{i + 1}"} for i in range(count - 1)}
    return {"$ref": "#/$defs/a0", "$defs": {**links, f"a{count - 1}": {"type": "null"}}}


CHAINS = {"lark": lambda count: {"grammar": lark(count)}, "gbnf": lambda count: {"grammar": gbnf(count)},
          "json": lambda count: {"json": schema(count)}}


@pytest.mark.parametrize("chain", CHAINS.values(), ids=CHAINS)
def test_a_long_chain_of_rules_is_compiled(compile_bytes, chain):
    matcher = compile_bytes(**chain(LONG)).matcher()
    assert matcher.allowed().any()
    assert not matcher.accepting


@pytest.mark.parametrize("chain", CHAINS.values(), ids=CHAINS)
def test_one_too_long_is_refused(compile_bytes, chain):
    with pytest.raises(ParameterError, match=rf"has {MAX_RULES + 1} r.*, and at most {MAX_RULES} are supported"):
        compile_bytes(**chain(MAX_RULES + 1))


def test_a_grammar_that_outgrows_the_library_says_so(compile_bytes):
    """Every one of the 1500 rules can begin with the same letter, more than the parser keeps at once."""
    rules = range(1500)
    text = "start: " + " | ".join(f"r{i}" for i in rules) + "\n" + "".join(f'r{i}: "a" r{i - 1}?\n' for i in rules[1:])
    grammar = compile_bytes(grammar=text + 'r0: "a"\n')
    matcher = grammar.matcher()
    token = next(token for token in range(grammar.vocabulary.vocab_size)
                 if matcher.allowed()[token // 32] >> token % 32 & 1)
    with pytest.raises(EngineError, match=r"cannot go on: .*2000"):
        matcher.accept(token)


def test_a_deep_stack_gives_what_the_call_gives():
    before = threading.stack_size()
    assert on_deep_stack(lambda: 5) == 5
    with pytest.raises(ZeroDivisionError):
        on_deep_stack(lambda: 1 // 0)
    assert threading.stack_size() == before
