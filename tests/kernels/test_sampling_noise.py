"""The noise: the cipher's published vectors, fixed integers, and its distribution."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from pallas_kernels.sampling.noise import gumbel, gumbel_rows, threefry2x32, token_bits


def word(value: int) -> jax.Array:
    return jnp.asarray(value, jnp.uint32)


@pytest.mark.parametrize(
    ("key", "counter", "expected"),
    [
        ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
        ((0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF), (0x1CB996FC, 0xBB002BE7)),
        ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), (0xC4923A9C, 0x483DF7A0)),
    ],
)
def test_threefry_matches_the_published_vectors(key, counter, expected):
    """Random123's kat_vectors, "threefry2x32 20"."""
    got = threefry2x32(*map(word, key), *map(word, counter))
    assert tuple(int(x) for x in got) == expected


def row_words(seed: int, sample: int, position: int) -> list[jax.Array]:
    return [jnp.asarray([x], jnp.uint32) for x in (seed >> 32, seed & 0xFFFFFFFF, sample, position)]


def test_bits_of_a_token_are_two_ciphers_of_its_coordinates():
    """Spelled out for one token; and literal values, which no platform, process or release may change."""
    seed, sample, position, token = 2**62 + 987654321, 3, 1000, 77
    key = threefry2x32(word(seed >> 32), word(seed & 0xFFFFFFFF), word(sample), word(position))
    expected, _ = threefry2x32(*key, word(token), word(0))
    bits = token_bits(*row_words(seed, sample, position), 100)
    assert int(bits[0, token]) == int(expected)
    assert [int(b) for b in bits[0, :4]] == EXPECTED_BITS


EXPECTED_BITS = [2185534123, 675643532, 3821406648, 929266482]


def test_bits_do_not_depend_on_vocabulary_size_or_neighbours():
    words = [jnp.arange(8, dtype=jnp.uint32) + shift for shift in (0, 10, 20, 30)]
    bits = np.asarray(token_bits(*words, 1000))
    assert np.array_equal(bits[:, :37], token_bits(*words, 37))
    alone = [w[5:6] for w in words]
    assert np.array_equal(bits[5:6], token_bits(*alone, 1000))


@pytest.mark.parametrize("changed", ["seed high", "seed low", "sample", "position"])
def test_every_coordinate_changes_the_bits(changed):
    index = ["seed high", "seed low", "sample", "position"].index(changed)
    words = [jnp.zeros(2, jnp.uint32)] * 4
    words[index] = jnp.arange(2, dtype=jnp.uint32)
    bits = np.asarray(jax.jit(token_bits, static_argnums=4)(*words, 4096))
    # Different rows should agree in half their bits: 131,072 coins, sigma 181, so 5 sigma.
    agree = 32 * 4096 - np.bitwise_count(bits[0] ^ bits[1]).sum()
    assert abs(int(agree) - 65536) < 905


def test_gumbel_matches_the_formula_in_float64():
    """Tolerance: 1 - u rounds by 2**-25 where the logarithm is at least 2**-10 or, near u = 1, moves by 2**-13.

    Beyond u = 1 - 2**-12 (values under -2.1, which never win in a vocabulary) only the order of magnitude is right.
    """
    rng = np.random.default_rng(0)
    edges = np.concatenate([np.arange(2000), (1 << np.arange(32)), (1 << np.arange(32)) - 1, [2**32 - 1 - 2**20]])
    bits = np.unique(np.concatenate([edges, rng.integers(0, 2**32, 100_000)])).astype(np.uint32)
    expected = -np.log(-np.log1p(-(bits.astype(np.float64) + 0.5) / 2**32))
    got = np.asarray(jax.jit(gumbel)(jnp.asarray(bits)))
    ordinary = bits < 2**32 - 2**20
    np.testing.assert_allclose(got[ordinary], expected[ordinary], atol=5e-5, rtol=3e-7)
    np.testing.assert_allclose(got[~ordinary], expected[~ordinary], atol=0.4)
    assert np.isfinite(got).all()
    assert got.max() == pytest.approx(33 * np.log(2), rel=1e-6)


def test_gumbel_falls_with_the_bits():
    """A larger u never gives larger noise, also where the series hands over to the logarithm."""
    bits = np.concatenate([2**22 + np.arange(-5000, 5000), np.linspace(0, 2**32 - 1, 100_000).astype(np.int64)])
    got = np.asarray(jax.jit(gumbel)(jnp.asarray(np.sort(bits), jnp.uint32)))
    assert (np.diff(got) <= 4e-5).all()


@jax.jit
def draws(logits: jax.Array, words: list[jax.Array]) -> jax.Array:
    return jnp.argmax(logits + gumbel_rows(*words, len(logits)), axis=1)


def words_along(axis: int, count: int) -> list[jax.Array]:
    words = [jnp.full(count, fixed, jnp.uint32) for fixed in (1, 2, 3, 4)]
    words[axis] = jnp.arange(count, dtype=jnp.uint32)
    return words


@pytest.mark.parametrize("axis", range(4))
def test_frequencies_follow_the_softmax_along_each_coordinate(axis):
    """Chi-square over 40,000 draws; the seeds are fixed, so the 0.999 quantile is not a gamble."""
    rng = np.random.default_rng(axis)
    logits = rng.normal(0, 1.5, 24).astype(np.float32)
    probabilities = np.exp(logits.astype(np.float64))
    probabilities /= probabilities.sum()
    count = 40_000
    seen = np.bincount(draws(logits, words_along(axis, count)), minlength=24)
    statistic = ((seen - count * probabilities) ** 2 / (count * probabilities)).sum()
    assert statistic < stats.chi2.ppf(0.999, 23)
    assert statistic > stats.chi2.ppf(0.001, 23)  # neither too even to be random


def test_neighbouring_positions_draw_independently():
    """Chi-square of the contingency table of 8 x 8 consecutive draws."""
    tokens = np.asarray(draws(np.zeros(8, np.float32), words_along(3, 60_001)))
    table = np.bincount(tokens[:-1] * 8 + tokens[1:], minlength=64).reshape(8, 8)
    assert stats.chi2_contingency(table).pvalue > 1e-3


def test_every_part_of_a_large_vocabulary_is_drawn_alike():
    """Flat logits over 49,152 ids, 1,024 draws in 32 bins."""
    flat = np.zeros(49_152, np.float32)
    tokens = np.concatenate([draws(flat, [word + 64 * i for word in words_along(3, 64)]) for i in range(16)])
    assert stats.chisquare(np.bincount(tokens // 1536, minlength=32)).pvalue > 1e-3


def test_rare_tokens_get_their_share():
    """A token of probability 2**-18 in 2**22 draws: 16 expected, sigma 4. Noise of 24 bits near u = 1 would lose it."""
    logits = np.array([0.0, -18 * np.log(2)], np.float32)
    rare = int(draws(logits, words_along(3, 2**22)).sum())
    assert 4 <= rare <= 28
