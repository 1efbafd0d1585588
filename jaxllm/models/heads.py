"""What a checkpoint's architecture says of the model's head: a language model's, one that scores, or none."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any, Literal

Head = Literal["language model", "score", "none"]

SCORE = "score.weight"
"""The matrix of a head that scores, ``[labels, width]``."""
_OTHER_HEADS = re.compile(r"(.+?)(ForSequenceClassification|Model)")


def split_head(hf_config: Mapping[str, Any], known: Collection[str]) -> tuple[Mapping[str, Any], Head]:
    """The config of the same decoder with a language model's head, and the head that the checkpoint has in its place.

    "LlamaForSequenceClassification" and "LlamaModel" are "LlamaForCausalLM" with another head, or none. known: the
    architectures that are language models, whatever their names.
    """
    architectures = hf_config.get("architectures")
    if isinstance(architectures, list) and len(architectures) == 1 and isinstance(architectures[0], str):
        found = _OTHER_HEADS.fullmatch(architectures[0])
        if found is not None and architectures[0] not in known and f"{found[1]}ForCausalLM" in known:
            # Without a matrix of its own the head is the embedding, which such checkpoints have.
            changed = {"architectures": [f"{found[1]}ForCausalLM"], "tie_word_embeddings": True}
            return {**hf_config, **changed}, "none" if found[2] == "Model" else "score"
    return hf_config, "language model"
