"""Prompt lookup: a text is guessed to go on as it did after an earlier occurrence of its last tokens.

Source: Apoorv Saxena, "Prompt Lookup Decoding", 2023. Indexes grow with the tokens, in constant time for each: nothing
is ever searched through.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

_BYTES = 4


class PromptIndex:
    """Where each n-gram of a prompt was followed by what; shared by all samples of the prompt, never changed.

    lengths: of the n-grams, longest first. tail: the prompt's last tokens, as many as the longest, as bytes.
    Takes about 150 bytes per token and length.
    """

    def __init__(self, prompt: np.ndarray, longest: int, shortest: int) -> None:
        self.num_tokens = len(prompt)
        self.lengths = range(longest, shortest - 1, -1)
        data = prompt.astype(np.int32, copy=False).tobytes()
        # The newest occurrence wins; one that nothing follows yet is no occurrence.
        self._next_of = [_ngrams(data, length) for length in self.lengths]
        self.tail = data[-_BYTES * longest:]

    def find(self, level: int, ngram: bytes) -> int | None:
        """The place after an n-gram of ``lengths[level]`` tokens, where it occurs."""
        return self._next_of[level].get(ngram)


def _ngrams(data: bytes, length: int) -> dict[bytes, int]:
    size = _BYTES * length
    starts = range(0, len(data) - size, _BYTES)
    return {data[start:start + size]: start // _BYTES + length for start in starts}


class NgramIndex:
    """The n-grams of one sample, prompt and output, and how it is guessed to go on.

    place: the position of the token that is guessed to come next, ``None`` without a guess.
    matched: how many tokens before it are the last ones, as far as that is known: a guess that comes true makes it one
    longer, and is followed further. Else the longest n-gram counts that occurred before, at its newest occurrence.
    """

    __slots__ = ("_next_of", "_prompt", "_tail", "matched", "num_tokens", "place")

    def __init__(self, prompt: PromptIndex) -> None:
        self._prompt = prompt
        self._next_of: list[dict[bytes, int]] = [{} for _ in prompt.lengths]
        self._tail = prompt.tail
        self.num_tokens = prompt.num_tokens
        self.place: int | None = None
        self.matched = 0
        self._look_up()

    def append(self, token: int, *, guessed: bool) -> None:
        """Take in the next token. guessed: whether it is the one at ``place``."""
        for length, next_of in zip(self._prompt.lengths, self._next_of, strict=True):
            if length <= self.num_tokens:
                next_of[self._tail[-_BYTES * length:]] = self.num_tokens
        self._tail = (self._tail + token.to_bytes(_BYTES, "little"))[-_BYTES * self._prompt.lengths[0]:]
        self.num_tokens += 1
        if guessed and self.place is not None and self.matched >= self._prompt.lengths[0]:
            self.place += 1
            self.matched += 1
        else:
            self._look_up()

    def _look_up(self) -> None:
        for level, length in enumerate(self._prompt.lengths):
            if length > self.num_tokens:
                continue
            ngram = self._tail[-_BYTES * length:]
            place = self._next_of[level].get(ngram)
            if place is None:
                place = self._prompt.find(level, ngram)
            if place is not None:
                self.place, self.matched = place, length
                return
        self.place, self.matched = None, 0

    def guess(self, tokens: np.ndarray, count: int) -> np.ndarray:
        """i32[count]: how ``tokens``, all that it was given, go on from ``place``; what repeats itself goes on so."""
        if self.place is None:
            return tokens[:0]
        period = self.num_tokens - self.place
        return tokens[self.place + np.arange(count) % period]


def make_index(prompt: Sequence[int] | np.ndarray, longest: int, shortest: int) -> NgramIndex:
    """The index of a sample that has no output yet."""
    return NgramIndex(PromptIndex(np.asarray(prompt, np.int32), longest, shortest))
