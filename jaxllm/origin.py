"""``Origin``: where the model of an ``LLM`` came from, for writing it back."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from jaxllm.loading import OpenedModel, open_source
from jaxllm.tokenization import Tokenizer
from jaxllm.weights import ModelSource
from jaxllm.weights.live import LiveParams


@dataclasses.dataclass(frozen=True)
class Origin:
    """Where a model came from, without what it holds.

    source: opens it again. opened: what is known of it. tokenizer: the one in use, where it is not the source's own.
    """

    source: Callable[[], ModelSource]
    opened: OpenedModel
    tokenizer: Tokenizer | None

    @classmethod
    def of(cls, source: ModelSource, opened: OpenedModel, tokenizer: Tokenizer | None, *, has_weights: bool) -> Origin:
        """tokenizer: the one in use, if it was chosen; that of a source in memory always was."""
        if isinstance(source, LiveParams):
            # Not the arrays, which may be replaced.
            bare = LiveParams(source.decoder or source.config, {}, source.generation_config)
            return cls(lambda: bare, opened, tokenizer)
        path = source.path
        return cls(lambda: open_source(path, load_format="auto" if has_weights else "dummy"), opened, tokenizer)
