"""How often a sequence's guesses come true."""

from __future__ import annotations

_PRIOR = (0.35, 0.6, 0.8, 0.9)
"""Of matches of 1 to 3, 4 to 7, 8 to 15, and 16 or more tokens: long ones are copies, which go on."""
_PRIOR_WEIGHT = 2.0
_DECAY = 0.9
_RECENT = 0.125


class Acceptance:
    """Learns from every token of a sequence, whether or not its guess was computed.

    Guesses after matches of similar length are counted together, older ones for less. share: of the newest tokens,
    those that were guessed: an average that halves every 5 tokens.
    """

    __slots__ = ("_right", "_seen", "share")

    def __init__(self) -> None:
        self._right = [_PRIOR_WEIGHT * prior for prior in _PRIOR]
        self._seen = [_PRIOR_WEIGHT] * len(_PRIOR)
        self.share = 0.0

    def record(self, matched: int, *, right: bool) -> None:
        """A guess after a match of so many tokens was right or wrong; 0: there was none."""
        self.share += _RECENT * (right - self.share)
        if matched:
            level = _level(matched)
            self._right[level] = _DECAY * self._right[level] + right
            self._seen[level] = _DECAY * self._seen[level] + 1.0

    def gains(self, matched: int, count: int) -> list[float]:
        """The chance that a step takes each of the next ``count`` guesses: that it and all before it are right."""
        found, chance = [], 1.0
        for ahead in range(count):
            level = _level(matched + ahead)
            chance *= self._right[level] / self._seen[level]
            found.append(chance)
        return found


def _level(matched: int) -> int:
    return min(max(matched.bit_length() - 2, 0), len(_PRIOR) - 1)
