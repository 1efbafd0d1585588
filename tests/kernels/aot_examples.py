"""Small kernels and a program over several GPUs, for the tests of compiling itself."""

from __future__ import annotations

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import jax_triton
import triton
import triton.language as tl
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jax.sharding import NamedSharding, PartitionSpec

from pallas_kernels import aot


@triton.jit
def double(x, o, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(o + at, 2 * tl.load(x + at))


@triton.jit
def square(x, o, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)
    tile = tl.load(x + at[:, None] * SIZE + at[None, :])
    tl.store(o + at[:, None] * SIZE + at[None, :], tl.dot(tile, tile))


@triton.jit
def crowded(x, o, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)
    numbers = tl.load(x + at)
    tl.store(o + at, numbers / tl.sum(numbers))


def with_triton(kernel, **constants):
    def function(x):
        return jax_triton.triton_call(
            x, kernel=kernel, out_type=jax.ShapeDtypeStruct(x.shape, jnp.float32), grid=(1,), **constants)

    return function


def with_mosaic(x):
    def body(x_ref, o_ref):
        rows = pl.ds(jax.lax.axis_index("block") * 128, 128)
        o_ref[rows] = x_ref[rows] * 2

    return plgpu.kernel(body, out_type=jax.ShapeDtypeStruct(x.shape, x.dtype), grid=(8,), grid_names=("block",))(x)


def cases(gpu: str) -> Iterator[aot.Case]:
    row = jax.ShapeDtypeStruct((1024,), jnp.float32)
    yield aot.Case("twice in triton", with_triton(double, BLOCK=1024), (row,))
    yield aot.Case("a dot in triton", with_triton(square, SIZE=64), (jax.ShapeDtypeStruct((64, 64), jnp.bfloat16),))
    yield aot.Case("too much in triton", with_triton(crowded, SIZE=2**15), (jax.ShapeDtypeStruct((2**15,), "float32"),))
    if aot.GPUS[gpu].capability >= (9, 0):
        yield aot.Case("twice in mosaic", with_mosaic, (row,))
    mesh = aot.mesh_of(gpu, (8,), ("tensor",))
    x = jax.ShapeDtypeStruct((256, 4096), jnp.bfloat16, sharding=NamedSharding(mesh, PartitionSpec(None, "tensor")))
    w = jax.ShapeDtypeStruct((4096, 512), jnp.bfloat16, sharding=NamedSharding(mesh, PartitionSpec("tensor")))
    whole = NamedSharding(mesh, PartitionSpec())
    yield aot.Case("eight", jax.jit(lambda x, w: x @ w, out_shardings=whole), (x, w))
