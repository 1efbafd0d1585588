"""From ``StructuredOutputsParams`` to the text of a grammar in the library's notation (a variant of Lark's)."""

from __future__ import annotations

import json
from typing import Any

from llguidance import regex_to_lark

from jaxllm.structured.depth import check_number_of_references, check_number_of_rules
from jaxllm.structured.gbnf import gbnf_to_lark, is_gbnf
from jaxllm.structured.lark import checked_lark
from jaxllm.structured.params import StructuredOutputsParams
from jaxllm.structured.schema import enforceable

# The library could force its own tokenization on whatever text only one continuation is left for. Without that a mask
# says what the grammar allows and nothing else.
_OPTIONS = '\n%llguidance {"no_forcing": true}\n'


def grammar_source(params: StructuredOutputsParams) -> str:
    """The grammar, whose rule ``start`` matches exactly the texts that are allowed.

    Raises ``GrammarProblemError`` for what cannot be enforced, as far as it shows before compilation.
    """
    if params.regex is not None:
        # As in JSON schemas, \d and \w are about ASCII.
        return f"start: /{regex_to_lark(params.regex, 'dw')}/{_OPTIONS}"
    if params.choice is not None:
        # One terminal, for several would be tried greedily.
        choices = " | ".join(json.dumps(text, ensure_ascii=False) for text in params.choice)
        return f"start: CHOICE\nCHOICE: {choices}{_OPTIONS}"
    if params.grammar is not None:
        grammar = params.grammar
        check_number_of_rules(grammar)
        return (gbnf_to_lark(grammar) if is_gbnf(grammar) else checked_lark(grammar, enforceable)) + _OPTIONS
    schema: dict[str, Any] = {"type": "object"} if params.json is None else json.loads(str(params.json))
    check_number_of_references(schema)
    schema = enforceable(schema, closed=params.disable_additional_properties)
    return f"start: %json {json.dumps({**schema, **_white_space(params)}, ensure_ascii=False)}{_OPTIONS}"


def _white_space(params: StructuredOutputsParams) -> dict[str, Any]:
    """The library's options, which it takes from inside the schema."""
    if params.disable_any_whitespace:
        return {"x-guidance": {"whitespace_flexible": False}}
    if params.whitespace_pattern is not None:
        return {"x-guidance": {"whitespace_pattern": params.whitespace_pattern}}
    return {}
