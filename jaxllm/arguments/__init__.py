"""What becomes of vLLM's arguments: tables that both the errors and docs/coming-from-vllm.md are made from.

``python -m jaxllm.arguments --write docs/coming-from-vllm.md`` renews the tables of that page.
"""

from __future__ import annotations

from jaxllm.arguments.beam_search import BEAM_SEARCH_ARGUMENTS, BEAM_SEARCH_FIELDS
from jaxllm.arguments.engine import CHAT_ARGUMENTS, ENGINE_ARGUMENTS, GENERATE_ARGUMENTS, PROMPT_KEYS
from jaxllm.arguments.sampling import SAMPLING_FIELDS
from jaxllm.arguments.structured import STRUCTURED_FIELDS
from jaxllm.arguments.table import Argument, ArgumentTable, understands

__all__ = [
    "BEAM_SEARCH_ARGUMENTS", "BEAM_SEARCH_FIELDS", "CHAT_ARGUMENTS", "ENGINE_ARGUMENTS", "GENERATE_ARGUMENTS",
    "PROMPT_KEYS", "SAMPLING_FIELDS", "STRUCTURED_FIELDS", "Argument", "ArgumentTable", "understands",
]
