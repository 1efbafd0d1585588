"""What each token contributes to the text: its bytes, and what the neighbours change about them."""

from __future__ import annotations

import dataclasses
import functools
import json
import re
from collections.abc import Collection, Mapping
from typing import Any

import tokenizers

from jaxllm.errors import UnsupportedModelError

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@functools.cache
def _byte_of_character() -> dict[str, int]:
    """GPT-2's printable stand-in for every byte (Radford et al. 2019, ``bytes_to_unicode``), inverted."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    table = {chr(byte): byte for byte in printable}
    table.update({chr(256 + index): byte for index, byte in enumerate(others)})
    return table


@dataclasses.dataclass(frozen=True)
class DecodeRules:
    """A tokenizer's decoder, reduced to what each token contributes. Text is the concatenation of the contributions.

    byte_level: characters of a model token stand for bytes (GPT-2).
    replacements: (pattern, replacement) pairs applied inside each token, such as ("▁", " ").
    byte_fallback: tokens spelled ``<0xNN>`` are single bytes (SentencePiece).
    drop_in_first: removed wherever it occurs in the first token (Metaspace's leading space).
    strip_character, strip_count: at most so many of these are removed from the start of the text.
    separator: put between tokens (decoders that join words).
    """

    byte_level: bool = False
    replacements: tuple[tuple[str, str], ...] = ()
    byte_fallback: bool = False
    drop_in_first: str = ""
    strip_character: str = ""
    strip_count: int = 0
    separator: str = ""

    @classmethod
    def from_backend(cls, backend: tokenizers.Tokenizer) -> DecodeRules:
        """The rules of a ``tokenizers`` decoder; ``UnsupportedModelError`` for one that they cannot express."""
        if backend.decoder is None:
            return cls(separator=" ")
        spec = json.loads(backend.decoder.__getstate__())
        steps = spec["decoders"] if spec["type"] == "Sequence" else [spec]
        return functools.reduce(_with_step, steps, cls())

    def token_bytes(self, token: str, *, added: bool, first: bool) -> bytes:
        """The bytes of one token. ``added`` tokens are text as it is, never byte stand-ins."""
        if self.byte_level and not added:
            table = _byte_of_character()
            try:
                return bytes([table[character] for character in token])
            except KeyError:
                return token.encode()
        if self.byte_fallback and (match := _BYTE_TOKEN.fullmatch(token)):
            return bytes([int(match[1], 16)])
        if first and self.drop_in_first:
            token = token.replace(self.drop_in_first, "")
        for pattern, replacement in self.replacements:
            token = token.replace(pattern, replacement)
        return token.encode()


def _with_step(rules: DecodeRules, step: Mapping[str, Any]) -> DecodeRules:
    kind = step["type"]
    if kind == "ByteLevel":
        return dataclasses.replace(rules, byte_level=True)
    if kind == "ByteFallback":
        return dataclasses.replace(rules, byte_fallback=True)
    if kind == "Fuse":
        return rules
    if kind == "Replace" and "String" in step["pattern"]:
        pair = (step["pattern"]["String"], step["content"])
        return dataclasses.replace(rules, replacements=(*rules.replacements, pair))
    if kind == "Strip" and step["stop"] == 0 and not rules.strip_count:
        return dataclasses.replace(rules, strip_character=step["content"], strip_count=step["start"])
    if kind == "Metaspace":
        mark = step["replacement"]
        dropped = "" if step.get("prepend_scheme", "always") == "never" else mark
        return dataclasses.replace(rules, replacements=(*rules.replacements, (mark, " ")), drop_in_first=dropped)
    raise UnsupportedModelError(
        f"the tokenizer's decoder step {dict(step)!r} is not supported: ByteLevel, ByteFallback, Fuse, Metaspace, "
        "Replace of a string, Strip at the start, or no decoder at all are"
    )


class Pieces:
    """The bytes of every token of a tokenizer, computed when first asked for; ``None`` for an id without a token."""

    def __init__(self, backend: tokenizers.Tokenizer, rules: DecodeRules, added_ids: Collection[int]) -> None:
        self.rules = rules
        self._backend = backend
        self._added = frozenset(added_ids)
        self._inner: dict[int, bytes | None] = {}

    def inner(self, token_id: int) -> bytes | None:
        """The bytes of a token that is not the first of a text."""
        if token_id not in self._inner:
            self._inner[token_id] = self._piece(token_id, first=False)
        return self._inner[token_id]

    def first(self, token_id: int) -> bytes | None:
        """The bytes of a token at the start of a text."""
        return self._piece(token_id, first=True) if self.rules.drop_in_first else self.inner(token_id)

    def _piece(self, token_id: int, *, first: bool) -> bytes | None:
        token = self._backend.id_to_token(token_id)
        return None if token is None else self.rules.token_bytes(token, added=token_id in self._added, first=first)
