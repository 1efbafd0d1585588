"""Random texts that masks allow, and whether they allow a given one."""

from __future__ import annotations

import functools

import numpy as np

from jaxllm.errors import EngineError

_CLOSING = frozenset(b'"}]')
_FREE_TOKENS = 60


def words(matcher, vocab_size):
    """The matcher's mask, from a row full of rubbish."""
    row = np.full(-(-vocab_size // 32), 0xDEADBEEF, np.uint32)
    matcher.fill_mask(row)
    return row


def unpacked(row):
    """bool[32 * words] from a row, the lowest bit first."""
    return np.unpackbits(row.view(np.uint8), bitorder="little").astype(bool)


def allowed_ids(matcher, vocab_size):
    """The ids of the tokens that may come next."""
    return np.flatnonzero(unpacked(words(matcher, vocab_size)))


def accepts(grammar, data):
    """Whether the bytes are a text of the grammar, for the vocabulary in which id i is the byte i."""
    matcher = grammar.matcher()
    for byte in data.encode() if isinstance(data, str) else data:
        if byte not in allowed_ids(matcher, grammar.vocabulary.vocab_size):
            return False
        matcher.accept(byte)
    return matcher.accepting


def random_walk(grammar, tokenizer, generator, limit=600):
    """Random tokens up to an end of sequence, and their ids without it.

    Those that close something, and are not white space, are preferred, after ``_FREE_TOKENS`` always: so walks end.
    """
    matcher = grammar.matcher()
    closing, solid = _closing_and_solid(tokenizer)
    ends = np.array(tokenizer.eos_token_ids)
    ids = []
    while len(ids) < limit:
        allowed = unpacked(words(matcher, tokenizer.vocab_size))[: tokenizer.vocab_size]
        if not np.array_equal(allowed[ends], np.full(len(ends), matcher.accepting)):
            raise AssertionError(f"end of sequence is {allowed[ends]} where accepting is {matcher.accepting}")
        hurry = len(ids) > _FREE_TOKENS
        allowed[ends] = False
        if matcher.accepting and (not allowed.any() or hurry or generator.random() < 0.2):
            matcher.accept(int(generator.choice(ends)))
            return ids
        for preferred in (solid, closing):
            if (allowed & preferred).any() and (hurry or generator.random() < 0.4):
                allowed &= preferred
        token = int(generator.choice(np.flatnonzero(allowed)))
        matcher.accept(token)
        ids.append(token)
    raise AssertionError(f"no end after {limit} tokens: {tokenizer.decode(ids)!r}")


@functools.cache
def _closing_and_solid(tokenizer):
    contents = [tokenizer.token_bytes(token) for token in range(tokenizer.vocab_size)]
    solid = [bool(content.strip()) for content in contents]
    return np.array([_CLOSING.issuperset(content) for content in contents]), np.array(solid)


def must_raise(error, call, *arguments):
    """The error that the call raises."""
    try:
        call(*arguments)
    except error as raised:
        return raised
    raise AssertionError(f"no {error.__name__}")


def refuses(matcher, token):
    """Whether ``accept`` refuses the token."""
    return isinstance(must_raise(EngineError, matcher.accept, token), EngineError)
