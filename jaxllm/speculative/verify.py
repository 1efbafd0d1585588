"""Which of a step's sampled tokens stand: those whose drafts the sampler chose itself.

The token of a position is sampled from the logits that follow the tokens before it, with that position's own noise.
Where those were drafts, and each is the token that the sampler has chosen for its place, it is the very token, to the
bit, that it would have been without; else it is not used. So nothing depends on what was guessed.
"""

from __future__ import annotations

from collections.abc import Sequence


def num_standing(sampled: Sequence[int], drafts: Sequence[int], no_token: int) -> int:
    """How many of a sequence's sampled tokens stand, from the first on, which always does.

    sampled: one more than ``drafts``: the token after the last certain one, then one after each draft. One that could
    not be sampled (``no_token``) after a draft is left for the next step.
    """
    standing = 1
    while standing < len(sampled) and sampled[standing - 1] == drafts[standing - 1] and sampled[standing] != no_token:
        standing += 1
    return standing
