"""What the host forbids a sample from token to token: texts outside its grammar, words of several tokens."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from jaxllm.errors import EngineError
from jaxllm.tokenization import Tokenizer

if TYPE_CHECKING:
    from jaxllm.structured import Grammar  # loads the grammar library

Words = tuple[tuple[int, ...], ...]


@dataclasses.dataclass(frozen=True)
class Constraints:
    """What holds for every sample of a request.

    vocab_size: how many ids masks cover. grammar: what the text must follow. banned_ids: tokens that are a bad word by
    themselves. bad_words: token sequences, of two ids or more, whose last must not follow the others.
    skip_special_tokens: as the text is decoded.
    """

    vocab_size: int
    grammar: Grammar | None = None
    banned_ids: tuple[int, ...] = ()
    bad_words: Words = ()
    skip_special_tokens: bool = True

    def start(self) -> TokenConstraint | None:
        """The state of one sample; ``None`` where the device needs no help."""
        return TokenConstraint(self) if self.grammar is not None or self.bad_words else None


class TokenConstraint:
    """How far one sample has come in its request's constraints.

    error: why its grammar gives no mask; the sample's row is then left without any token to choose.
    """

    def __init__(self, constraints: Constraints) -> None:
        self.error: EngineError | None = None
        self.num_words = -(-constraints.vocab_size // 32)
        self.matcher = None
        if constraints.grammar is not None:
            self.matcher = constraints.grammar.matcher(skip_special_tokens=constraints.skip_special_tokens)
        self._words = constraints.bad_words
        self._num_kept = max(map(len, self._words), default=1) - 1
        self._recent: tuple[int, ...] = ()

    def accept(self, token: int) -> None:
        """Take the token that was chosen; ``EngineError`` for one that was not allowed."""
        if self._words:
            self._recent = (*self._recent, token)[-self._num_kept:]
        if self.matcher is not None:
            self.matcher.accept(token)

    @property
    def complete(self) -> bool:
        """Whether the grammar allows nothing further but the end."""
        return self.matcher is not None and self.matcher.complete

    def banned_next(self) -> list[int]:
        """The tokens that would complete a bad word."""
        return [word[-1] for word in self._words if self._recent[1 - len(word):] == word[:-1]]


def constraint_masks(constraints: Sequence[TokenConstraint | None], num_words: int) -> np.ndarray | None:
    """u32[len(constraints), num_words]: bit i of word j of a row says that token 32 j + i may come next.

    ``None`` where nothing is masked. Rows of ``None`` allow everything; those of a grammar that fails allow nothing.
    """
    if not any(constraints):
        return None
    banned = [[] if constraint is None else constraint.banned_next() for constraint in constraints]
    matched = [row for row, constraint in enumerate(constraints) if constraint is not None and constraint.matcher]
    if not matched and not any(banned):
        return None
    masks = np.full((len(constraints), num_words), 0xFFFFFFFF, np.uint32)
    if matched:
        masks[matched] = 0
        _fill(masks, [(row, constraints[row]) for row in matched])
    for row, tokens in enumerate(banned):
        for token in tokens:
            masks[row, token // 32] &= ~np.uint32(1 << token % 32)
    return masks


def _fill(masks: np.ndarray, rows: Sequence[tuple[int, TokenConstraint | None]]) -> None:
    from jaxllm.structured import fill_masks

    lines = [(constraint, constraint.matcher, masks[row, :constraint.num_words]) for row, constraint in rows
             if constraint is not None and constraint.matcher is not None]
    try:
        fill_masks([matcher for _, matcher, _ in lines], [line for _, _, line in lines])
    except EngineError:
        # One failed; the others must not suffer for it.
        for constraint, matcher, line in lines:
            try:
                matcher.fill_mask(line)
            except EngineError as error:
                constraint.error = error


def bad_word_tokens(words: Iterable[str], tokenizer: Tokenizer) -> tuple[tuple[int, ...], Words]:
    """(tokens that are a bad word by themselves, the spellings of several tokens).

    A word is spelled by itself, after a space, and as it comes after a line break: tokenizers that put a space before
    every text show only there how they spell a word without one.
    """
    found: set[tuple[int, ...]] = set()
    for word in words:
        bare = word.lstrip() or word
        for before in ("", "\n", "\n\n"):
            start = _encode(tokenizer, before)
            for text in (bare, " " + bare):
                ids = _encode(tokenizer, before + text)
                if ids[:len(start)] == start:
                    found.add(tuple(ids[len(start):]))
    ordered = sorted(found - {()})
    return tuple(ids[0] for ids in ordered if len(ids) == 1), tuple(ids for ids in ordered if len(ids) > 1)


def _encode(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False, parse_special=False) if text else []
