"""vLLM's methods and properties of ``LLM`` that jaxllm does not have, and what to use instead."""

from __future__ import annotations

from typing import Any

_ENGINE_ONLY = "use llm.embed, or llm.reward for the numbers of a classification head"
_IN_PROCESS = "the engine is in your process: use llm.engine, llm.engine.params or llm.update_params"
MISSING = {
    **dict.fromkeys(("encode", "classify"), _ENGINE_ONLY),
    **dict.fromkeys(("collective_rpc", "apply_model", "llm_engine"), _IN_PROCESS),
    **dict.fromkeys(("init_weight_transfer_engine", "update_weights"), "use llm.update_params(params)"),
    **dict.fromkeys(("start_profile", "stop_profile"), "use jax.profiler.start_trace and jax.profiler.stop_trace"),
    **dict.fromkeys(("enqueue", "enqueue_chat", "wait_for_completion"),
                    "use llm.engine.add_request, then llm.engine.step while llm.engine.has_unfinished()"),
    "get_metrics": "use llm.stats()",
    "preprocess_chat": "use llm.chat_prompt(messages)",
    "set_tokenizer": "give LLM(tokenizer=...)",
    "reset_mm_cache": "jaxllm runs models of text only",
    "get_world_size": "jaxllm runs on one device today",
}


def missing_attribute(owner: Any, name: str) -> AttributeError:
    """The error for an attribute that is not there, with what to use instead where vLLM has it."""
    message = f"{type(owner).__name__!r} object has no attribute {name!r}"
    return AttributeError(f"{message}: {MISSING[name]}" if name in MISSING else message, name=name, obj=owner)
