"""The tiny models of tests/fixtures: what transformers computes with them, and themselves."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

from jaxllm.loading import load_weights, open_model
from jaxllm.weights import resolve

FIXTURES = Path(__file__).parents[1] / "fixtures"
NAMES = sorted(path.parent.name for path in FIXTURES.glob("*/config.json"))
TOLERANCE = {"float32": 1e-4, "bfloat16": 0.06}


@functools.cache
def expected(name):
    """Ids, length of the prompt and logits of each sequence."""
    found = load_file(FIXTURES / name / "expected.safetensors")
    return [(found[f"ids.{number}"], int(found[f"prompt.{number}"]), found[f"logits.{number}"]) for number in range(3)]


@functools.cache
def routes(name):
    """The experts [layers, T, A] that each sequence's tokens take, in the order of their numbers; none without any."""
    found = load_file(FIXTURES / name / "expected.safetensors")
    return [found[key] for key in (f"routes.{number}" for number in range(3)) if key in found]


@functools.cache
def opened(name, dtype):
    """The model, and its parameters."""
    source = resolve(FIXTURES / name)
    model = open_model(source, dtype)
    return model, load_weights(source, model)


def check(name, row, found, dtype="float32"):
    """Compare the logits of a sequence's first tokens. Of experts that come near one another bfloat16 may take another,
    so that of a mixture of experts a quarter of the positions may differ."""
    wanted = expected(name)[row][2][:len(found)]
    if dtype == "bfloat16" and routes(name):
        off = np.abs(found - wanted).max(-1) > TOLERANCE[dtype] * np.abs(wanted).max()
        assert off.mean() <= 0.25, f"positions {np.flatnonzero(off)} of {len(off)} differ"
        return
    np.testing.assert_allclose(found, wanted, rtol=0, atol=TOLERANCE[dtype] * np.abs(wanted).max())


def check_batch(forward, name, dtype):
    """Compare sequences of unequal lengths that are prefilled together, and then decoded together."""
    forward.reset()
    parts = [forward.step([ids[:len(ids) - 5 - row] for row, (ids, _, _) in enumerate(expected(name))])]
    parts += [forward.step([[ids[len(ids) - 5 - row + step]] for row, (ids, _, _) in enumerate(expected(name))])
              for step in range(5)]
    for row in range(3):
        check(name, row, np.concatenate([part[row] for part in parts]), dtype)


def check_bits(forward, name):
    """A sequence that comes in chunks of 3 gets the bits that it gets in one step with others."""
    sequences = [ids for ids, _, _ in expected(name)]
    forward.reset()
    together = forward.step(sequences)
    forward.reset()
    alone = [forward.step([[], sequences[1][start:start + 3], []])[1] for start in range(0, len(sequences[1]), 3)]
    np.testing.assert_array_equal(np.concatenate(alone), together[1])
