"""SentencePiece's score-driven BPE as ranked merges, which the ``tokenizers`` library runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def merges_from_scores(
    ids: Mapping[str, int], scores: Sequence[float], reserved: Sequence[int] = ()
) -> list[tuple[str, str]]:
    """The merges that join neighbours in SentencePiece's order: first the pair whose joined token scores highest.

    Every division of a token into two tokens is a merge, ranked by the token's score. Tokens in ``reserved`` (control,
    unknown, byte) are never the result of one.
    """
    skipped = set(reserved)
    merges: list[tuple[str, str]] = []
    # The sort is stable: of equal scores the lower id comes first, and of one token's divisions the shortest left.
    for token in sorted(ids, key=lambda token: -scores[ids[token]]):
        if ids[token] in skipped:
            continue
        merges.extend(
            (left, right)
            for cut in range(1, len(token))
            if (left := token[:cut]) in ids and (right := token[cut:]) in ids
        )
    return merges
