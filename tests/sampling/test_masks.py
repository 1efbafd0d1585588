"""Masks that the host makes: bit by bit, and no row but their own changes."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from sampling.oracle import build_rows
from sampling.test_sampler import OPTIONS, V, all_allowed, full_state, logits_for, row_of, run

from jaxllm.sampling import NO_TOKEN, Variant, init_state, mask_words
from jaxllm.sampling.masks import apply_mask
from jaxllm.sampling_params import SamplingParams


def bits(allowed, size=V):
    mask = np.zeros(mask_words(size), np.uint32)
    for token in allowed:
        mask[token // 32] |= np.uint32(1 << token % 32)
    return mask


@pytest.mark.parametrize("size", [1, 31, 32, 33, 331])
def test_every_bit_is_one_token(size):
    logits = np.random.default_rng(0).normal(size=(4, size)).astype(np.float32)
    keep = np.random.default_rng(1).random((4, size)) < 0.5
    mask = np.stack([bits(np.flatnonzero(row), size) for row in keep])
    assert np.array_equal(jax.jit(apply_mask)(logits, mask), np.where(keep, logits, -np.inf))


def test_only_allowed_tokens_are_chosen_whatever_the_request_asks_for():
    allowed = [4, 31, 32, 64, V - 1]
    mask = np.stack([bits(allowed)] * 16)
    options = [one.replace(allowed_token_ids=None, banned_token_ids=None) for one in OPTIONS]
    state = full_state(options)
    for position in range(20):
        rows = build_rows(options, position=position)
        _, output = run(logits_for(16, seed=position), rows, state, Variant.MASKED, mask)
        assert set(np.asarray(output.token_ids).tolist()) <= set(allowed)


def test_rows_without_a_mask_are_bitwise_those_of_the_full_variant():
    logits, rows, state = logits_for(16), build_rows(OPTIONS), full_state(OPTIONS)
    mask = all_allowed(16)
    mask[::2] = bits(range(0, V, 3))
    _, full = run(logits, rows, state, Variant.FULL)
    _, masked = run(logits, rows, state, Variant.MASKED, mask)
    for row in range(1, 16, 2):
        assert row_of(masked, row) == row_of(full, row)


def test_a_mask_without_a_token_gives_none():
    mask = all_allowed(8)
    mask[3] = 0
    params = [SamplingParams(temperature=0)] * 8
    _, output = run(logits_for(8), build_rows(params), init_state(64, V), Variant.MASKED, mask)
    assert np.flatnonzero(np.asarray(output.token_ids) == NO_TOKEN).tolist() == [3]


@pytest.mark.parametrize("variant", [Variant.FULL, Variant.MASKED])
def test_a_mask_belongs_to_the_masked_variant_alone(variant):
    mask = all_allowed(8) if variant == Variant.FULL else None
    with pytest.raises(ValueError, match="mask is not allowed"):
        run(logits_for(8), build_rows([SamplingParams()] * 8), init_state(64, V), variant, mask)
