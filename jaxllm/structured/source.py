"""From ``StructuredOutputsParams`` to the text of a grammar in the library's notation (a variant of Lark's)."""

from __future__ import annotations

import json

from llguidance import regex_to_lark

from jaxllm.structured.params import StructuredOutputsParams

# The library could force its own tokenization on whatever text only one continuation is left for. Without that a mask
# says what the grammar allows and nothing else.
_HEADER = '%llguidance {"no_forcing": true}\n'


def grammar_source(params: StructuredOutputsParams) -> str:
    """The grammar, whose rule ``start`` matches exactly the texts that are allowed."""
    if params.regex is not None:
        return f"{_HEADER}start: /{regex_to_lark(params.regex, 'd')}/\n"
    if params.choice is not None:
        choices = " | ".join(json.dumps(text, ensure_ascii=False) for text in params.choice)
        return f"{_HEADER}start: CHOICE\nCHOICE: {choices}\n"
    if params.grammar is not None:
        return _HEADER + params.grammar
    schema = {"type": "object"} if params.json is None else json.loads(str(params.json))
    return f"{_HEADER}start: %json {json.dumps(schema, ensure_ascii=False)}\n"
