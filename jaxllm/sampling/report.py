"""Log-probabilities in the form that users see: mappings from token id to ``Logprob``, one for each position."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from jaxllm.outputs import Logprob

Decode = Callable[[int], str | None]
"""The text of one id."""


def to_logprobs(
    token_id: int,
    logprob: float,
    rank: int,
    top_ids: Sequence[int] | np.ndarray,
    top_logprobs: Sequence[float] | np.ndarray,
    k: int,
    decode: Decode = lambda token_id: None,
    raw_logprob: float | None = None,
    raw_top_logprobs: Sequence[float] | np.ndarray | None = None,
) -> dict[int, Logprob]:
    """The chosen token first, then the ``k`` most likely without it twice; those that cannot occur are left out.

    raw_logprob, raw_top_logprobs: of the same tokens, where the others are processed ones.
    """
    raw = None if raw_logprob is None else float(raw_logprob)
    result = {int(token_id): Logprob(float(logprob), int(rank), decode(int(token_id)), raw)}
    top_rank = 1
    for index in range(min(k, len(top_ids))):
        if top_logprobs[index] == -np.inf:
            break
        if index and top_logprobs[index] < top_logprobs[index - 1]:
            top_rank = index + 1
        top_id = int(top_ids[index])
        if top_id not in result:
            raw = None if raw_top_logprobs is None else float(raw_top_logprobs[index])
            result[top_id] = Logprob(float(top_logprobs[index]), top_rank, decode(top_id), raw)
    return result


class ShortLogprobs(Mapping[int, Logprob]):
    """What ``to_logprobs`` makes of the same arguments, made when first looked at: few are, of the many of a batch.

    Copied or pickled, it is a plain dictionary.
    """

    __slots__ = ("_entries", "_recipe")

    def __init__(self, token_id: int, logprob: float, rank: int, top_ids: np.ndarray, top_logprobs: np.ndarray, k: int,
                 decode: Decode = lambda token_id: None, raw_logprob: float | None = None,
                 raw_top_logprobs: np.ndarray | None = None) -> None:
        raw = None if raw_top_logprobs is None else raw_top_logprobs[:k].copy()
        # Copies, so that one request's line does not keep those of the others in memory.
        self._recipe: tuple[Any, ...] = (
            token_id, logprob, rank, top_ids[:k].copy(), top_logprobs[:k].copy(), k, decode, raw_logprob, raw)
        self._entries: dict[int, Logprob] | None = None

    def _made(self) -> dict[int, Logprob]:
        entries = self._entries
        if entries is None:  # two threads may both get here; they make the same
            entries = self._entries = to_logprobs(*self._recipe)
        return entries

    def __getitem__(self, token_id: int) -> Logprob:
        return self._made()[token_id]

    def __iter__(self) -> Iterator[int]:
        return iter(self._made())

    def __len__(self) -> int:
        return len(self._made())

    def __repr__(self) -> str:
        return repr(self._made())

    def __reduce__(self) -> tuple[type[dict[int, Logprob]], tuple[dict[int, Logprob]]]:
        return dict, (dict(self._made()),)


class VocabularyLogprobs(Mapping[int, Logprob]):
    """Every token's ``Logprob`` at one position, made when looked at: the chosen token first, then by likelihood.

    logprobs: f32[V], -inf for tokens that cannot occur, which are not in the mapping. raw: log-softmax of the model's
    logits, where ``logprobs`` are processed ones.
    """

    def __init__(self, token_id: int, logprobs: np.ndarray, raw: np.ndarray | None = None,
                 decode: Decode = lambda token_id: None) -> None:
        self.token_id = token_id
        self.logprobs = logprobs
        self.raw = raw
        self.decode = decode

    def __getitem__(self, token_id: int) -> Logprob:
        if not self._holds(token_id):
            raise KeyError(token_id)
        value = self.logprobs[token_id]
        raw = None if self.raw is None else float(self.raw[token_id])
        return Logprob(float(value), 1 + int(np.count_nonzero(self.logprobs > value)), self.decode(int(token_id)), raw)

    def __iter__(self) -> Iterator[int]:
        yield self.token_id
        for token_id in self.most_likely:
            if token_id != self.token_id:
                yield int(token_id)

    def __len__(self) -> int:
        return len(self.most_likely) + (self.logprobs[self.token_id] == -np.inf)

    def __contains__(self, token_id: object) -> bool:
        return isinstance(token_id, int | np.integer) and self._holds(int(token_id))

    def __eq__(self, other: object) -> bool:
        if isinstance(other, VocabularyLogprobs):
            return (self.token_id == other.token_id and np.array_equal(self.logprobs, other.logprobs)
                    and (self.raw is None) == (other.raw is None)
                    and (self.raw is None or other.raw is None or np.array_equal(self.raw, other.raw)))
        return isinstance(other, Mapping) and dict(self) == other

    __hash__ = None  # type: ignore[assignment]

    def _holds(self, token_id: int) -> bool:
        return token_id == self.token_id or (
            0 <= token_id < len(self.logprobs) and self.logprobs[token_id] > -np.inf)

    @functools.cached_property
    def most_likely(self) -> np.ndarray:
        """The ids that can occur, most likely first, ties by id."""
        order = np.argsort(-self.logprobs, kind="stable")
        return order[:np.count_nonzero(self.logprobs > -np.inf)]


def from_vocabulary(all_of_them: VocabularyLogprobs, k: int | None, token_ids: Iterable[int] = ()
                    ) -> Mapping[int, Logprob]:
    """All of them for k = -1; else the chosen token, the ``k`` most likely (``None`` for none) and ``token_ids``."""
    if k == -1:
        return all_of_them
    wanted = [all_of_them.token_id, *all_of_them.most_likely[:k or 0].tolist(), *token_ids]
    return {token_id: all_of_them[token_id] for token_id in wanted if token_id in all_of_them}
