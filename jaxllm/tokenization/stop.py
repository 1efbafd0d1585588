"""Stop strings over a stream of text."""

from __future__ import annotations

import copy
from collections.abc import Sequence


class _Matcher:
    """How long a prefix of one pattern the text now ends with (Knuth, Morris and Pratt 1977)."""

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.matched = 0
        self._fallback = [0] * (len(pattern) + 1)
        length = 0
        for end in range(2, len(pattern) + 1):
            while length and pattern[length] != pattern[end - 1]:
                length = self._fallback[length]
            length += pattern[length] == pattern[end - 1]
            self._fallback[end] = length

    def step(self, character: str) -> bool:
        """Take one character; whether it completes the pattern."""
        while self.matched and self.pattern[self.matched] != character:
            self.matched = self._fallback[self.matched]
        self.matched += self.pattern[self.matched] == character
        return self.matched == len(self.pattern)

    def forget(self) -> None:
        """After a completed match, keep only what can begin another."""
        self.matched = self._fallback[self.matched]


class StopChecker:
    """Finds the stop string that completes first, and says how much of the text may be shown before that.

    Of stop strings that complete at the same character the one that began first wins. The result depends on the text
    alone, not on how it is divided into calls of ``feed``. Cost per character is constant.

    stop_string: the stop string found, ``None`` before that.
    """

    def __init__(self, stop: Sequence[str], *, include_stop_str_in_output: bool = False) -> None:
        self.stop_string: str | None = None
        self._matchers = [_Matcher(pattern) for pattern in stop]
        self._include = include_stop_str_in_output
        self._held = ""

    def copy(self) -> StopChecker:
        """One that goes on from here on its own."""
        twin = copy.copy(self)
        twin._matchers = [copy.copy(matcher) for matcher in self._matchers]
        return twin

    def feed(self, text: str, *, armed: bool = True) -> str:
        """Take the next text; the text that may be shown now: all but what could turn out to begin a stop string.

        With ``armed=False`` stop strings that complete within ``text`` are ignored (``min_tokens``); those that
        complete later count, even when they began before. Once ``stop_string`` is set the text has ended: the
        concatenated results are the output, cut before the stop string (after it with
        ``include_stop_str_in_output``), and further text is dropped.
        """
        if self.stop_string is not None or not self._matchers:
            return text if self.stop_string is None else ""
        window = self._held + text
        for index, character in enumerate(text, start=len(self._held) + 1):
            completed = [matcher for matcher in self._matchers if matcher.step(character)]
            if not completed:
                continue
            if armed:
                self.stop_string = max((matcher.pattern for matcher in completed), key=len)
                self._held = ""
                return window[: index if self._include else index - len(self.stop_string)]
            for matcher in completed:
                matcher.forget()
        held = 0 if self._include else max(matcher.matched for matcher in self._matchers)
        shown = len(window) - held
        self._held = window[shown:]
        return window[:shown]

    def finish(self) -> str:
        """The text held back, when the output ends without a stop string."""
        rest, self._held = self._held, ""
        return rest
