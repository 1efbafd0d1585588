"""BOS and EOS around a text."""

from __future__ import annotations

from tokenizers import processors


def boundary_tokens(bos_id: int | None, eos_id: int | None) -> processors.PostProcessor | None:
    """The post-processor that puts BOS before and EOS behind a text, those that are given."""
    # The names are only those of the template's own table; the ids are what comes out.
    table = [(name, token_id) for name, token_id in (("BOS", bos_id), ("EOS", eos_id)) if token_id is not None]
    template = [*(["BOS"] if bos_id is not None else []), "$A", *(["EOS"] if eos_id is not None else [])]
    return processors.TemplateProcessing(single=template, special_tokens=table) if table else None
