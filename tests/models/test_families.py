"""Every family against Hugging Face transformers in float32, on tiny random models (tests/fixtures/make_fixtures.py).

Tolerance: 1e-4 of the largest logit, for float32 sums in another order over a few layers. In bfloat16, which native
kernels compute, 6 % of it: some roundings to 8 bits per layer, where a wrong window, scale or activation moves logits
by as much as they are large.
"""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import pytest
from models.paged_forward import PagedForward
from safetensors.numpy import load_file
from support import greedy, run

from jaxllm.engine.build import EngineSizes, build_engine
from jaxllm.loading import load_weights, open_model
from jaxllm.models.registry import FAMILIES
from jaxllm.weights import resolve

FIXTURES = Path(__file__).parents[1] / "fixtures"
NAMES = sorted(path.parent.name for path in FIXTURES.glob("*/config.json"))
TOLERANCE = {"float32": 1e-4, "bfloat16": 0.06}
REPRESENTATIVES = [name if name in ("gemma3", "qwen2") else pytest.param(name, marks=pytest.mark.sweep)
                   for name in NAMES]


@functools.cache
def _expected(name):
    """Ids, length of the prompt and logits of each sequence."""
    found = load_file(FIXTURES / name / "expected.safetensors")
    return [(found[f"ids.{number}"], int(found[f"prompt.{number}"]), found[f"logits.{number}"]) for number in range(3)]


@functools.cache
def _opened(name, dtype):
    source = resolve(FIXTURES / name)
    opened = open_model(source, dtype)
    return opened, load_weights(source, opened)


@functools.cache
def _forward(name, dtype="float32"):
    opened, params = _opened(name, dtype)
    return PagedForward(opened.model, params, rows=3, length=64, tokens_per_step=128)


def _check(name, row, found, dtype="float32"):
    wanted = _expected(name)[row][2][:len(found)]
    np.testing.assert_allclose(found, wanted, rtol=0, atol=TOLERANCE[dtype] * np.abs(wanted).max())


def test_every_family_has_a_fixture_that_is_longer_than_its_window():
    found = {_opened(name, "float32")[0].family.name for name in NAMES}
    assert found == {family.name for family in FAMILIES}
    for name in NAMES:
        window = _opened(name, "float32")[0].model.config.sliding_window
        assert window is None or all(len(ids) > 2 * window for ids, _, _ in _expected(name))


@pytest.mark.parametrize("name", NAMES)
def test_one_prefill(name):
    forward = _forward(name)
    for row, (ids, _, _) in enumerate(_expected(name)):
        forward.reset()
        tokens = [ids if other == row else [] for other in range(3)]
        _check(name, row, forward.step(tokens)[row])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", [3, 1], ids=["chunks of 3", "token by token"])
def test_piece_by_piece(name, size):
    forward = _forward(name)
    ids = _expected(name)[2][0]
    forward.reset()
    parts = [forward.step([[], [], ids[start:start + size]])[2] for start in range(0, len(ids), size)]
    _check(name, 2, np.concatenate(parts))


@pytest.mark.parametrize("name", NAMES)
def test_a_batch_of_unequal_lengths_then_decodes_together(name):
    _check_batch(name, "float32")


@pytest.mark.parametrize("name", REPRESENTATIVES)
def test_a_batch_in_bfloat16(name):
    _check_batch(name, "bfloat16")


def _check_batch(name, dtype):
    forward, expected = _forward(name, dtype), _expected(name)
    forward.reset()
    parts = [forward.step([ids[:len(ids) - 5 - row] for row, (ids, _, _) in enumerate(expected)])]
    parts += [forward.step([[ids[len(ids) - 5 - row + step]] for row, (ids, _, _) in enumerate(expected)])
              for step in range(5)]
    for row in range(3):
        _check(name, row, np.concatenate([part[row] for part in parts]), dtype)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=pytest.mark.sweep)])
def test_bits_do_not_depend_on_company_or_chunks(name, dtype):
    forward, sequences = _forward(name, dtype), [ids for ids, _, _ in _expected(name)]
    forward.reset()
    together = forward.step(sequences)
    forward.reset()
    alone = [forward.step([[], sequences[1][start:start + 3], []])[1] for start in range(0, len(sequences[1]), 3)]
    np.testing.assert_array_equal(np.concatenate(alone), together[1])


@pytest.mark.parametrize("name", REPRESENTATIVES)
def test_the_engine_gives_the_greedy_tokens(name):
    opened, params = _opened(name, "float32")
    sizes = EngineSizes(max_model_len=64, max_num_seqs=4, max_num_batched_tokens=32, block_size=8)
    engine = build_engine(opened.model, lambda: params, sizes)
    requests = [(ids[:prompt].tolist(), greedy(len(ids) - prompt)) for ids, prompt, _ in _expected(name)]
    for (ids, prompt, _), output in zip(_expected(name), run(engine, requests), strict=True):
        assert output.outputs[0].token_ids == ids[prompt:].tolist()
