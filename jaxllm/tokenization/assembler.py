"""From token ids to text, a few tokens at a time: the one implementation behind whole and incremental decoding."""

from __future__ import annotations

import codecs
import copy
from collections.abc import Collection, Iterable

from jaxllm.tokenization.cleanup import SpaceCleaner
from jaxllm.tokenization.pieces import Pieces

_UTF8 = codecs.getincrementaldecoder("utf-8")


class TextAssembler:
    """Turns a stream of token ids into a stream of text, at constant cost per token.

    The concatenation of what ``push`` and ``finish`` return does not depend on how the ids are divided into calls.
    Bytes that are not UTF-8 become U+FFFD, one for each maximal invalid sequence (Unicode 15, section 3.9), but never
    before it is certain that no later token completes the character.
    """

    def __init__(
        self,
        pieces: Pieces,
        *,
        skipped_ids: Collection[int],
        joined_ids: Collection[int],
        clean_up_spaces: bool,
    ) -> None:
        """``skipped_ids`` give no text, nor do ids without a token; neighbours in ``joined_ids`` have no separator."""
        self._pieces = pieces
        self._skipped = skipped_ids
        self._joined = joined_ids
        self._separator = pieces.rules.separator.encode()
        self._strip_left = pieces.rules.strip_count
        self._decoder = _UTF8("replace")
        self._cleaner = SpaceCleaner() if clean_up_spaces else None
        self._started = False
        self._last_joined = False

    def copy(self) -> TextAssembler:
        """One that goes on from here on its own."""
        twin = copy.copy(self)
        twin._decoder = _UTF8("replace")
        twin._decoder.setstate(self._decoder.getstate())
        twin._cleaner = copy.copy(self._cleaner)
        return twin

    def push(self, ids: Iterable[int]) -> str:
        """The text that these ids complete."""
        return self._decode(b"".join(self._contributions(ids)), final=False)

    def finish(self) -> str:
        """The text still held back; an incomplete character becomes U+FFFD."""
        return self._decode(b"", final=True)

    def _contributions(self, ids: Iterable[int]) -> Iterable[bytes]:
        pieces, skipped = self._pieces, self._skipped
        for token_id in ids:
            if token_id in skipped:
                continue
            piece = pieces.inner(token_id) if self._started else pieces.first(token_id)
            if piece is None:
                continue
            if self._separator and self._started and not (self._last_joined and token_id in self._joined):
                yield self._separator
            yield piece
            self._started = True
            self._last_joined = token_id in self._joined

    def _decode(self, data: bytes, *, final: bool) -> str:
        text = self._decoder.decode(data, final)
        if self._strip_left and text:
            stripped = text.lstrip(self._pieces.rules.strip_character)
            removed = min(len(text) - len(stripped), self._strip_left)
            self._strip_left = self._strip_left - removed if removed == len(text) else 0
            text = text[removed:]
        if self._cleaner is None:
            return text
        return self._cleaner.push(text) + (self._cleaner.finish() if final else "")
