"""``RequestIndex``: which requests a file holds, in few bytes for each."""

from __future__ import annotations

import array
import hashlib
import os

import numpy as np

from jaxllm.batch.lines import own_id, read_lines


class RequestIndex:
    """The requests of a file by their ids, from one pass over it; some 40 bytes for each, whatever their length.

    A request is identified by its ``custom_id``, or without one by its line number. Of several lines with one
    ``custom_id`` the first has it; the others count as having none.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = path
        numbers, digests, high, low = (array.array("Q") for _ in range(4))
        for line in read_lines(path):
            numbers.append(line.number)
            digests.append(int(line.digest, 16))
            for part, half in zip((high, low), _halves(own_id(line), line.number), strict=True):
                part.append(half)
        self._numbers, self._digests = numbers, digests
        self._sort(np.array(high, np.uint64), np.array(low, np.uint64))

    def _sort(self, high: np.ndarray, low: np.ndarray) -> None:
        order = np.lexsort((low, high))
        same = (high[order][1:] == high[order][:-1]) & (low[order][1:] == low[order][:-1])
        if same.any():
            for later in order[1:][same].tolist():
                high[later], low[later] = _halves(None, self._numbers[later])
            order = np.lexsort((low, high))
        self._order, self._high, self._low = order, high[order], low[order]

    def __len__(self) -> int:
        return len(self._numbers)

    def number(self, place: int) -> int:
        """The line number of the request at a place, counted from 0 without blank lines."""
        return self._numbers[place]

    def digest(self, place: int) -> str:
        """The digest of the line at a place."""
        return f"{self._digests[place]:016x}"

    def find(self, custom_id: str | None, number: int) -> int | None:
        """The place of the request with this id, or without one of this line; ``None`` if there is none."""
        high, low = (np.uint64(half) for half in _halves(custom_id, number))
        at = int(np.searchsorted(self._high, high))
        while at < len(self._high) and self._high[at] == high:
            if self._low[at] == low:
                return int(self._order[at])
            at += 1
        return None


def _halves(custom_id: str | None, number: int) -> tuple[int, int]:
    """128 bits that stand for an id, or for a line without one."""
    name = b"line %d" % number if custom_id is None else b"id " + custom_id.encode("utf-8", "surrogatepass")
    whole = hashlib.blake2b(name, digest_size=16).digest()
    return int.from_bytes(whole[:8]), int.from_bytes(whole[8:])
