"""From a conversation to a prompt: checking the messages and rendering the model's chat template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from jaxllm.errors import ParameterError

if TYPE_CHECKING:
    from jaxllm.tokenization.templating import CompiledTemplate

Message = Mapping[str, Any]

# Appended to the final message to find where it ends in the rendered text. The space shows whether the template trims.
_END_MARK = "\u2983jaxllm final message ends\u2984 "


class ChatTemplates:
    """A model's chat templates, by name; most models have one, named "default"."""

    def __init__(self, templates: str | Mapping[str, str] | None, special_tokens: Mapping[str, str]) -> None:
        self._templates = {"default": templates} if isinstance(templates, str) else dict(templates or {})
        self._special_tokens = dict(special_tokens)

    @property
    def default(self) -> str | None:
        """The source of the template named "default"."""
        return self._templates.get("default")

    @property
    def by_name(self) -> dict[str, str]:
        """The sources of the templates."""
        return dict(self._templates)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the templates, sorted."""
        return tuple(sorted(self._templates))

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None,
        add_generation_prompt: bool,
        continue_final_message: bool,
        chat_template: str | None,
        variables: Mapping[str, Any],
    ) -> str:
        """The prompt's text; arguments as in ``Tokenizer.apply_chat_template``."""
        # Jinja costs 50 ms to import, and most programs never chat.
        from jaxllm.tokenization.templating import compile_template

        if continue_final_message and add_generation_prompt:
            raise ParameterError(
                "continue_final_message", True, "it continues the last message, add_generation_prompt opens a new one: "
                "set add_generation_prompt=False"
            )
        schemas = _checked_tools(tools)
        template = compile_template(self._select(chat_template, tools=bool(schemas)))
        if schemas and not template.knows_tools:
            raise ParameterError("tools", tools, "None: this model's chat template shows no tools; say in a message "
                                 "what there is, or give a chat_template that does")
        conversation = _checked_messages(messages, template)
        final_text = _mark_end(conversation) if continue_final_message else ""
        text = template.render(
            {
                **self._special_tokens,
                **variables,
                "messages": conversation,
                "tools": schemas,
                "add_generation_prompt": add_generation_prompt,
            }
        )
        return _cut_at_mark(text, final_text) if continue_final_message else text

    def _select(self, chosen: str | None, *, tools: bool) -> str:
        names = f"the name of one of the model's templates, {sorted(self._templates)}, or the source of one"
        if chosen in self._templates:
            return self._templates[chosen]
        if chosen is not None:
            if not isinstance(chosen, str) or "{" not in chosen:
                raise ParameterError("chat_template", chosen, names)
            return chosen
        if tools and "tool_use" in self._templates:
            return self._templates["tool_use"]
        if self.default is not None:
            return self.default
        allowed = (
            names
            if self._templates
            else "this model has no chat template: give the source of one, or use generate with a prompt"
        )
        raise ParameterError("chat_template", None, allowed)


def _checked_messages(messages: Sequence[Message], template: CompiledTemplate) -> list[dict[str, Any]]:
    """Copies of the messages, without keys that are ``None``, with content in the form that the template expects."""
    allowed = "a non-empty list of messages, each a dict with 'role' and 'content'"
    if isinstance(messages, (str, bytes, Mapping)) or not isinstance(messages, Sequence) or not messages:
        raise ParameterError("messages", messages, allowed)
    checked = []
    for index, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise ParameterError(f"messages[{index}]", message, "a dict with 'role' and 'content'")
        copy = {key: value for key, value in message.items() if value is not None}
        if not isinstance(copy.get("role"), str):
            raise ParameterError(f"messages[{index}]['role']", message.get("role"), "a string such as 'user'")
        if "content" in copy:
            copy["content"] = _content(copy["content"], f"messages[{index}]['content']", template)
        elif not any(isinstance(value, Sequence) for key, value in copy.items() if key != "role"):
            raise ParameterError(f"messages[{index}]['content']", None, "a string or a list of text parts")
        checked.append(copy)
    return checked


def _content(content: object, name: str, template: CompiledTemplate) -> str | list[dict[str, Any]]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if template.wants_only_parts else content
    if not isinstance(content, Sequence) or isinstance(content, bytes):
        raise ParameterError(name, content, "a string or a list of text parts")
    for part in content:
        if not isinstance(part, Mapping) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise ParameterError(name, part, 'parts are {"type": "text", "text": "..."}')
    if template.wants_parts:
        return [dict(part) for part in content]
    return "\n".join(part["text"] for part in content)


def _checked_tools(tools: Sequence[Mapping[str, Any]] | None) -> list[dict[str, Any]] | None:
    if tools is None:
        return None
    if isinstance(tools, (str, bytes, Mapping)) or not isinstance(tools, Sequence):
        raise ParameterError("tools", tools, "a list of JSON schemas (dicts)")
    for tool in tools:
        if not isinstance(tool, Mapping):
            raise ParameterError(
                "tools", tool, "JSON schemas (dicts); transformers.utils.get_json_schema makes one of a function"
            )
    return [dict(tool) for tool in tools]


def _mark_end(conversation: list[dict[str, Any]]) -> str:
    """Put the mark behind the final message's text; that text."""
    content = conversation[-1].get("content")
    if isinstance(content, str):
        conversation[-1]["content"] = content + _END_MARK
        return content
    if content:
        text: str = content[-1]["text"]
        content[-1]["text"] = text + _END_MARK
        return text
    raise ParameterError("continue_final_message", True, "the last message has no text to continue")


def _cut_at_mark(text: str, final_text: str) -> str:
    position = text.rfind(_END_MARK.rstrip())
    if position < 0:
        raise ParameterError(
            "continue_final_message", True, "the chat template does not show the last message: it cannot be continued"
        )
    kept = text[:position]
    # A template that trims messages would have trimmed the end of this one too, had the mark not been there.
    trims = not text.startswith(_END_MARK, position)
    return kept.rstrip() if trims and final_text != final_text.rstrip() else kept
