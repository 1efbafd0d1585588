"""Grammars compiled for a tokenizer, and matchers that say which token may come next."""

from __future__ import annotations

import collections
import functools
import os
import re
import threading
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from llguidance import LLExecutor, LLMatcher, LLParserLimits

from jaxllm.errors import EngineError, ParameterError
from jaxllm.structured.depth import on_deep_stack
from jaxllm.structured.gbnf import is_gbnf
from jaxllm.structured.params import StructuredOutputsParams
from jaxllm.structured.problem import GrammarProblemError
from jaxllm.structured.source import grammar_source
from jaxllm.structured.vocabulary import INSIDE, NO_TOKEN, SILENT, GrammarVocabulary
from jaxllm.tokenization import Tokenizer

CACHED_GRAMMARS = 256
"""Compiled grammars that a compiler keeps, those used last."""


class GrammarCompiler:
    """Compiles what ``StructuredOutputsParams`` ask for. Safe to use from several threads.

    vocab_size: tokens that masks have bits for; eos_token_ids: those that may come exactly when the text is complete.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, eos_token_ids: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._eos_token_ids = frozenset(token_id for token_id in eos_token_ids if token_id < vocab_size)
        self._lock = threading.Lock()
        self._vocabulary: GrammarVocabulary | None = None
        self._compiled: collections.OrderedDict[StructuredOutputsParams, Grammar] = collections.OrderedDict()

    def compile(self, params: StructuredOutputsParams) -> Grammar:
        """The grammar; one compiled before, where the same was asked for.

        Raises ``ParameterError`` for what is malformed, cannot be enforced or allows no text.
        """
        with self._lock:
            if (found := self._compiled.get(params)) is not None:
                self._compiled.move_to_end(params)
                return found
            if self._vocabulary is None:
                _check_tokenizer(self._tokenizer, params)
                self._vocabulary = GrammarVocabulary(self._tokenizer, self._vocab_size)
        grammar = Grammar(params, self._vocabulary, self._eos_token_ids)
        with self._lock:
            self._compiled[params] = grammar
            while len(self._compiled) > CACHED_GRAMMARS:
                self._compiled.popitem(last=False)
        return grammar


class Grammar:
    """A compiled grammar, of which every sample has a matcher of its own."""

    def __init__(self, params: StructuredOutputsParams, vocabulary: GrammarVocabulary, eos_token_ids: frozenset[int]
                 ) -> None:
        self.vocabulary = vocabulary
        self.eos_token_ids = eos_token_ids
        self.eos_words = _bits(eos_token_ids, vocabulary.vocab_size)
        self._lock = threading.Lock()
        try:
            source = grammar_source(params)
        except GrammarProblemError as problem:
            raise _refused(params, str(problem)) from None
        except RecursionError:
            raise _refused(params, "it is nested too deeply") from None
        limits = LLParserLimits(verbose_errors=False)
        self._fresh = on_deep_stack(lambda: LLMatcher(vocabulary.ll_tokenizer, source, log_level=0, limits=limits))
        if self._fresh.is_error():
            message = _message(self._fresh)
            if params.grammar is None or is_gbnf(params.grammar):
                # It is a place in what was made of the expression, the schema or the GBNF, which nobody has seen.
                message = re.sub(r"^at \d+\(\d+\): ", "", message)
            raise _refused(params, message)
        try:
            # On the original, so that its copies begin with what this computes.
            GrammarMatcher(self, self._fresh, skip_special_tokens=True).allowed()
        except EngineError as error:
            raise _refused(params, f"it allows no text ({error})") from None

    def matcher(self, *, skip_special_tokens: bool = True) -> GrammarMatcher:
        """A matcher at the start of a text; ``skip_special_tokens`` as the text will be decoded."""
        with self._lock:
            inner = self._fresh.deep_copy()
        return GrammarMatcher(self, inner, skip_special_tokens)


class _Step(NamedTuple):
    """What undoes one accepted token: tokens of the library to take back, and the state before."""

    consumed: int
    opening: int
    ended: bool


_PLAIN_STEP = _Step(1, INSIDE, False)


class GrammarMatcher:
    """How far one text has come in its grammar. Not to be used by two threads at once."""

    def __init__(self, grammar: Grammar, inner: LLMatcher, skip_special_tokens: bool) -> None:
        self._grammar = grammar
        self._inner = inner
        self._hidden = grammar.vocabulary.hidden_ids if skip_special_tokens else frozenset()
        self._opening = grammar.vocabulary.start
        self._ended = False
        self._steps: list[_Step] = []
        self._allowed: np.ndarray | None = None

    def fill_mask(self, row: np.ndarray) -> None:
        """Write the tokens that may come next: bit i of word j of u32[ceil(vocab_size / 32)] is token 32 * j + i.

        Raises ``EngineError`` where no token may, or where the grammar needs more work than a step allows.
        """
        row[:] = self.allowed()

    def allowed(self) -> np.ndarray:
        """The mask that ``fill_mask`` writes, not to be written to."""
        if self._allowed is None:
            if self._ended:
                self._allowed = self._grammar.eos_words
            else:
                words = np.empty(self._grammar.vocabulary.num_words, np.uint32)
                self._inner.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes)
                self._allowed = self._finished(words)
        return self._allowed

    def _finished(self, words: np.ndarray) -> np.ndarray:
        """The mask, from what the library says about its own tokens in this state."""
        # It reports an error by an empty mask.
        if self._inner.is_error():
            raise EngineError(f"the grammar cannot go on: {_message(self._inner)}")
        row = self._grammar.vocabulary.opened(words, self._opening)
        if self.accepting:
            row |= self._grammar.eos_words
        elif not row.any():
            raise EngineError("the grammar has come to a point where no token of the vocabulary continues the text "
                              f"({self._inner.stop_reason()})")
        return row

    def accept(self, token_id: int) -> None:
        """Advance by a token that the mask allows; ``EngineError`` for another one."""
        vocabulary = self._grammar.vocabulary
        if not 0 <= token_id < vocabulary.vocab_size:
            raise EngineError(f"token {token_id} is outside the vocabulary of {vocabulary.vocab_size} tokens")
        if token_id in self._grammar.eos_token_ids and self.accepting:
            self._advance(_Step(0, self._opening, self._ended), self._opening, ended=True)
            return
        if self._ended:
            raise EngineError(f"token {token_id} comes after the end of the text")
        stands_for, after = token_id, INSIDE
        if self._opening != INSIDE:
            opening = vocabulary.openings[self._opening]
            stands_for, after = int(opening.stands_for[token_id]), int(opening.successor[token_id])
            if token_id in self._hidden:
                after = self._opening
        if stands_for == NO_TOKEN or (stands_for != SILENT and not self._inner.consume_token(stands_for)):
            if self._inner.stop_reason() == "InternalError":
                raise EngineError(f"the grammar cannot go on: {_message(self._inner)}")
            raise EngineError(f"token {token_id} does not continue the text as the grammar allows")
        step = _PLAIN_STEP if self._opening == INSIDE else _Step(int(stands_for != SILENT), self._opening, False)
        self._advance(step, after, ended=False)

    def _advance(self, step: _Step, opening: int, *, ended: bool) -> None:
        self._steps.append(step)
        self._opening = opening
        self._ended = ended
        self._allowed = None

    @property
    def accepting(self) -> bool:
        """Whether the text so far is a full sentence of the grammar."""
        return self._ended or self._inner.is_accepting()

    @property
    def complete(self) -> bool:
        """Whether the text so far is a full sentence of the grammar and nothing but end of sequence can follow."""
        return self.accepting and not np.any(self.allowed() & ~self._grammar.eos_words)

    def rollback(self, n: int) -> None:
        """Undo the last ``n`` accepted tokens."""
        if not 0 <= n <= len(self._steps):
            raise EngineError(f"cannot undo {n} tokens of {len(self._steps)} accepted")
        if n == 0:
            return
        undone = self._steps[-n:]
        consumed = sum(step.consumed for step in undone)
        if consumed and not self._inner.rollback(consumed):
            raise EngineError(f"the grammar cannot go back by {n} tokens: {_message(self._inner)}")
        del self._steps[-n:]
        _, self._opening, self._ended = undone[0]
        self._allowed = None


def fill_masks(matchers: Sequence[GrammarMatcher], rows: Sequence[np.ndarray] | np.ndarray) -> None:
    """``fill_mask`` of many matchers, all of one compiler, in parallel.

    Where some fail the rows of all others are written before the first error is raised; ``fill_mask`` raises it again.
    """
    waiting = [matcher for matcher in matchers if matcher._allowed is None and not matcher._ended]
    computed: dict[int, np.ndarray] = {}
    executor = _executor()
    if executor is not None and len(waiting) > 1:
        words = np.empty((len(waiting), waiting[0]._grammar.vocabulary.num_words), np.uint32)
        inner = [(matcher._inner, number) for number, matcher in enumerate(waiting)]
        executor.unsafe_compute_mask_ptr(inner, words.ctypes.data, words[0].nbytes, len(waiting))
        computed = {id(matcher): row for matcher, row in zip(waiting, words, strict=True)}
    first_error: EngineError | None = None
    for matcher, row in zip(matchers, rows, strict=True):
        try:
            if id(matcher) in computed:
                matcher._allowed = matcher._finished(computed[id(matcher)])
            matcher.fill_mask(row)
        except EngineError as error:
            first_error = first_error or error
    if first_error is not None:
        raise first_error


@functools.cache
def _executor() -> LLExecutor | None:
    """Threads for the masks of a step; ``None`` on few cores, where handing over would cost more than it brings."""
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    return LLExecutor(min(cores // 2, 16)) if cores >= 4 else None


def _bits(token_ids: frozenset[int], vocab_size: int) -> np.ndarray:
    words = np.zeros(-(-vocab_size // 32), np.uint32)
    for token_id in token_ids:
        words[token_id // 32] |= np.uint32(1 << token_id % 32)
    return words


def _check_tokenizer(tokenizer: Tokenizer, params: StructuredOutputsParams) -> None:
    rules = tokenizer.pieces.rules
    if rules.separator or tokenizer.cleans_up_spaces or not rules.strip_character.isascii():
        raise _refused(params, "this model's tokenizer joins words by rules that depend on their neighbours, so that "
                       "no mask can say what the text will be; byte-level and SentencePiece tokenizers can be used")


def _refused(params: StructuredOutputsParams, reason: str) -> ParameterError:
    return ParameterError("structured_outputs", {params.kind: getattr(params, params.kind)}, reason)


def _message(matcher: LLMatcher) -> str:
    """The library's error without the excerpt of the grammar below it."""
    return re.split(r"\n +\d+ \||\n<non-verbose/>", matcher.get_error())[0].strip()
