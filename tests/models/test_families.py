"""Families against Hugging Face transformers in float32, on tiny random models (tests/fixtures/make_fixtures.py).

Tolerance: 1e-4 of the largest logit, for float32 sums in another order over a few layers. In bfloat16, which native
kernels compute, 6 % of it: some roundings to 8 bits per layer, where a wrong window, scale or activation moves logits
by as much as they are large.
"""

from __future__ import annotations

import functools

import numpy as np
import pytest
from models.fixture_models import FIXTURES, NAMES, check, check_batch, check_bits, expected, opened
from models.paged_forward import PagedForward
from support import greedy, run

from jaxllm.engine.build import build_engine
from jaxllm.engine.sizes import EngineSizes
from jaxllm.models.registry import FAMILIES, family_of
from jaxllm.weights import resolve

IN_ALL_PROGRAMS = ["gemma3", "llama", "qwen2"]  # the others in two, as what takes long is compiling
IN_TWO_PROGRAMS = [name if name == "gptj" else pytest.param(name, marks=pytest.mark.sweep)
                   for name in NAMES if name not in IN_ALL_PROGRAMS]


@functools.lru_cache(maxsize=2 * len(IN_ALL_PROGRAMS))  # executables take hundreds of memory maps
def _forward(name, dtype="float32", buckets=None):
    model, params = opened(name, dtype)
    return PagedForward(model.model, params, rows=3, length=64, tokens_per_step=128, buckets=buckets)


def test_every_family_has_a_fixture_that_is_longer_than_its_window():
    configs = {name: resolve(FIXTURES / name).config for name in NAMES}
    assert {family_of(config).name for config in configs.values()} == {family.name for family in FAMILIES}
    for name, config in configs.items():
        found = family_of(config).decoder_config(config)
        window = found.sliding_window or found.attention_chunk
        assert window is None or all(len(ids) > 2 * window for ids, _, _ in expected(name))


@pytest.mark.parametrize("name", IN_ALL_PROGRAMS)
def test_one_prefill(name):
    forward = _forward(name)
    for row, (ids, _, _) in enumerate(expected(name)):
        forward.reset()
        tokens = [ids if other == row else [] for other in range(3)]
        check(name, row, forward.step(tokens)[row])


def _piece_by_piece(forward, name, size):
    """The logits of the longest sequence, so many tokens a step."""
    ids = expected(name)[2][0]
    forward.reset()
    parts = [forward.step([[], [], ids[start:start + size]])[2] for start in range(0, len(ids), size)]
    return np.concatenate(parts)


@pytest.mark.parametrize("name", IN_ALL_PROGRAMS)
@pytest.mark.parametrize("size", [3, 1], ids=["chunks of 3", "token by token"])
def test_piece_by_piece(name, size):
    check(name, 2, _piece_by_piece(_forward(name), name, size))


@pytest.mark.parametrize("name", IN_ALL_PROGRAMS)
def test_a_batch_of_unequal_lengths_then_decodes_together(name):
    check_batch(_forward(name), name, "float32")


@pytest.mark.parametrize("name", IN_ALL_PROGRAMS)
def test_a_batch_in_bfloat16(name):
    check_batch(_forward(name, "bfloat16"), name, "bfloat16")


@pytest.mark.parametrize("name", IN_ALL_PROGRAMS)
@pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=pytest.mark.sweep)])
def test_bits_do_not_depend_on_company_or_chunks(name, dtype):
    check_bits(_forward(name, dtype), name)


@pytest.mark.parametrize("name", [*IN_ALL_PROGRAMS, pytest.param("llama4", marks=pytest.mark.sweep)])
def test_the_engine_gives_the_greedy_tokens(name):
    model, params = opened(name, "float32")
    sizes = EngineSizes(max_model_len=64, max_num_seqs=4, max_num_batched_tokens=32, block_size=8)
    engine = build_engine(model.model, lambda: params, sizes)
    requests = [(ids[:prompt].tolist(), greedy(len(ids) - prompt)) for ids, prompt, _ in expected(name)]
    for (ids, prompt, _), output in zip(expected(name), run(engine, requests), strict=True):
        assert output.outputs[0].token_ids == ids[prompt:].tolist()


@pytest.mark.parametrize("name", IN_TWO_PROGRAMS)
def test_all_of_it_in_two_programs(name):
    forward = _forward(name, "float32", (8, 128))
    ids, prompt, _ = expected(name)[2]
    forward.reset()
    check(name, 2, forward.step([[], [], ids])[2])
    check(name, 2, _piece_by_piece(forward, name, 3))
    logits = _piece_by_piece(forward, name, 1)
    check(name, 2, logits)
    np.testing.assert_array_equal(logits[prompt - 1:-1].argmax(-1), ids[prompt:])  # so greedy decoding gives them
    check_batch(forward, name, "float32")
    check_bits(forward, name)


@pytest.mark.parametrize("name", IN_TWO_PROGRAMS)
def test_a_batch_in_two_programs_in_bfloat16(name):
    forward = _forward(name, "bfloat16", (8, 128))
    check_batch(forward, name, "bfloat16")
    check_bits(forward, name)
