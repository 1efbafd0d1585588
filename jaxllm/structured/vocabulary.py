"""A tokenizer's vocabulary as the grammar library sees it: bytes, wherever in the text a token stands."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np
from jaxtyping import Int8, Int32
from llguidance import LLTokenizer, TokenizerWrapper

from jaxllm.errors import EngineError
from jaxllm.tokenization import Tokenizer

NO_TOKEN = -1
"""Stands for a token that cannot be chosen here."""
SILENT = -2
"""Stands for a token that adds nothing to the text here."""
INSIDE = -1
"""The state of a text that has begun: every token adds its own bytes."""
# The library takes a first byte of 0xFF, which occurs in no UTF-8 text, for the mark of a special token.
_RESERVED_BYTE = b"\xff"
# The library knows by heart which tokens match these. Where a grammar allows all of one it need not look at each. Its
# own are for JSON; these are for expressions such as [a-z]+ and \w+. Longer ones would not fit bounded lengths.
_WORDS = ("[a-z]{1,10}", "[a-zA-Z]{1,10}", "[a-z ]{1,10}", "[a-zA-Z ]{1,10}")


@dataclasses.dataclass(frozen=True)
class Opening:
    """How tokens read in one state of a text that has not begun yet.

    stands_for: for each token the one whose bytes it adds here, or ``NO_TOKEN`` or ``SILENT``.
    successor: for each token the state that it leads to: the number of an opening, or ``INSIDE``.
    """

    stands_for: Int32[np.ndarray, " V"]
    successor: Int8[np.ndarray, " V"]


class GrammarVocabulary:
    """The tokens of a tokenizer, prepared for matching.

    Some tokenizers drop a space at the start of a text (SentencePiece). A token then adds other bytes when it comes
    first, and what has to match is the text without that space: ``openings`` say which token each one stands for until
    the text has begun. Bytes that no other token has get a token of their own, behind the vocabulary.

    vocab_size: V, the tokens that masks have bits for; special_ids: those that match only where a grammar names them;
    hidden_ids: those of them that ``skip_special_tokens`` leaves out of the text.
    num_words: 32-bit words of the library's masks, which cover also the tokens behind the vocabulary.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        self.vocab_size = vocab_size
        added = tokenizer.backend.get_added_tokens_decoder()
        self.hidden_ids = tokenizer.special_token_ids
        self.special_ids = self.hidden_ids | {token_id for token_id, token in added.items() if token.special}
        contents = [b"" if token_id in tokenizer.unused_token_ids else tokenizer.token_bytes(token_id)
                    for token_id in range(vocab_size)]
        # The library's own end of text; which of the model's tokens end one is the matcher's business.
        end = len(contents)
        contents.append(b"end of text")
        self.openings: list[Opening] = []
        if changes_at_the_start(tokenizer):
            self.openings = list(_openings(tokenizer, contents, self.special_ids))
        special = [*(token_id for token_id in self.special_ids if token_id < vocab_size), end]
        wrapper = TokenizerWrapper(_Contents(contents, special, end))
        self.ll_tokenizer = LLTokenizer(wrapper, eos_token=end, slices=[*_WORDS, *LLTokenizer.general_slices()])
        self.num_words = -(-len(contents) // 32)
        self._last_word = np.uint32((1 << (vocab_size - 1) % 32 + 1) - 1)

    @property
    def start(self) -> int:
        """The state of an empty text."""
        return 0 if self.openings else INSIDE

    def opened(self, words: np.ndarray, state: int) -> np.ndarray:
        """The bits of the V tokens, in a state, from the library's mask."""
        if state == INSIDE:
            row = words[: -(-self.vocab_size // 32)].copy()
            row[-1] &= self._last_word
            return row
        stands_for = self.openings[state].stands_for
        allowed = np.unpackbits(words.view(np.uint8), bitorder="little")
        allowed[self.vocab_size] = 0  # the library's end of text
        # Where no text can come, none should be begun.
        silent = (stands_for == SILENT) & bool(allowed.any())
        return pack_bits((allowed[stands_for].astype(bool) & (stands_for >= 0)) | silent)


def pack_bits(allowed: np.ndarray) -> np.ndarray:
    """u32[ceil(V / 32)] from bool[V], the lowest bit first."""
    padded = np.zeros(-(-len(allowed) // 32) * 32, bool)
    padded[: len(allowed)] = allowed
    return np.packbits(padded, bitorder="little").view(np.uint32)


def changes_at_the_start(tokenizer: Tokenizer) -> bool:
    """Whether a token may add other bytes at the start of a text than inside it."""
    rules = tokenizer.pieces.rules
    return bool(rules.drop_in_first or rules.strip_count)


@dataclasses.dataclass
class _Contents:
    """What ``TokenizerWrapper`` reads. The library never has to tokenize, as nothing is forced on the model."""

    tokens: list[bytes]
    special_token_ids: list[int]
    eos_token_id: int
    bos_token_id: int | None = None

    def __post_init__(self) -> None:
        self.tokens = [b"" if token.startswith(_RESERVED_BYTE) else token for token in self.tokens]

    def __call__(self, text: str | bytes) -> list[int]:
        raise EngineError(f"the grammar library asked for the tokens of {text!r}, which no mask needs")


def _openings(tokenizer: Tokenizer, contents: list[bytes], special_ids: frozenset[int]) -> Iterator[Opening]:
    """One for each state in which a text that has not begun can be; appends to ``contents`` the bytes that it lacks."""
    pieces, rules = tokenizer.pieces, tokenizer.pieces.rules
    strip = rules.strip_character.encode()
    vocab_size = len(contents) - 1
    token_of = {content: token_id for token_id, content in enumerate(contents[:-1])
                if content and token_id not in special_ids}
    # A state: whether a token has come, and how many characters may still be stripped.
    states = [(False, rules.strip_count)]
    for started, strip_left in states:
        stands_for = np.full(vocab_size, NO_TOKEN, np.int32)
        successor = np.full(vocab_size, INSIDE, np.int8)
        for token_id in range(vocab_size):
            if token_id in special_ids:
                stands_for[token_id] = token_id
                continue
            if not contents[token_id]:
                continue
            piece = (pieces.inner(token_id) if started else pieces.first(token_id)) or b""
            removed = min(len(piece) - len(piece.lstrip(strip)), strip_left) if strip_left else 0
            text = piece[removed:]
            if text and text not in token_of:
                token_of[text] = len(contents)
                contents.append(text)
            stands_for[token_id] = token_of[text] if text else SILENT
            after = (True, 0 if text else strip_left - removed)
            if after != (True, 0):
                if after not in states:
                    states.append(after)
                successor[token_id] = states.index(after)
        yield Opening(stands_for, successor)
