"""Small models on parameters in memory, and what they answer."""

from __future__ import annotations

import contextlib
import functools

import jax
import jax.numpy as jnp
from tiny_folder import CONFIG

from jaxllm import LLM, SamplingParams
from jaxllm.models.model import build_model
from jaxllm.models.registry import family_of

SIZES = {"max_num_seqs": 8, "max_num_batched_tokens": 32, "max_model_len": 96, "block_size": 4, "kv_cache_bytes": "1M"}
GREEDY = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True, logprobs=1, prompt_logprobs=0)
PLAIN = GREEDY.replace(prompt_logprobs=None)
PROMPTS = [{"prompt_token_ids": ids} for ids in ([1, 2, 3, 4, 5, 6, 7, 8, 9], [200, 100, 50, 25, 12])]


def decoder_config(**changes):
    return family_of({**CONFIG, **changes}).decoder_config({**CONFIG, **changes})


def made(seed=0, dtype="float32", **changes):
    """A config, and random parameters in its own layout."""
    config = decoder_config(**changes)
    return config, build_model(config, jnp.dtype(dtype)).init(seed, scale=0.3)


def pointers(tree):
    return {leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(tree) if leaf.ndim}


def answers(llm, params=GREEDY):
    outputs = llm.generate(PROMPTS, params, use_tqdm=False)
    assert [output.error for output in outputs] == [None] * len(PROMPTS)
    return outputs


def numbers(outputs):
    """Token ids, and the log-probabilities of prompts and outputs."""
    return ([output.outputs[0].token_ids for output in outputs],
            [entry.logprob for output in outputs for line in (*output.prompt_logprobs[1:], *output.outputs[0].logprobs)
             for entry in line.values()])


@contextlib.contextmanager
def counted_compilations():
    """How often JAX traces, lowers or compiles anything within."""
    events = []

    def listener(name, *_, **__):
        if name.startswith("/jax/core/compile"):
            events.append(name)

    jax.monitoring.register_event_duration_secs_listener(listener)
    try:
        yield events
    finally:
        jax.monitoring.unregister_event_duration_listener(listener)


@functools.cache
def reference():
    """What the first of the random parameters answer, in their own layout."""
    config, own = made()
    return answers(LLM.from_params(config, own, **SIZES))
