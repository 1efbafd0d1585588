"""The sampler as a whole: one token per row, the same in every variant and batch, without a new trace."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sampling.oracle import adjust, build_rows, kept_range, log_softmax, preference
from scipy import stats

from jaxllm.sampling import (
    ALL_ALLOWED,
    NO_TOKEN,
    RowTable,
    SampleOutput,
    SamplingRows,
    Variant,
    init_state,
    mask_words,
    needs_state,
    sample,
    set_slot,
    slot_row,
    variant_of,
)
from jaxllm.sampling_params import SamplingParams
from pallas_kernels.sampling.noise import gumbel_rows

V = 331
SLOTS = 64
run = jax.jit(sample, static_argnums=3, static_argnames="max_logprobs")
place = jax.jit(set_slot)

OPTIONS = [
    SamplingParams(temperature=0),
    SamplingParams(),
    SamplingParams(temperature=0.3),
    SamplingParams(top_k=1),
    SamplingParams(top_k=5),
    SamplingParams(top_k=100, temperature=2.0),
    SamplingParams(top_p=0.8),
    SamplingParams(min_p=0.05),
    SamplingParams(top_k=20, top_p=0.9, min_p=0.01, temperature=1.3),
    SamplingParams(temperature=0, logprobs=3),
    SamplingParams(repetition_penalty=1.3, presence_penalty=0.2, frequency_penalty=0.1, temperature=0),
    SamplingParams(repetition_penalty=0.8, presence_penalty=-0.2, top_p=0.7, logprobs=0),
    SamplingParams(logit_bias={3: 4.0, 9: -4.0}),
    SamplingParams(allowed_token_ids=[4, 8, 15, 16, 23, 42]),
    SamplingParams(banned_token_ids=list(range(0, V, 2)), top_k=3),
    SamplingParams(min_tokens=50, temperature=1e-6),
]
PROMPT, OUTPUT, STOPS = [1, 2, 3, 9], [5, 9, 9], [0, 7]


def logits_for(rows: int, size: int = V, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 3, (rows, size)).astype(np.float32)


def full_state(params: list[SamplingParams], size: int = V):
    state = init_state(SLOTS, size)
    for slot, one in enumerate(params):
        if needs_state(one):
            state = place(state, np.int32(slot), slot_row(one, PROMPT, OUTPUT, STOPS, size))
    return state


def all_allowed(rows: int, size: int = V) -> np.ndarray:
    return np.full((rows, mask_words(size)), ALL_ALLOWED, np.uint32)


def row_of(output: SampleOutput, row: int) -> list[bytes]:
    return [np.asarray(leaf)[row].tobytes() for leaf in jax.tree.leaves(output)]


def test_greedy_takes_the_largest_logit_and_the_lowest_id_of_a_tie():
    logits = logits_for(16)
    logits[2] = 0.0
    logits[3, [50, 90]] = 40.0
    _, output = run(logits, build_rows([SamplingParams(temperature=0)] * 16), None, Variant.GREEDY)
    assert np.array_equal(output.token_ids, logits.argmax(-1))
    assert jax.tree.leaves(output)[0].dtype == jnp.int32


def test_top_k_1_is_greedy_also_on_a_tie():
    logits = logits_for(16)
    logits[:, [50, 90]] = 40.0
    for params in (SamplingParams(temperature=0), SamplingParams(top_k=1, temperature=1.0)):
        _, output = run(logits, build_rows([params] * 16), None, variant_of(params))
        assert np.asarray(output.token_ids).tolist() == [50] * 16


@pytest.mark.parametrize("temperature", [1e-2, 1e-4, 1e-6, 1e-30, 5e-324])
@pytest.mark.parametrize("scale", [1.0, 1e30])
def test_small_temperatures_are_greedy_in_the_limit_and_never_overflow(temperature, scale):
    logits = np.tile(np.arange(V, dtype=np.float32), (16, 1)) * np.float32(scale)
    logits[:, -1] += 10 * np.float32(scale)
    logits[:, 5] = -np.inf
    for extra in ({}, {"top_k": 50, "top_p": 0.9}):
        params = [SamplingParams(temperature=temperature, **extra)] * 16
        variant = variant_of(params[0])
        state = init_state(SLOTS, V) if variant == Variant.FULL else None
        _, output = run(logits, build_rows(params), state, variant)
        assert (np.asarray(output.token_ids) == V - 1).all()


def test_huge_temperature_is_uniform_over_what_is_possible():
    logits = logits_for(16)
    logits[:, 10:] = -np.inf
    seen = np.zeros(10)
    for position in range(60):
        rows = build_rows([SamplingParams(temperature=1e300)] * 16, position=position)
        seen += np.bincount(run(logits, rows, None, Variant.SAMPLED)[1].token_ids, minlength=10)
    assert stats.chisquare(seen).pvalue > 1e-3


def test_a_plain_draw_is_the_argmax_of_scaled_logits_plus_noise():
    logits, params = logits_for(16), [SamplingParams(temperature=t) for t in np.linspace(0.2, 3, 16)]
    rows = build_rows(params)
    noise = np.asarray(gumbel_rows(*jax.tree.map(jnp.asarray, rows).draws.noise_words, V))
    expected = (logits / np.array([[p.temperature] for p in params]) + noise).argmax(-1)
    assert np.array_equal(run(logits, rows, None, Variant.SAMPLED)[1].token_ids, expected)


def test_a_full_draw_is_the_argmax_over_what_the_float64_oracle_keeps():
    params = OPTIONS
    logits, state, rows = logits_for(16), full_state(params), build_rows(params)
    noise = np.asarray(gumbel_rows(*jax.tree.map(jnp.asarray, rows).draws.noise_words, V))
    _, output = run(logits, rows, state, Variant.FULL)
    for row, one in enumerate(params):
        history = (PROMPT, OUTPUT) if needs_state(one) else ([], [])
        adjusted = adjust(logits[row], one, *history, STOPS)
        order = preference(adjusted)
        if one.greedy:
            assert int(output.token_ids[row]) == order[0]
            continue
        low, high = kept_range(adjusted, one)
        scores = adjusted / one.temperature + noise[row]
        allowed = {int(order[:kept][scores[order[:kept]].argmax()]) for kept in range(low, high + 1)}
        assert int(output.token_ids[row]) in allowed


def test_a_token_is_the_same_in_every_variant():
    """Plain rows in a GREEDY or SAMPLED batch, and among rows that need everything."""
    plain = [SamplingParams(temperature=t) for t in (0, 0.5, 1.0, 2.0)] * 4
    logits = logits_for(16)
    for position in range(5):
        rows = build_rows(plain, position=position)
        alone = np.asarray(run(logits, rows, None, Variant.SAMPLED)[1].token_ids)
        greedy = np.asarray(run(logits, rows, None, Variant.GREEDY)[1].token_ids)
        assert np.array_equal(greedy[::4], alone[::4])
        for parity in (0, 1):
            params = [plain[row] if row % 2 == parity else OPTIONS[row] for row in range(16)]
            mixed = build_rows(params, position=position)
            tokens = np.asarray(run(logits, mixed, full_state(params), Variant.FULL)[1].token_ids)
            assert np.array_equal(tokens[parity::2], alone[parity::2])


@pytest.mark.parametrize("size", [V, *(pytest.param(n, marks=pytest.mark.sweep) for n in (64, 1000, 4099, 49_152))])
def test_everything_about_a_row_is_the_same_bits_in_any_batch_row_and_company(size):
    """All options together, against other buckets, orders, neighbours and padding."""
    params = OPTIONS if size == V else OPTIONS * 4
    params = [p if p.banned_token_ids is None else p.replace(banned_token_ids=list(range(0, 60, 2))) for p in params]
    params = [p if p.allowed_token_ids is None else p.replace(allowed_token_ids=[4, 8, 15, 16]) for p in params]
    count = len(params)
    logits, state = logits_for(count, size), full_state(params, size)
    table = RowTable(SLOTS)
    for slot, one in enumerate(params):
        table.set_slot(slot, one, 1000 + slot, slot % 3, 4)
    _, whole = run(logits, table.rows(np.arange(count), np.full(count, 9), count), state, Variant.FULL)
    rng = np.random.default_rng(1)
    for taken, bucket in [(1, 8), (8, 8), (11, 16), (16, 24)] if size == V else [(1, 8), (11, 16), (40, 56), (64, 64)]:
        slots = rng.permutation(count)[:taken]
        padded = np.full((bucket, size), np.float32(7.0))
        padded[:taken] = logits[slots]
        _, part = run(padded, table.rows(slots, np.full(taken, 9), bucket), state, Variant.FULL)
        for row, slot in enumerate(slots):
            assert row_of(part, row) == row_of(whole, slot)


def test_padding_changes_no_state_and_asks_for_nothing():
    state = full_state(OPTIONS)
    empty = RowTable(SLOTS).rows(np.zeros(0, np.int32), np.zeros(0, np.int32), 16)
    after, _ = run(np.zeros((16, V), np.float32), empty, state, Variant.FULL)
    jax.tree.map(np.testing.assert_array_equal, after, state)


def test_tokens_are_counted_so_that_a_penalty_sees_them_at_the_next_step():
    """One token towers over the others by 1, and a frequency penalty of 0.6 a time: t, t, then the next best."""
    logits = np.zeros((16, V), np.float32)
    logits[:, [30, 20]] = [5.0, 4.0]
    params = [SamplingParams(temperature=0, frequency_penalty=0.6)] * 16
    state = init_state(SLOTS, V)
    for slot in range(16):
        state = place(state, np.int32(slot), slot_row(params[slot], [30], [], [], V))
    tokens = []
    for position in range(5):
        state, output = run(logits, build_rows(params, position=position), state, Variant.FULL)
        tokens.append(int(output.token_ids[3]))
    assert tokens == [30, 30, 20, 30, 20]


def test_samples_of_a_seed_differ_and_repeat_whatever_ran_between():
    """Four samples of seed 7, twice; the second time one by one, as after a preemption."""
    logits = np.zeros((16, V), np.float32)

    def table() -> RowTable:
        made = RowTable(8)
        for index in range(4):
            made.set_slot(index, SamplingParams(seed=7), 7, index, 3)
        return made

    def tokens(slots: list[int], rows: RowTable) -> np.ndarray:
        steps = [
            run(logits, rows.rows(np.array(slots), np.full(len(slots), at), 16), None, Variant.SAMPLED)[1].token_ids
            for at in range(3, 13)
        ]
        return np.stack(steps)[:, : len(slots)].T

    together = tokens([0, 1, 2, 3], table())
    assert len({tuple(row) for row in together}) == 4
    for index in (2, 0, 3, 1):
        assert np.array_equal(tokens([index], table())[0], together[index])


def test_unseeded_neighbours_do_not_change_a_seeded_row():
    logits, plain = logits_for(16), [SamplingParams()] * 16
    one = run(logits, build_rows(plain, seeds=[7] + [1] * 15), None, Variant.SAMPLED)[1].token_ids
    two = run(logits, build_rows(plain, seeds=[7, *range(50, 65)]), None, Variant.SAMPLED)[1].token_ids
    assert int(one[0]) == int(two[0])


@pytest.mark.parametrize("variant", list(Variant))
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_rows_with_nan_or_infinite_logits_get_no_token_and_leave_the_others_alone(variant, value):
    logits = logits_for(16)
    params = [[SamplingParams(temperature=0)] * 16, [SamplingParams()] * 16, OPTIONS, OPTIONS][variant]
    rows, state = build_rows(params), full_state(params) if variant >= Variant.FULL else None
    mask = all_allowed(16) if variant == Variant.MASKED else None
    clean = np.asarray(run(logits, rows, state, variant, mask)[1].token_ids)
    broken = [0, 3, 8, 14]
    logits[broken, [0, 100, 200, V - 1]] = value
    got = np.asarray(run(logits, rows, state, variant, mask)[1].token_ids)
    assert (got[broken] == NO_TOKEN).all()
    others = np.setdiff1d(np.arange(16), broken)
    assert np.array_equal(got[others], clean[others])


def test_a_row_whose_masks_leave_nothing_gets_no_token_and_counts_none():
    params = [SamplingParams(allowed_token_ids=STOPS, min_tokens=100, temperature=t, top_p=0.9) for t in (0, 1.0)] * 8
    state = full_state(params)
    after, output = run(logits_for(16), build_rows(params), state, Variant.FULL)
    assert (np.asarray(output.token_ids) == NO_TOKEN).all()
    assert np.array_equal(after.counts, state.counts)


@pytest.mark.parametrize("variant", list(Variant))
def test_padded_vocabulary_is_never_sampled(variant):
    logits = np.zeros((16, V), np.float32)
    logits[:, 5:] = -np.inf
    temperature = 0 if variant == Variant.GREEDY else 1e30
    params = [SamplingParams(temperature=temperature, top_k=100 if variant >= Variant.FULL else 0)] * 16
    state = init_state(SLOTS, V) if variant >= Variant.FULL else None
    mask = all_allowed(16) if variant == Variant.MASKED else None
    for position in range(10):
        output = run(logits, build_rows(params, position=position), state, variant, mask)[1]
        assert (np.asarray(output.token_ids) < 5).all()


def test_logprobs_are_of_the_raw_logits_and_only_in_rows_that_ask():
    params = [
        SamplingParams(temperature=0.5, top_p=0.9, logit_bias={3: 20.0}, logprobs=4),
        SamplingParams(temperature=0.5, top_p=0.9, logit_bias={3: 20.0}),
    ] * 8
    logits = logits_for(16)
    _, output = run(logits, build_rows(params), full_state(params), Variant.FULL)
    assert output.top_ids.shape == (16, 20)
    for row in (0, 2, 4, 6):
        expected = log_softmax(logits[row])
        token = int(output.token_ids[row])
        assert float(output.logprob[row]) == pytest.approx(expected[token], abs=1e-5)
        assert int(output.rank[row]) == 1 + (logits[row] > logits[row, token]).sum()
        assert np.array_equal(output.top_ids[row], preference(logits[row])[:20])
        np.testing.assert_allclose(output.top_logprobs[row], expected[output.top_ids[row]], atol=1e-5)
        for field in dataclasses.fields(SampleOutput)[1:]:
            assert not np.asarray(getattr(output, field.name)[row + 1]).any()


def test_no_option_costs_a_new_trace():
    """The set of options in a batch changes values, never shapes or structure."""
    traced = []

    @jax.jit
    def step(logits: jax.Array, rows: SamplingRows, state):
        traced.append(1)
        return sample(logits, rows, state, Variant.FULL)

    state = full_state(OPTIONS)
    rng = np.random.default_rng(0)
    table = RowTable(SLOTS)
    for seed in range(20):
        for slot in range(16):
            table.set_slot(slot, OPTIONS[rng.integers(16)], int(rng.integers(2**62)), 0, 4)
        taken = int(rng.integers(1, 17))
        rows = table.rows(rng.permutation(16)[:taken], np.full(taken, 9), 16)
        state, _ = step(logits_for(16, seed=seed), rows, state)
    assert len(traced) == 1


def test_full_without_state_is_an_error():
    with pytest.raises(ValueError, match="state=None is not allowed"):
        sample(jnp.zeros((8, V)), build_rows([SamplingParams(top_k=3)] * 8), None, Variant.FULL)
