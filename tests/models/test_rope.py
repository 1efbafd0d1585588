"""The variants of rotary embeddings: read from configs, their frequencies, the order of a head's dimensions."""

from __future__ import annotations

import math

import jax.numpy as jnp
import numpy as np
import pytest

from jaxllm.errors import UnsupportedModelError
from jaxllm.models.families.rope import rope_config
from jaxllm.models.rope import RopeConfig
from jaxllm.models.rope_tables import in_halves, rope_tables, turns_halves

SIZES = {"hidden_size": 64, "num_attention_heads": 4, "max_position_embeddings": 4096}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}
LONG = {"type": "longrope", "short_factor": [1.0] * 8, "long_factor": [2.0] * 8}


def test_yarn_keeps_what_turns_often_and_stretches_what_turns_less_than_once():
    rope = rope_config({**SIZES, "rope_theta": 1e4, "rope_scaling": YARN})
    plain, found = RopeConfig().inverse_frequencies(16), rope.inverse_frequencies(16)
    turns = plain * 1024 / (2 * np.pi)
    np.testing.assert_array_equal(found[turns > 60], plain[turns > 60])
    np.testing.assert_allclose(found[turns < 0.4], plain[turns < 0.4] / 4, rtol=1e-6)
    between = (turns > 2) & (turns < 20)
    assert between.any()
    assert np.all(found[between] < plain[between])
    assert np.all(found[between] > plain[between] / 4)
    assert rope.attention_factor == pytest.approx(0.1 * math.log(4) + 1)


@pytest.mark.parametrize(("changes", "factor"), [
    ({"attention_factor": 1.5}, 1.5),
    ({"mscale": 1.0, "mscale_all_dim": 1.0}, 1.0),
    ({"mscale": 2.0, "mscale_all_dim": 1.0}, (0.2 * math.log(4) + 1) / (0.1 * math.log(4) + 1)),
    ({"factor": None}, 0.1 * math.log(4) + 1),
], ids=str)
def test_yarns_attention_factor_follows_the_config(changes, factor):
    rope = rope_config({**SIZES, "rope_scaling": {**YARN, **changes}})
    assert rope.attention_factor == pytest.approx(factor)
    assert rope.factor == 4


def test_longrope_takes_the_factors_that_the_context_calls_for():
    long = rope_config({**SIZES, "original_max_position_embeddings": 1024, "rope_scaling": LONG})
    assert long.frequency_divisors == (2.0,) * 8
    assert long.attention_factor == pytest.approx(math.sqrt(1 + math.log(4) / math.log(1024)))
    short = rope_config({**SIZES, "original_max_position_embeddings": 4096, "rope_scaling": LONG})
    assert (short.frequency_divisors, short.attention_factor) == ((1.0,) * 8, 1.0)


def test_dynamic_scaling_is_none_within_the_context_but_for_alpha():
    assert rope_config({**SIZES, "rope_scaling": {"type": "dynamic", "factor": 4.0}}) == RopeConfig()
    found = rope_config({**SIZES, "rope_scaling": {"type": "dynamic", "factor": 1.0, "alpha": 1000.0}})
    assert found == RopeConfig(theta=1e4 * 1000 ** (16 / 14))


def test_the_attention_factor_is_of_rotated_dimensions_alone():
    rope = RopeConfig(rotary_dim=4, attention_factor=2.0)
    cos, sin = rope_tables(jnp.arange(3), rope, 16)
    assert cos.shape == sin.shape == (3, 8)
    np.testing.assert_array_equal(cos[:, 2:], 1)
    np.testing.assert_array_equal(sin[:, 2:], 0)
    np.testing.assert_allclose(cos[:, :2] ** 2 + sin[:, :2] ** 2, 4, rtol=1e-6)


@pytest.mark.parametrize(("rope", "order"), [
    (None, [0, 1, 2, 3, 4, 5, 6, 7]),
    (RopeConfig(), [0, 1, 2, 3, 4, 5, 6, 7]),
    (RopeConfig(interleaved=True), [0, 2, 4, 6, 1, 3, 5, 7]),
    (RopeConfig(rotary_dim=4), [0, 1, 4, 5, 2, 3, 6, 7]),
    (RopeConfig(rotary_dim=4, interleaved=True), [0, 2, 4, 5, 1, 3, 6, 7]),
], ids=str)
def test_dimensions_that_turn_together_lie_half_a_head_apart(rope, order):
    x = jnp.arange(8.0).reshape(1, 1, 8)
    assert in_halves(x, rope)[0, 0].tolist() == order
    assert turns_halves(rope, 8) == (order == list(range(8)))


@pytest.mark.parametrize(("scaling", "name"), [
    ({**YARN, "factor": "4"}, "factor"),
    ({**YARN, "beta_fast": -1.0}, "beta_fast"),
    ({**YARN, "original_max_position_embeddings": -1}, "original_max_position_embeddings"),
    ({**YARN, "mscale": "x", "mscale_all_dim": 1.0}, "mscale"),
    ({**LONG, "long_factor": None, "original_max_position_embeddings": 8}, "long_factor"),
    ({**LONG, "long_factor": ["x"], "original_max_position_embeddings": 8}, "factors of rope"),
    ({"type": "dynamic"}, "factor"),
    ({"rope_type": "ntk"}, "rope_type='ntk'"),
], ids=str)
def test_values_that_make_no_sense_are_refused_by_name(scaling, name):
    with pytest.raises(UnsupportedModelError, match=name):
        rope_config({**SIZES, "rope_scaling": scaling})


def test_longrope_needs_a_factor_for_each_pair():
    rope = rope_config({**SIZES, "rope_scaling": {**LONG, "short_factor": [1.0]}})
    with pytest.raises(UnsupportedModelError, match="1 frequency divisors, but 16 rotated dimensions need 8"):
        rope.inverse_frequencies(16)
