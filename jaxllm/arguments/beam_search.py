"""vLLM's arguments of ``LLM.beam_search`` and its fields of ``BeamSearchParams``."""

from __future__ import annotations

from jaxllm.arguments.engine import GENERATE_ARGUMENTS
from jaxllm.arguments.table import REQUIRED, ArgumentTable, honoured, refused

BEAM_SEARCH_ARGUMENTS = ArgumentTable("beam_search", [
    *honoured(
        prompts=(REQUIRED, ""),
        params=(REQUIRED, "one for all, or one for each"),
        use_tqdm=(False, "as in `generate`"),
    ),
    GENERATE_ARGUMENTS["lora_request"],
    *refused("the beams of all prompts run in one batch, as many at once as LLM(max_num_seqs=...) says; leave it out",
             concurrency_limit=None),
], own=("raise_on_error",))

BEAM_SEARCH_FIELDS = ArgumentTable("BeamSearchParams", [
    *honoured(
        beam_width=(REQUIRED, ""),
        max_tokens=(REQUIRED, ""),
        ignore_eos=(False, ""),
        temperature=(0.0, "other values are refused"),
        length_penalty=(1.0, "vLLM counts the prompt into the length, and not the end of sequence"),
        include_stop_str_in_output=(False, ""),
    ),
    *refused("use LLM.generate, which takes SamplingParams.structured_outputs", structured_outputs=None),
], own=("early_stopping", "stop", "stop_token_ids", "num_return_sequences"))
