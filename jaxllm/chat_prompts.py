"""``ChatPrompts``: conversations become prompts through a chat template."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxllm.errors import ParameterError
from jaxllm.inputs import conversation_list, usable
from jaxllm.tokenization import Tokenizer
from jaxllm.tokenization.chat import Message

Conversation = Sequence[Message]


class ChatPrompts:
    """What a tokenizer's templates, or the one that was chosen in their place, make of conversations.

    template: as for ``read_template``.
    """

    def __init__(self, tokenizer: Tokenizer | None, template: Any) -> None:
        self._tokenizer = tokenizer
        self._template = read_template(template, tokenizer)

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer; ``ParameterError`` if the engine was made without one."""
        if self._tokenizer is None:
            raise ParameterError("skip_tokenizer_init", True, "False, for anything that needs a tokenizer")
        return self._tokenizer

    def prompt(self, messages: Conversation, *, chat_template: str | None = None, **options: Any) -> dict[str, Any]:
        """A conversation's text and token ids, with exactly one BOS.

        options: those of ``Tokenizer.apply_chat_template``.
        """
        template = self._template if chat_template is None else chat_template
        text = self.tokenizer.apply_chat_template(messages, tokenize=False, chat_template=template, **options)
        return {"prompt": text, "prompt_token_ids": self.tokenizer.encode_chat(text)}

    def prompts(self, messages: Any, variables: Mapping[str, Any] | None, **options: Any) -> list[Any]:
        """The prompts of one or several conversations, with an ``Unusable`` in the place of each that has none.

        variables: further ones that the template sees. options: as for ``prompt``.
        """
        conversations = conversation_list(messages)
        check_template_variables(variables)
        make = functools.partial(self.prompt, **options, **(variables or {}))
        return [usable(make, conversation) for conversation in conversations]


def check_template_variables(variables: Any) -> None:
    """Raise ``ParameterError`` unless they are variables of a chat template that are not arguments already."""
    if variables is None:
        return
    taken = inspect.signature(Tokenizer.apply_chat_template).parameters
    allowed = "a mapping from names of template variables, other than the arguments of chat"
    if not isinstance(variables, Mapping) or any(not isinstance(name, str) or name in taken for name in variables):
        raise ParameterError("chat_template_kwargs", variables, allowed)


def read_template(template: Any, tokenizer: Tokenizer | None) -> str | None:
    """A chat template: that of a file, if there is one of this name, else the text itself.

    The text is a template's source, or the name of one of the tokenizer's; ``ParameterError`` for any other.
    """
    if template is None:
        return None
    if isinstance(template, str | os.PathLike) and os.path.isfile(template):
        return Path(template).read_text(encoding="utf-8")
    if not isinstance(template, str):
        raise ParameterError("chat_template", template, "a template's source, its name, or its file")
    names = () if tokenizer is None else tokenizer.template_names
    if "{" not in template and template not in names:
        raise ParameterError("chat_template", template,
                             f"a template's source, a file that exists, or one of the model's templates, {list(names)}")
    return template
