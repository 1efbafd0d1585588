"""``StructuredOutputsParams``: what the text of an output must be, validated once, never mutated."""

from __future__ import annotations

import dataclasses
import json as jsonlib
from collections.abc import Mapping, Sequence
from typing import Any

from jaxllm.arguments import STRUCTURED_FIELDS, understands
from jaxllm.checks import check_unicode
from jaxllm.errors import ParameterError

KINDS = ("json", "regex", "choice", "grammar", "json_object")
"""The fields of which exactly one says what is allowed."""


@understands(STRUCTURED_FIELDS)
@dataclasses.dataclass(frozen=True, kw_only=True)
class StructuredOutputsParams:
    """The texts that a request may produce. Names and meanings follow vLLM's ``StructuredOutputsParams``.

    Exactly one of:

    json: a JSON schema, as a dict, as text, or as a class with ``model_json_schema`` (pydantic). Kept as text, so that
        the order of properties counts: they are generated in it.
    regex: a regular expression that the whole text matches, in the syntax of Rust's ``regex`` crate.
    choice: a list of strings, one of which is the text.
    grammar: a context-free grammar in Lark's notation (with a rule ``start``) or in GBNF (``root ::= ...``).
    json_object: ``True``: any JSON object.

    And, for ``json`` and ``json_object``:

    disable_any_whitespace: no white space between the parts of the JSON text; by default any is allowed.
    whitespace_pattern: a regular expression for the white space allowed there instead.
    disable_additional_properties: objects whose schema lists ``properties`` and does not say otherwise have no others.

    structural_tag: refused: write the tags into a Lark grammar, which can hold JSON schemas as ``%json {...}``.

    Raises ``ParameterError`` for anything else. Whether a schema, expression or grammar can be enforced is found out
    when it is compiled for a tokenizer (``GrammarCompiler.compile``).
    """

    json: str | Mapping[str, Any] | type | None = None
    regex: str | None = None
    choice: Sequence[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False
    whitespace_pattern: str | None = None
    structural_tag: None = None

    def __post_init__(self) -> None:
        if self.structural_tag is not None:
            raise ParameterError("structural_tag", self.structural_tag, "not supported: write the tags into a Lark "
                                 "grammar (grammar=...), which can hold JSON schemas as %json {...}")
        if not isinstance(self.json_object, bool | None):
            raise ParameterError("json_object", self.json_object, "True or None")
        for name in ("disable_any_whitespace", "disable_additional_properties"):
            if not isinstance(getattr(self, name), bool):
                raise ParameterError(name, getattr(self, name), "True or False")
        given = [name for name in KINDS if _is_given(getattr(self, name))]
        if len(given) != 1:
            raise ParameterError("structured_outputs", ", ".join(given) or None, f"exactly one of {', '.join(KINDS)}")
        for name in ("regex", "grammar"):
            if getattr(self, name) is not None:
                _text(name, getattr(self, name))
        if self.json is not None:
            object.__setattr__(self, "json", _schema_text(self.json))
        object.__setattr__(self, "choice", _choices(self.choice))
        self._check_json_options()

    @property
    def kind(self) -> str:
        """Which of ``KINDS`` is given."""
        return next(name for name in KINDS if _is_given(getattr(self, name)))

    def _check_json_options(self) -> None:
        if self.whitespace_pattern is not None:
            _text("whitespace_pattern", self.whitespace_pattern)
            if self.disable_any_whitespace:
                raise ParameterError("whitespace_pattern", self.whitespace_pattern,
                                     "None, since disable_any_whitespace is set")
        if self.kind in ("json", "json_object"):
            return
        for name in ("disable_any_whitespace", "disable_additional_properties", "whitespace_pattern"):
            if getattr(self, name):
                raise ParameterError(name, getattr(self, name), f"only for json and json_object, not for {self.kind}")


def _is_given(value: object) -> bool:
    return value is not None and value is not False


def _text(name: str, value: object) -> None:
    if not isinstance(value, str) or not value:
        raise ParameterError(name, value, "a non-empty string")
    check_unicode(name, value)


def _choices(choice: object) -> tuple[str, ...] | None:
    if choice is None:
        return None
    if isinstance(choice, str | bytes | Mapping) or not isinstance(choice, Sequence) or not choice:
        raise ParameterError("choice", choice, "a list of at least one string")
    for text in choice:
        if not isinstance(text, str):
            raise ParameterError("choice", text, "each choice is a string")
        if text:
            _text("choice", text)
    return tuple(dict.fromkeys(choice))


def _schema_text(schema: object) -> str:
    """The schema as JSON text, its keys in their order."""
    allowed = "a JSON schema: a dict, its JSON text, or a class with model_json_schema"
    describe = getattr(schema, "model_json_schema", None)
    if isinstance(schema, type) and callable(describe):
        try:
            schema = describe()
        except Exception as error:  # of whatever library the class is from
            raise ParameterError("json", schema, f"{allowed}; that of this class fails: {error}") from None
    if isinstance(schema, str):
        _text("json", schema)
        try:
            schema = jsonlib.loads(schema, object_pairs_hook=_object, parse_constant=_no_constant)
        except ValueError as error:
            raise ParameterError("json", schema, f"{allowed}; this text is not JSON: {error}") from None
        except RecursionError:
            raise ParameterError("json", schema, f"{allowed}, not nested as deeply") from None
    if not isinstance(schema, Mapping):
        raise ParameterError("json", schema, allowed)
    try:
        text = jsonlib.dumps(_plain(schema), ensure_ascii=False, allow_nan=False)
        text.encode()
    except (TypeError, ValueError) as error:
        raise ParameterError("json", schema, f"{allowed}; this one cannot be written as JSON: {error}") from None
    except RecursionError:
        raise ParameterError("json", "{...}", f"{allowed}, not nested as deeply") from None
    return text


def _plain(value: Any) -> Any:
    """Mappings as dicts with text keys, tuples as lists."""
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise TypeError(f"key {key!r} is not a string")
        return {key: _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        twice = next(key for index, (key, _) in enumerate(pairs) if key in dict(pairs[:index]))
        raise ValueError(f"an object has the key {twice!r} twice")
    return result


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
