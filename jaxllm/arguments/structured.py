"""vLLM's fields of ``StructuredOutputsParams``, and those of ``GuidedDecodingParams``, its older name."""

from __future__ import annotations

from jaxllm.arguments.table import ArgumentTable, honoured, refused

STRUCTURED_FIELDS = ArgumentTable("StructuredOutputsParams", [
    *honoured(
        json=(None, "also a pydantic model; a keyword that cannot be enforced is refused"),
        regex=(None, ""),
        choice=(None, ""),
        grammar=(None, ""),
        json_object=(None, ""),
        disable_any_whitespace=(False, ""),
        disable_additional_properties=(False, ""),
        whitespace_pattern=(None, ""),
        structural_tag=(None, ""),
    ),
    *refused("jaxllm has one grammar library; leave it out", None, "auto", backend=None, disable_fallback=False),
])
