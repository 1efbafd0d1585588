"""What a prompt can be, and its token ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxllm.arguments import PROMPT_KEYS
from jaxllm.checks import check_unicode
from jaxllm.errors import ParameterError
from jaxllm.tokenization import Tokenizer

Prompt = str | Sequence[int] | np.ndarray | Mapping[str, Any]
"""Text, token ids (also as an array, NumPy's or JAX's), ``{"prompt": text}`` or ``{"prompt_token_ids": ids}``."""


def encode_prompt(prompt: Any, tokenizer: Tokenizer | None) -> tuple[str | None, Sequence[int] | np.ndarray]:
    """A prompt's text, where it has one, and its token ids; ``ParameterError`` for anything else."""
    allowed = 'a string, a list of token ids, {"prompt": text} or {"prompt_token_ids": ids}'
    text: str | None = None
    if isinstance(prompt, Mapping):
        known = {"prompt", "prompt_token_ids"}
        if not known & set(prompt) or not all(isinstance(key, str) for key in prompt):
            raise ParameterError("prompt", dict(prompt), allowed)
        PROMPT_KEYS.check({key: value for key, value in prompt.items() if key not in known})
        if "prompt_token_ids" in prompt:
            text, prompt = prompt.get("prompt"), prompt["prompt_token_ids"]
            if not isinstance(text, str | None):
                raise ParameterError("prompt", text, "a string")
            if isinstance(prompt, str):
                raise ParameterError("prompt_token_ids", prompt, "a list of token ids")
        else:
            prompt = prompt["prompt"]
    if isinstance(prompt, str):
        if tokenizer is None:
            raise ParameterError("prompt", prompt, "token ids: this engine has no tokenizer")
        check_unicode("prompt", prompt)
        ids = tokenizer.encode(prompt)
        if not ids:
            raise ParameterError("prompt", str(prompt), "a text of at least one token")
        return str(prompt), ids
    if hasattr(prompt, "__array__"):
        prompt = np.asarray(prompt)
    if isinstance(prompt, bytes | bytearray | memoryview) or not isinstance(prompt, Sequence | np.ndarray):
        raise ParameterError("prompt", prompt, allowed)
    return text, prompt
