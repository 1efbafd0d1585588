"""Compiling chat templates: Jinja in a sandbox, with the filters and functions that templates are written against."""

from __future__ import annotations

import datetime
import functools
import json
from collections.abc import Callable
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

from jaxllm.errors import ParameterError


class _GenerationTag(jinja2.ext.Extension):
    """``{% generation %}`` marks what the assistant wrote, for training; here it only renders its body."""

    tags = {"generation"}  # noqa: RUF012 (Jinja's own declaration)

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.Scope(body, lineno=line)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes HTML characters, which no model was trained on.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.datetime.now().strftime(pattern)


@functools.cache
def _environment() -> jinja2.Environment:
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


class CompiledTemplate:
    """A chat template ready to render.

    wants_parts: it walks over a message's content, so content given as parts is passed through.
    wants_only_parts: it does that without ever asking whether the content is a string.
    knows_tools: it looks at ``tools``.
    """

    def __init__(self, source: str) -> None:
        environment = _environment()
        try:
            tree = environment.parse(source)
            self._render: Callable[..., str] = environment.from_string(source).render
        except jinja2.TemplateSyntaxError as error:
            reason = f"not a valid Jinja template: {error} (line {error.lineno})"
            raise ParameterError("chat_template", source, reason) from None
        self.wants_parts = _loops_over_content(tree)
        self.knows_tools = any(name.name == "tools" for name in tree.find_all(jinja2.nodes.Name))
        asks = any(test.name == "string" for test in tree.find_all(jinja2.nodes.Test))
        self.wants_only_parts = self.wants_parts and not asks

    def render(self, variables: dict[str, Any]) -> str:
        """The text; whatever goes wrong inside the template is a ``ParameterError`` naming ``messages``."""
        try:
            return self._render(**variables)
        except Exception as error:
            # A template is a program of somebody else's: it can fail on a conversation in any way that Python can.
            reason = str(error) or type(error).__name__
            raise ParameterError(
                "messages", variables["messages"], f"the model's chat template refuses them: {reason}"
            ) from error


@functools.lru_cache(maxsize=64)
def compile_template(source: str) -> CompiledTemplate:
    """The compiled template, cached by its source."""
    return CompiledTemplate(source)


def _loops_over_content(tree: jinja2.nodes.Template) -> bool:
    """Whether a ``for`` walks over ``message.content``, directly or through a variable set from it."""
    aliases: set[str] = set()
    for assignment in tree.find_all(jinja2.nodes.Assign):
        if isinstance(assignment.target, jinja2.nodes.Name) and _is_content(assignment.node, aliases):
            aliases.add(assignment.target.name)
    return any(_is_content(loop.iter, aliases) for loop in tree.find_all(jinja2.nodes.For))


def _is_content(node: jinja2.nodes.Node, aliases: set[str]) -> bool:
    if isinstance(node, jinja2.nodes.Filter) and node.node is not None:
        return _is_content(node.node, aliases)
    if isinstance(node, jinja2.nodes.Name):
        return node.name in aliases
    if isinstance(node, jinja2.nodes.Getattr):
        return node.attr == "content"
    if isinstance(node, jinja2.nodes.Getitem):
        return isinstance(node.arg, jinja2.nodes.Const) and node.arg.value == "content"
    return False
