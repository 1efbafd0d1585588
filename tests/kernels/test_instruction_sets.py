"""Every instruction set computes the same bits, but for sums of bfloat16 products in AMX's tiles, which it adds in
another order.

The oracle of each is another instruction set: equality to the bit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from kernels import paged_cases as pc
from kernels import test_rope_kv_write as rope
from kernels import test_sampling as sampling
from kernels.native import INSTRUCTION_SETS_HERE, needs_native, using
from kernels.quantized_rows import DECODED, random_rows

from pallas_kernels import cpu, gated_matmul, matmul, quantized_gated_matmul, quantized_matmul
from pallas_kernels.cpu.gguf import decode_gguf, decodes
from pallas_kernels.quantized import FORMATS
from pallas_kernels.sampling import log_normalizer

pytestmark = needs_native

SMALL = [(1, 64, 4), (5, 100, 7), (64, 576, 33)]
SHAPES = SMALL + [pytest.param(*shape, marks=pytest.mark.sweep)
                  for shape in [(2, 32, 64), (3, 1, 1), (4, 33, 3), (7, 1536, 65), (130, 2050, 9)]]
KINDS = [pytest.param(kind, marks=() if kind in ("Q4_0", "Q6_K", "I8", "Q4_1_A8", "Q6_K_A8") else pytest.mark.sweep)
         for kind in FORMATS]


def normal(*shape: int, scale: float = 1.0) -> jax.Array:
    rng = np.random.default_rng(sum(shape))
    return jnp.asarray(rng.normal(size=shape) * scale, jnp.bfloat16)


def check(compute: Callable[[], Any], *, tiles: bool) -> None:
    """What ``compute`` gives has the same bits with every instruction set; tiles: with AMX as well."""
    found = {}
    for name in cpu.instruction_sets():
        if tiles or name != "amx_bf16":
            with using(name):
                found[name] = [np.array(leaf).view(np.uint8) for leaf in jax.tree.leaves(compute())]
    first, *others = found
    for name in others:
        for one, other in zip(found[first], found[name], strict=True):
            np.testing.assert_array_equal(one, other, f"{first} and {name}")


def test_all_sets_up_to_the_best_of_this_processor_are_there():
    available = cpu.instruction_sets()
    assert available == INSTRUCTION_SETS_HERE[: len(available)]
    assert available[-1] == cpu.instruction_set()


@pytest.mark.parametrize(("tokens", "inputs", "outputs"), SHAPES)
def test_products(tokens, inputs, outputs):
    x, weight = normal(tokens, inputs), normal(outputs, inputs)
    for dtype in (jnp.bfloat16, jnp.float32):
        check(lambda dtype=dtype: matmul(x, weight, dtype, implementation="cpu"), tiles=False)


@pytest.mark.parametrize(("tokens", "inputs", "outputs"), SHAPES)
def test_gated_products(tokens, inputs, outputs):
    x, weight = normal(tokens, inputs), normal(2 * outputs, inputs, scale=3)
    check(lambda: gated_matmul(x, weight, implementation="cpu"), tiles=False)


def test_gates_of_any_size_are_the_same_in_tiles():
    """Products of one input have no order."""
    x = jnp.asarray([[0.0], [-0.0], [1.0], [-1.0], [3e38], [-3e38], [1e-38], [jnp.inf]], jnp.bfloat16)
    weight = jnp.concatenate([jnp.linspace(-200, 200, 401), jnp.ones(401)])[:, None].astype(jnp.bfloat16)
    check(lambda: jnp.nan_to_num(gated_matmul(x, weight, implementation="cpu"), nan=7.0), tiles=True)


@pytest.mark.parametrize("kind", KINDS)
def test_products_with_quantized_weights(kind):
    for tokens in (1, 9, 33):
        weight, scale = random_rows(kind, 768, 26)
        x = normal(tokens, 768)
        check(lambda x=x, weight=weight, scale=scale: (
            quantized_matmul(x, weight, kind, scale, jnp.float32, implementation="cpu"),
            quantized_gated_matmul(x, weight, kind, scale, implementation="cpu")),
            tiles=kind not in DECODED or kind == "I8")


@pytest.mark.parametrize("kind", [kind for kind in DECODED if kind != "I8"])
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
def test_decoding(kind, dtype):
    if not decodes(kind, np.dtype(dtype)):
        pytest.skip(f"{kind} is not decoded to {np.dtype(dtype)}")
    weight, _ = random_rows(kind, 512, 5)

    def decoded():
        out = np.empty(5 * 512, dtype)
        decode_gguf(weight.reshape(-1), kind, out)
        return out

    check(decoded, tiles=True)


@pytest.mark.parametrize(
    "shape", [(6, 64), *(pytest.param(s, marks=pytest.mark.sweep) for s in [(1, 2), (3, 80), (2, 34), (9, 256)])],
    ids=str)
def test_rotary_embedding(shape):
    arguments = rope.operands(heads=shape[0], head_dim=shape[1])
    check(lambda: rope.run("cpu", arguments), tiles=True)


@pytest.mark.parametrize("options", [
    {}, {"window": 300, "soft_cap": 3.0},
    pytest.param({"sinks": np.linspace(-3, 3, 6)}, marks=pytest.mark.sweep)], ids=str)
@pytest.mark.parametrize("shape", [
    pc.Shape(), pc.Shape(head_dim=80, block_size=24),
    *(pytest.param(shape, marks=pytest.mark.sweep) for shape in [
        pc.Shape(head_dim=16), pc.Shape(head_dim=256), pc.Shape(num_heads=18, head_dim=128, block_size=32)])], ids=str)
def test_attention(shape, options):
    if "sinks" in options:
        options = {"sinks": np.linspace(-3, 3, shape.num_heads)}
    case = pc.build(np.random.default_rng(0), shape, [1, 40, 0, 1, 2], [700, 650, 0, 33, 127], 48,
                    window=options.get("window"))
    check(lambda: pc.attend(case, "cpu", **options), tiles=False)


OPTIONS = [{}, {"top_p": 0.9}, {"top_k": 5}, {"top_k": 200, "min_p": 1e-4}, {"greedy": True}, {"temperature": 1e-3},
           {"temperature": 50.0, "top_p": 0.99}, {"min_p": 0.3}, {"top_k": 60, "top_p": 0.5}]


@pytest.mark.parametrize("size", [601, *(pytest.param(s, marks=pytest.mark.sweep) for s in (1, 15, 256, 5000, 49_152))])
def test_sampling(size):
    rows = 4 * len(OPTIONS)
    rng = np.random.default_rng(size)
    logits = np.concatenate([rng.normal(0, 3, (rows // 2, size)).astype(np.float32),
                             sampling.mixed_logits(rng, rows // 2, size)])
    logits[-1, -1] = np.nan
    draws = sampling.draws_of(OPTIONS * 4)
    check(lambda: sampling.run(logits, draws, None, "cpu", k=min(20, size)), tiles=True)
    check(lambda: log_normalizer(logits[:-1], implementation="cpu"), tiles=True)
