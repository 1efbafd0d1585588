"""On GPUs that cannot convert float8 the Triton kernels leave it to XLA, and say why."""

import jax.numpy as jnp
import pytest

from pallas_kernels import triton_launch
from pallas_kernels.grouped_matmul import triton as grouped_matmul
from pallas_kernels.kv_write import triton as kv_write
from pallas_kernels.paged_attention import triton as paged_attention
from pallas_kernels.rope_kv_write import triton as rope_kv_write
from pallas_kernels.scaled_pool import Float8Pool, Int8Pool

HEADS = jnp.zeros((2, 1, 64), jnp.bfloat16)


def pool(kind, dtype):
    return kind(jnp.zeros((2, 1, 16, 64), dtype), jnp.zeros((2, 1, 16), jnp.float32))


def reasons(kind, dtype):
    """What each kernel says to numbers of a dtype, by operation."""
    held = pool(kind, dtype)
    return {
        "paged_attention": paged_attention.unsupported(HEADS, held, held),
        "kv_write": kv_write.unsupported(k_pool=held, v_pool=held, k=HEADS, v=HEADS),
        "rope_kv_write": rope_kv_write.unsupported(k_pool=held, v_pool=held, qkv=jnp.zeros((2, 3, 64), jnp.bfloat16)),
        "grouped_matmul": grouped_matmul.unsupported(
            jnp.zeros((2, 64), jnp.bfloat16), jnp.zeros((1, 64, 64), dtype), jnp.dtype(jnp.bfloat16)),
    }


@pytest.mark.parametrize(("capability", "name"), [(80, "8.0"), (86, "8.6")])
def test_older_gpus_refuse_float8_with_the_reason(monkeypatch, capability, name):
    monkeypatch.setattr(triton_launch, "compute_capability", lambda: capability)
    for operation, reason in reasons(Float8Pool, jnp.float8_e4m3fn).items():
        assert reason is not None, operation
        assert reason.endswith(f"in float8 need a GPU of compute capability 8.9 or newer, and this has {name}")


@pytest.mark.parametrize("capability", [89, 90, 100])
def test_gpus_that_convert_float8_take_it(monkeypatch, capability):
    monkeypatch.setattr(triton_launch, "compute_capability", lambda: capability)
    assert set(reasons(Float8Pool, jnp.float8_e4m3fn).values()) == {None}


def test_older_gpus_take_int8_pools(monkeypatch):
    monkeypatch.setattr(triton_launch, "compute_capability", lambda: 80)
    said = reasons(Int8Pool, jnp.int8)
    assert [said[name] for name in ("paged_attention", "kv_write", "rope_kv_write")] == [None] * 3
