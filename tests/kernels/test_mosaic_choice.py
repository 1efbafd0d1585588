"""When kernels in Mosaic GPU are chosen: on Hopper, before Triton's, for what they take."""

from __future__ import annotations

import jax.numpy as jnp
import pytest

from pallas_kernels import explain, paged_attention_metadata, registry
from pallas_kernels.aot.gpus import lowering_for
from pallas_kernels.scaled_pool import Float8Pool, Int8Pool


def operands(head_dim=128, block_size=64, dtype=jnp.bfloat16):
    pool = jnp.zeros((2, 1, block_size, head_dim), dtype)
    metadata = paged_attention_metadata(
        jnp.zeros((1, 2), jnp.int32), jnp.zeros(2, jnp.int32), jnp.zeros(1, jnp.int32), 4, block_size)
    return {"q": jnp.zeros((4, 2, head_dim), dtype), "k_pool": pool, "v_pool": pool, "metadata": metadata}


def pools_in_bytes(kind, dtype, head_dim=128):
    pool = kind(jnp.zeros((2, 1, 64, head_dim), dtype), jnp.zeros((2, 1, 64)))
    return {"k_pool": pool, "v_pool": pool}


@pytest.mark.parametrize(("kind", "dtype"), [(Int8Pool, jnp.int8), (Float8Pool, jnp.float8_e4m3fn)])
def test_it_is_the_default_over_pools_in_bytes_too(kind, dtype):
    with lowering_for("h200"):
        choice = registry.choose("paged_attention", operands=operands() | pools_in_bytes(kind, dtype))
    assert (choice.implementation.name, choice.reason) == ("pallas", "the default on gpu")


@pytest.mark.parametrize("gpu", ["h100", "h200"])
def test_it_is_the_default_on_hopper(gpu):
    with lowering_for(gpu):
        choice = registry.choose("paged_attention", operands=operands())
    assert (choice.implementation.name, choice.reason) == ("pallas", "the default on gpu")


@pytest.mark.parametrize("gpu", ["a100", "b200"])
def test_other_gpus_have_another_default_and_say_why(gpu):
    with lowering_for(gpu):
        assert registry.choose("paged_attention", operands=operands()).implementation.name != "pallas"
        assert "needs a Hopper GPU, and this is NVIDIA" in explain("paged_attention")
        with pytest.raises(ValueError, match="needs a Hopper GPU"):
            registry.choose("paged_attention", "pallas")


def test_without_a_gpu_it_is_not_available():
    assert "pallas" not in registry.implementations("paged_attention")
    with pytest.raises(ValueError, match="cannot compute this paged_attention: there is no GPU"):
        registry.choose("paged_attention", "pallas")


@pytest.mark.parametrize(("case", "reason"), [
    (operands(dtype=jnp.float32), "computes bfloat16 and float16, not float32"),
    (operands(head_dim=80), "head dims are 64, 128, 256, not 80"),
    (operands(block_size=24), "block sizes are 16, 32, 64, 128, 256, not 24"),
    (operands(head_dim=256) | pools_in_bytes(Int8Pool, jnp.int8, 256), "over pools in bytes are 64, 128, not 256")])
def test_what_it_does_not_take_is_left_to_others(case, reason):
    with lowering_for("h200"):
        assert registry.choose("paged_attention", operands=case).implementation.name != "pallas"
        with pytest.raises(ValueError, match=reason):
            registry.choose("paged_attention", "pallas", operands=case)
