"""Text of a running generation."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jaxllm.tokenization.tokenizer import Tokenizer


class IncrementalDetokenizer:
    """The text of generated tokens as they come, at constant cost per token.

    Before ``finish`` it never shows U+FFFD for a character that later tokens may complete; after it ``text`` equals
    ``tokenizer.decode`` of all ids given. The text is that of the generated ids by themselves, as with ``decode``:
    a tokenizer that drops the leading space of a text drops it here too.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        skip_special_tokens: bool = True,
        spaces_between_special_tokens: bool = True,
    ) -> None:
        self._assembler = tokenizer.assembler(
            skip_special_tokens=skip_special_tokens, spaces_between_special_tokens=spaces_between_special_tokens
        )
        self._parts: list[str] = []

    def append(self, new_ids: Iterable[int]) -> str:
        """Add tokens; the text that they complete."""
        return self._add(self._assembler.push(new_ids))

    def finish(self) -> str:
        """End the text; what was held back, with U+FFFD for a character left incomplete."""
        return self._add(self._assembler.finish())

    @property
    def text(self) -> str:
        """All the text so far."""
        if len(self._parts) > 1:
            self._parts = ["".join(self._parts)]
        return self._parts[0] if self._parts else ""

    def _add(self, text: str) -> str:
        if text:
            self._parts.append(text)
        return text
