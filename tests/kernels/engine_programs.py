"""A whole engine step of Llama 3 8B's shape for one GPU, and its attention for eight that share the heads."""

from __future__ import annotations

from collections.abc import Iterator

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from jaxllm.engine.build import EngineSizes, choose_config
from jaxllm.models.config import DecoderConfig
from jaxllm.models.model import build_model
from jaxllm.runner.functions import StepFunctions
from jaxllm.runner.keys import Key, layer_chunks
from jaxllm.runner.signatures import Signatures
from jaxllm.sampling import Variant
from pallas_kernels import aot, paged_attention, paged_attention_metadata, rope_kv_write

TOKENS = 256
LAYERS = 2
CONFIG = DecoderConfig(
    family="llama", vocab_size=128_256, hidden_size=4096, num_layers=LAYERS, num_heads=32, num_kv_heads=8, head_dim=128,
    intermediate_size=14_336, max_position_embeddings=8192, norm_eps=1e-5)
PROGRAMS = (Key("begin", TOKENS), Key("layers", TOKENS, 0), Key("end", TOKENS), Key("sample", 64, Variant.GREEDY),
            Key("sample", 64, Variant.FULL))


def functions() -> StepFunctions:
    model = build_model(CONFIG, jnp.dtype("bfloat16"))
    sizes = EngineSizes(max_num_seqs=64, max_model_len=8192, max_num_batched_tokens=TOKENS, block_size=64)
    config, spec = choose_config(model, sizes)
    return StepFunctions(model, model.config.vocab_size, spec, config, layer_chunks(model, spec, LAYERS))


def attention(qkv, k_pool, v_pool, cos, sin, slots, tables, query_start, lengths):
    """What stands between a layer's two products, on one device's heads."""
    k_pool, v_pool, q = rope_kv_write(k_pool, v_pool, qkv, cos, sin, slots, implementation="triton")
    metadata = paged_attention_metadata(tables, query_start, lengths, q.shape[0], k_pool.shape[2])
    return paged_attention(q, k_pool, v_pool, metadata, scale=128**-0.5, implementation="triton"), k_pool, v_pool


def over_eight(gpu: str) -> aot.Case:
    mesh = aot.mesh_of(gpu, (8,), ("tensor",))
    heads, pool, whole = PartitionSpec(None, "tensor"), PartitionSpec(None, "tensor"), PartitionSpec()
    specs = (heads, pool, pool, whole, whole, whole, whole, whole, whole)
    shapes = (((TOKENS, 48, 128), jnp.bfloat16), ((512, 8, 64, 128), jnp.bfloat16), ((512, 8, 64, 128), jnp.bfloat16),
              ((TOKENS, 64), jnp.float32), ((TOKENS, 64), jnp.float32), ((TOKENS,), jnp.int32),
              ((64, 128), jnp.int32), ((65,), jnp.int32), ((64,), jnp.int32))
    arguments = tuple(jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, spec))
                      for (shape, dtype), spec in zip(shapes, specs, strict=True))
    function = jax.shard_map(attention, mesh=mesh, in_specs=specs, out_specs=(heads, pool, pool), check_vma=False)
    return aot.Case("attention over eight", jax.jit(function, donate_argnums=(1, 2)), arguments)


def cases(gpu: str) -> Iterator[aot.Case]:
    made = functions()
    signatures = Signatures(made)
    for key in PROGRAMS:
        function, donated = made.of(key)
        yield aot.Case(str(key), jax.jit(function, donate_argnums=donated), signatures.of(key))
    yield over_eight(gpu)
