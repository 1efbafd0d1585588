"""``clean_up_tokenization_spaces``: removing the spaces that word-splitting tokenizers leave before punctuation."""

from __future__ import annotations

import re

_REPLACEMENTS = (
    (" .", "."),
    (" ?", "?"),
    (" !", "!"),
    (" ,", ","),
    (" ' ", "'"),
    (" n't", "n't"),
    (" 'm", "'m"),
    (" 's", "'s"),
    (" 've", "'ve"),
    (" 're", "'re"),
)

# Every pattern starts with a space and has at most 3 other characters, and only spaces are ever removed: so no match
# can reach across 4 characters that are not spaces.
_BARRIER = re.compile(r"[^ ]{4}")


def clean_up_spaces(text: str) -> str:
    """The text without the spaces before punctuation and English contractions (transformers' rules, in its order)."""
    for pattern, replacement in _REPLACEMENTS:
        text = text.replace(pattern, replacement)
    return text


class SpaceCleaner:
    """``clean_up_spaces`` over a stream: the concatenated results equal that of the whole text."""

    def __init__(self) -> None:
        self._held = ""

    def push(self, text: str) -> str:
        """The cleaned text that nothing later can change."""
        window = self._held + text
        # A barrier ending before this point was looked for when its text arrived.
        start = max(0, len(self._held) - 3)
        cut = max((match.end() for match in _BARRIER.finditer(window, start)), default=0)
        self._held = window[cut:]
        return clean_up_spaces(window[:cut])

    def finish(self) -> str:
        """The rest."""
        rest, self._held = self._held, ""
        return clean_up_spaces(rest)
