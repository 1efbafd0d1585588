"""Logits processors: a user's functions, request by request, inside the compiled sampler."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sampling.test_sampler import OPTIONS, OUTPUT, PROMPT, SLOTS, STOPS, V, logits_for, row_of

from jaxllm.errors import ParameterError
from jaxllm.sampling import (
    NO_TOKEN,
    RowTable,
    Variant,
    check_processors,
    init_state,
    needs_state,
    sample,
    set_slot,
    slot_row,
)
from jaxllm.sampling_params import SamplingParams

LENGTH = 32


def only_even(logits, state):
    return jnp.where(jnp.arange(V) % 2 == 0, logits, -jnp.inf)


def boost(logits, state):
    return logits.at[state.arguments[0].astype(int)].add(state.arguments[1])


def no_repeated_pair(logits, state):
    """No pair of tokens twice, in prompt and output together."""
    length = state.num_prompt + state.num_output
    last = state.token_ids[length - 1]
    follows = jnp.where((state.token_ids[:-1] == last) & (jnp.arange(LENGTH - 1) < length - 1), state.token_ids[1:], V)
    return logits.at[follows].set(-jnp.inf, mode="drop")


PROCESSORS = {"even": only_even, "boost": boost, "pairs": no_repeated_pair}
NAMES = tuple(PROCESSORS)
run = jax.jit(functools.partial(sample, processors=tuple(PROCESSORS.values())), static_argnums=3)


def rows_and_state(params, output=OUTPUT):
    table, state = RowTable(SLOTS), init_state(SLOTS, V, num_processors=len(NAMES), max_length=LENGTH)
    for slot, one in enumerate(params):
        chosen = sum(1 << NAMES.index(name) for name in one.logits_processors or ())
        table.set_slot(slot, one, slot, 0, len(PROMPT), processors=chosen)
        if needs_state(one):
            state = set_slot(state, np.int32(slot), slot_row(
                one, PROMPT, output, STOPS, V, processors=NAMES, max_length=LENGTH))
    position = len(PROMPT) + len(output)
    return table.rows(np.arange(len(params)), np.full(len(params), position), len(params)), state


def tokens(params, logits, **options):
    rows, state = rows_and_state(params, **options)
    return np.asarray(run(logits, rows, state, Variant.FULL)[1].token_ids)


def test_each_request_gets_the_processors_that_it_names_with_its_own_arguments():
    logits = logits_for(8)
    params = [
        SamplingParams(temperature=0),
        SamplingParams(temperature=0, logits_processors="even"),
        SamplingParams(temperature=0, logits_processors={"boost": [5, 100.0]}),
        SamplingParams(temperature=0, logits_processors={"boost": [7, 100.0], "even": ()}),
        SamplingParams(temperature=0, logits_processors={"boost": [8, 100.0], "even": ()}),
    ] + [SamplingParams(temperature=0)] * 3
    even = np.where(np.arange(V) % 2 == 0, logits, -np.inf)
    expected = [logits[0].argmax(), even[1].argmax(), 5, 7, 8, *logits[5:].argmax(-1)]
    # Applied in the engine's order: "even" comes first, so that "boost" finds -inf at 7, which stays.
    expected[3] = even[3].argmax()
    assert tokens(params, logits).tolist() == [int(token) for token in expected]


def test_a_processor_sees_prompt_and_output():
    logits = np.zeros((8, V), np.float32)
    # The output ends with 9, after which the prompt and the output had 5 and 9.
    logits[:, 5], logits[:, 9], logits[:, 40] = 3, 2, 1
    params = [SamplingParams(temperature=0, logits_processors="pairs")] * 8
    assert set(tokens(params, logits)) == {40}
    assert set(tokens([SamplingParams(temperature=0)] * 8, logits)) == {5}


def test_the_history_grows_with_the_tokens_as_if_built_anew():
    params = [SamplingParams(temperature=0, logits_processors="pairs")] * 8
    rows, state = rows_and_state(params, output=[])
    output = []
    for step in range(6):
        logits = np.repeat(logits_for(1, seed=step), 8, axis=0)
        at = jax.tree.map(np.copy, rows)
        at.position[:] = len(PROMPT) + step
        state, sampled = run(logits, at, state, Variant.FULL)
        assert tokens(params, logits, output=output).tolist() == sampled.token_ids.tolist()
        output.append(int(sampled.token_ids[0]))
    rebuilt = rows_and_state(params, output=output)[1]
    jax.tree.map(lambda mine, its: np.testing.assert_array_equal(mine[:8], its[:8]), state, rebuilt)


def test_rows_without_processors_keep_their_bits_beside_rows_with_them():
    logits = logits_for(16)
    mixed = [one.replace(logits_processors="even") if row % 2 else one for row, one in enumerate(OPTIONS)]
    results = []
    for params in (OPTIONS, mixed):
        rows, state = rows_and_state(params)
        results.append(run(logits, rows, state, Variant.FULL)[1])
    for row in range(0, 16, 2):
        assert row_of(results[0], row) == row_of(results[1], row)


def test_nan_from_a_processor_ends_its_row_alone():
    poison = jax.jit(functools.partial(sample, processors=(lambda logits, state: logits * jnp.nan,)), static_argnums=3)
    table, state = RowTable(SLOTS), init_state(SLOTS, V, num_processors=1, max_length=LENGTH)
    for slot in range(8):
        params = SamplingParams(temperature=0, logits_processors="x" if slot == 2 else None)
        table.set_slot(slot, params, 0, 0, 4, processors=int(slot == 2))
        state = set_slot(state, np.int32(slot), slot_row(
            SamplingParams(), PROMPT, [], STOPS, V, processors=("x",), max_length=LENGTH))
    _, output = poison(logits_for(8), table.rows(np.arange(8), np.full(8, 4), 8), state, Variant.FULL)
    assert np.flatnonzero(np.asarray(output.token_ids) == NO_TOKEN).tolist() == [2]


@pytest.mark.parametrize(("processors", "message"), [
    (5, "a mapping from at most 31 names"),
    ([only_even], "a mapping"),
    ({3: only_even}, "a mapping"),
    ({"x": 5}, "a mapping"),
    ({"x": lambda logits, state: logits[:3]}, "a result of float32"),
    ({"x": lambda logits, state: logits > 0}, "a result of float32"),
    ({"x": lambda logits, state: logits if logits[0] > 0 else -logits}, "a function that JAX can trace"),
    ({"x": lambda logits: logits}, "a function that JAX can trace"),
    ({"x": lambda logits, state: jax.pure_callback(np.asarray, logits, logits)}, "under vmap; it raised NotImpl"),
    ({"x": lambda logits, state: 1.0}, "a result of float32"),
])
def test_a_processor_that_cannot_work_is_refused_at_the_start(processors, message):
    with pytest.raises(ParameterError, match=message):
        check_processors(processors, V, LENGTH)
