"""What ``test_sampler.py`` asks of a process with eight devices: the sampler over them against one device, line by line
of JSON."""

from __future__ import annotations

import json
import re
import sys

import jax
import jax.numpy as jnp
import numpy as np
from sampling.oracle import build_rows

from jaxllm.models.shard import Shard
from jaxllm.parallel import device_mesh, tensor_mesh
from jaxllm.sampling import (
    Variant,
    init_state,
    mask_words,
    sample,
    sample_over_devices,
    set_slot,
    slot_row,
    token_logprobs,
    token_logprobs_over_devices,
)
from jaxllm.sampling_params import SamplingParams

VOCAB = 1003  # of which the devices have 251 each, and the last one a column beyond
SIZE = 4
PROMPT, OUTPUT = [1, 250, 251, 777, 1002], [3, 3, 250, 1001]
FILTERS = [
    {"top_k": 1}, {"top_k": 20}, {"top_k": 64, "top_p": 0.7}, {"top_k": 65}, {"top_k": 400, "min_p": 0.001},
    {"top_k": 5000}, {"top_p": 0.5}, {"top_p": 1e-6}, {"top_p": 0.95, "min_p": 0.01}, {"min_p": 0.2},
    {"top_k": 40, "top_p": 0.9, "min_p": 0.02}, {},
]
STATE = [
    {"logit_bias": {7: 4.0, 900: 9.0}}, {"repetition_penalty": 1.3},
    {"presence_penalty": 1.0, "frequency_penalty": 0.5},
    {"allowed_token_ids": [2, 250, 251, 252, 753, 1002]}, {"banned_token_ids": [3, 250, 1002], "top_k": 10},
    {"min_tokens": 9, "top_p": 0.8},
]


def wanted(extra=None):
    """Every filter at two temperatures, then what needs the state; ``extra`` on all."""
    return [SamplingParams(**{"temperature": temperature, "max_tokens": 16, **options, **(extra or {})})
            for temperature in (0.7, 1.6) for options in FILTERS] + [
                SamplingParams(**{"temperature": temperature, "max_tokens": 16, **options, **(extra or {})})
                for temperature in (0.0, 1.0) for options in STATE]


def logits_of(rows, *, ties):
    """Random ones; with ``ties`` of eight values only, so that every limit is among equals."""
    values = np.random.default_rng(rows).normal(0, 3, (rows, VOCAB)).astype(np.float32)
    return np.clip(np.round(values / 2), -4, 3).astype(np.float32) if ties else values


def over_devices(function, *whole):
    """``function(logits of the device, *whole)`` under one program, compiled; and what it gives of logits."""
    mesh = tensor_mesh(device_mesh(tensor=SIZE))
    compiled = jax.jit(jax.shard_map(function, mesh=mesh, in_specs=(jax.P(None, "tensor"), *[jax.P()] * len(whole)),
                                     out_specs=jax.P(), check_vma=False))
    width = -(-VOCAB // SIZE)
    rows = jax.tree.leaves(whole)[0].shape[0]
    like = jax.ShapeDtypeStruct((rows, width * SIZE), jnp.float32,
                                sharding=jax.NamedSharding(mesh, jax.P(None, "tensor")))
    whole = jax.tree.map(lambda leaf: jax.device_put(leaf, jax.NamedSharding(mesh, jax.P())), whole)
    executable = compiled.lower(like, *whole).compile()

    def run(logits):
        padded = np.pad(logits, ((0, 0), (0, width * SIZE - VOCAB)), constant_values=-np.inf)
        return jax.device_get(executable(jax.device_put(padded, like.sharding), *whole))

    return executable.as_text(), run


def sampler(variant, *, processed=False, params=None):
    """Tokens, ranks and lists of rows that ask for everything, over the devices and on one."""
    params = wanted({"logprobs": 5}) if params is None else params
    table_rows = build_rows(params, position=len(PROMPT) + len(OUTPUT), prompt_length=len(PROMPT), processed=processed)
    state = init_state(len(params), VOCAB)
    for slot, each in enumerate(params):
        state = set_slot(state, jnp.int32(slot), slot_row(each, PROMPT, OUTPUT, [3, 251], VOCAB))
    words = np.random.default_rng(5).integers(0, 2**32, (len(params), mask_words(VOCAB)), np.uint32)
    mask = [words] if variant == Variant.MASKED else []
    shard = Shard("tensor", SIZE)
    text, split = over_devices(
        lambda logits, rows, state, *mask: sample_over_devices(
            logits, rows, state, variant, mask[0] if mask else None, shard), table_rows, state, *mask)
    whole = jax.jit(lambda logits: sample(logits, table_rows, state, variant, *mask))
    found = {"gathered": gathered(text), "vocab": VOCAB, "tokens": [], "same": {}, "apart": {}, "counts": []}
    for kind in ("random", "ties", "odd"):
        logits = logits_of(len(params), ties=kind == "ties")
        if kind == "odd":
            # On one device alone, and with each way of looking for limits, whose loops must end on all alike.
            logits[[0, 3, 6, 8], 900], logits[[1, 4, 7], 3], logits[2] = np.nan, np.inf, -np.inf
            logits[5, :900] = -np.inf  # nothing on the first devices
        (state_found, mine), (state_whole, theirs) = split(logits), jax.device_get(whole(logits))
        found["tokens"].append(len(set(mine.token_ids.tolist())))
        found["counts"].append(np.array_equal(state_found.counts, state_whole.counts))
        compare(found, vars(mine), vars(theirs), theirs.token_ids >= 0)
        found["same"].setdefault("token_ids", []).append(mine.token_ids.tolist() == theirs.token_ids.tolist())
    return found


def compare(found, mine, theirs, rows):
    """Integers are equal, numbers nearly, in the rows that have a token."""
    for name, value in theirs.items():
        one, other = mine[name][rows], value[rows]
        if np.issubdtype(value.dtype, np.integer):
            found["same"].setdefault(name, []).append(np.array_equal(one, other))
        else:
            differ = one != other  # infinities are equal
            found["apart"].setdefault(name, []).append(float(np.abs(one[differ] - other[differ]).max(initial=0)))


def gathered(text):
    """The most numbers per row that an all-gather gives, with all devices' parts."""
    rows = [int(np.prod([int(number) for number in dims.split(",")]))
            for shapes in re.findall(r"= \(?(.*?) all-gather(?:-start)?\(", text)
            for dims in re.findall(r"\[([\d,]+)\]", shapes)]
    return max(rows) // len(wanted())


def prompt():
    """Log-probabilities of a prompt's tokens."""
    targets = np.arange(len(wanted()), dtype=np.int32) * 28 % VOCAB
    text, split = over_devices(
        lambda logits, targets: token_logprobs_over_devices(logits, targets, 20, Shard("tensor", SIZE)), targets)
    found = {"gathered": gathered(text), "vocab": VOCAB, "same": {}, "apart": {}}
    for ties in (False, True):
        logits = logits_of(len(targets), ties=ties)
        theirs = jax.device_get(token_logprobs(jnp.asarray(logits), jnp.asarray(targets), 20))
        compare(found, split(logits)._asdict(), theirs._asdict(), np.ones(len(targets), bool))
    return found


CASES = {
    "full": lambda: sampler(Variant.FULL),
    "masked": lambda: sampler(Variant.MASKED),
    "processed": lambda: sampler(Variant.FULL, processed=True),
    "prompt": prompt,
}

if __name__ == "__main__":
    for case in sys.argv[1:]:
        print(json.dumps({case: CASES[case]()}), flush=True)
