"""The oracle itself, against attention written out for one dense sequence."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from kernels import paged_cases as pc

SHAPE = pc.Shape(num_heads=4, num_kv_heads=2, head_dim=8, block_size=4, dtype="float32", blocks_per_row=8)


def dense(q, k, v, *, window=None, chunk=None, soft_cap=None, sinks=None, alibi_slopes=None):
    """Causal attention of all positions of one sequence: q [T, N, H], k and v [T, K, H]."""
    repeat = q.shape[1] // k.shape[1]
    k, v = (jnp.repeat(x, repeat, axis=1) for x in (k, v))
    logits = jnp.einsum("qnh,knh->nqk", q, k) * q.shape[-1] ** -0.5
    if soft_cap is not None:
        logits = soft_cap * jnp.tanh(logits / soft_cap)
    length = q.shape[0]
    if alibi_slopes is not None:
        logits += alibi_slopes[:, None, None] * (jnp.arange(length) - jnp.arange(length)[:, None])
    mask = jnp.tril(jnp.ones((length, length), bool))
    if window is not None:
        mask &= ~jnp.tril(jnp.ones((length, length), bool), -window)
    if chunk is not None:
        mask &= jnp.arange(length)[:, None] // chunk == jnp.arange(length) // chunk
    logits = jnp.where(mask, logits, -jnp.inf)
    if sinks is not None:
        logits = jnp.concatenate([logits, jnp.broadcast_to(sinks[:, None, None], (*logits.shape[:2], 1))], axis=-1)
    weights = jax.nn.softmax(logits, axis=-1)[..., :length]
    return jnp.einsum("nqk,knh->qnh", weights, v), jax.nn.logsumexp(logits, axis=-1).T


@pytest.mark.parametrize(
    "options",
    [{}, {"window": 5}, {"chunk": 6}, {"soft_cap": 1.5}, {"sinks": np.array([0.5, -1, 3, 0], np.float32)},
     {"alibi_slopes": np.array([0.5, 0.25, 0.1, 2], np.float32)}],
    ids=["plain", "window", "chunk", "soft_cap", "sinks", "alibi_slopes"],
)
def test_equals_dense_attention(options):
    # Both are exact up to float32 rounding of sums over at most 22 keys.
    rng = np.random.default_rng(0)
    kv = pc.contexts(rng, SHAPE, [22, 9])
    case = pc.build(rng, SHAPE, [22, 9], [22, 9], 32, kv=kv)
    out, lse = pc.attend(case, "oracle", **options)
    for row, first, end in ((0, 0, 22), (1, 22, 31)):
        expected, expected_lse = dense(case.q[first:end], *kv[row], **options)
        np.testing.assert_allclose(out[first:end], expected, atol=2e-6)
        np.testing.assert_allclose(lse[first:end], expected_lse, atol=2e-6)


def test_a_chunk_equals_the_tail_of_the_whole():
    rng = np.random.default_rng(1)
    kv = pc.contexts(rng, SHAPE, [22])
    whole = pc.build(rng, SHAPE, [22], [22], 24, kv=kv)
    tail = pc.build(rng, SHAPE, [5], [22], 8, kv=kv)
    tail.q[:5] = whole.q[17:22]
    np.testing.assert_array_equal(pc.attend(tail, "oracle")[0][:5], pc.attend(whole, "oracle")[0][17:22])
