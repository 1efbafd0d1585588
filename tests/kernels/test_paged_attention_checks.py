"""What paged attention refuses, with the message that says why."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from pallas_kernels.paged_attention import paged_attention, paged_attention_metadata, positions_and_rows


def arguments():
    metadata = paged_attention_metadata(
        jnp.ones((2, 3), jnp.int32), jnp.array([0, 1, 3], jnp.int32), jnp.array([4, 5], jnp.int32), 8, 16
    )
    pool = jnp.zeros((4, 2, 16, 8))
    return {"q": jnp.zeros((8, 4, 8)), "k_pool": pool, "v_pool": pool, "metadata": metadata, "scale": 1.0}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q": jnp.zeros((8, 32))}, r"q must be \[T, N, H\], got shape \(8, 32\)"),
        ({"k_pool": jnp.zeros((4, 2, 16))}, r"k_pool must be \[P, K, S, H\]"),
        ({"v_pool": jnp.zeros((5, 2, 16, 8))}, r"v_pool must have k_pool's shape"),
        ({"q": jnp.zeros((8, 4, 16))}, "same head dim, got 16 and 8"),
        ({"q": jnp.zeros((8, 3, 8))}, "multiple of the pools' heads, got 3 and 2"),
        ({"q": jnp.zeros((8, 4, 8), jnp.int32)}, "q must be float32, bfloat16 or float16, got int32"),
        ({"q": jnp.zeros((8, 4, 8), jnp.bfloat16)}, "pools must have q's dtype bfloat16, got float32"),
        ({"q": jnp.zeros((16, 4, 8))}, "q has 16 tokens, metadata was made for 8"),
        ({"k_pool": jnp.zeros((4, 2, 32, 8)), "v_pool": jnp.zeros((4, 2, 32, 8))}, "blocks of 32 slots.*for 16"),
        ({"scale": 0.0}, "scale=0.0 must be positive"),
        ({"window": 0}, "window=0 must be at least 1"),
        ({"chunk": 0}, "chunk=0 must be at least 1"),
        ({"chunk": 8, "window": 4}, "chunk=8 .* window=None, which is 4"),
        ({"soft_cap": -1.0}, "soft_cap=-1.0 must be positive"),
        ({"sinks": jnp.zeros(3)}, r"sinks must be float32 \[N\] = \[4\]"),
        ({"sinks": jnp.zeros(4, jnp.bfloat16)}, r"sinks must be float32 \[N\] = \[4\], got bfloat16"),
        ({"alibi_slopes": jnp.zeros(3)}, r"alibi_slopes must be float32 \[N\] = \[4\], got float32 \(3,\)"),
        (
            {"implementation": "cuda"},
            "implementation='cuda' is not an implementation of paged_attention; there are .*xla",
        ),
    ],
)
def test_a_wrong_argument_is_named(change, message):
    with pytest.raises(ValueError, match=message):
        paged_attention(**(arguments() | change))


def test_arguments_are_checked_while_tracing():
    bad = arguments() | {"q": jax.ShapeDtypeStruct((8, 3, 8), jnp.float32)}
    metadata = bad.pop("metadata")
    with pytest.raises(ValueError, match="multiple of the pools' heads"):
        jax.eval_shape(lambda q, k, v: paged_attention(q, k, v, metadata, scale=1.0), *list(bad.values())[:3])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tables": jnp.ones((3, 3), jnp.int32)}, r"tables must be \[R, M\] with R = 2"),
        ({"tables": jnp.ones((2, 3), jnp.float32)}, "tables must be int32, got float32"),
        ({"query_start": jnp.zeros(2, jnp.int32)}, r"query_start must be \[R \+ 1\] = \[3\]"),
        ({"lengths": jnp.zeros((2, 1), jnp.int32)}, r"lengths must be \[R\]"),
        ({"lengths": jnp.zeros(2, jnp.float32)}, "lengths must be int32"),
        ({"num_tokens_padded": 0}, "num_tokens_padded=0 must be at least 1"),
        ({"block_size": 0}, "block_size=0 must be at least 1"),
    ],
)
def test_wrong_metadata_is_named(change, message):
    good = {
        "tables": jnp.ones((2, 3), jnp.int32),
        "query_start": jnp.zeros(3, jnp.int32),
        "lengths": jnp.zeros(2, jnp.int32),
        "num_tokens_padded": 8,
        "block_size": 16,
    }
    with pytest.raises(ValueError, match=message):
        paged_attention_metadata(**(good | change))


def test_positions_and_rows_of_a_mixed_step():
    tokens = positions_and_rows(jnp.array([0, 1, 1, 4, 4], jnp.int32), jnp.array([9, 0, 5, 0], jnp.int32), 6)
    assert tokens.rows.tolist() == [0, 2, 2, 2, 0, 0]
    assert tokens.positions.tolist() == [8, 2, 3, 4, 0, 0]
    assert tokens.valid.tolist() == [True] * 4 + [False] * 2
