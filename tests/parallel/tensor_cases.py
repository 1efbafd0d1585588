"""What ``test_tensor.py`` asks of a process with eight devices: each case prints what it found as a line of JSON."""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from parallel.tensor_models import (
    LLAMA,
    SIZES,
    difference,
    engine_of,
    model_of,
    outcome,
    partition_of,
    plain_requests,
    requests,
)
from param_layouts import hugging_face, stacked
from safetensors.numpy import load_file
from support import greedy, prompts
from tiny_folder import write_tiny_folder
from weights.quantized_llama import PLAIN, write_mixture

from jaxllm import LLM, ParameterError, SamplingParams
from jaxllm.models.config import DecoderConfig
from jaxllm.models.model import build_model
from jaxllm.parallel import device_mesh, tensor_mesh
from jaxllm.runner.keys import Key
from jaxllm.sampling import Variant
from jaxllm.weights.trees import flatten

FOLDER_SIZES = {"dtype": "float32", "max_num_seqs": 4, "max_num_batched_tokens": 16, "max_model_len": 48,
                "block_size": 8, "kv_cache_bytes": "256K"}


def as_one(name, *sizes, kind=None, by_expert=False, sampled=False):
    """A model over so many devices, against one."""
    model, params = model_of(name, kind)
    expected = outcome(engine_of(model, params, 1), requests(sampled=sampled))
    found = {}
    for size in sizes:
        engine = engine_of(model, params, size, by_expert=by_expert)
        equal, furthest = difference(outcome(engine, requests(sampled=sampled)), expected)
        own = flatten(engine.params)
        kept = all(np.array_equal(own[path], leaf) for path, leaf in flatten(params).items() if hasattr(leaf, "shape"))
        found[size] = {"equal": equal, "furthest": furthest, "params_kept": kept, "share": _share(engine)}
    return found


def _share(engine):
    """Bytes of weights and of the cache on the first device, of those that one device would have."""
    runner = engine._runner
    weights = jax.tree.leaves((runner.weights.outer, runner.weights.layers))
    whole = sum(spec.nbytes for spec in runner.model.specs.values())
    first = jax.devices()[0]
    held = sum(shard.data.nbytes for leaf in weights for shard in leaf.addressable_shards if shard.device == first)
    cached = sum(shard.data.nbytes for leaf in jax.tree.leaves(runner.cache) for shard in leaf.addressable_shards
                 if shard.device == first)
    return {"weights": held / whole, "cache": cached / (engine.config.num_blocks * SIZES["block_size"])}


def programs(size=2):
    """The collectives in the compiled programs of a step; the plain samplers against one device's."""
    model, params = model_of("llama")
    engines = [engine_of(model, params, number) for number in (1, size)]
    same = []
    for wanted in plain_requests():
        expected, found = (outcome(engine, wanted) for engine in engines)
        same.append(difference(found, expected)[0])
    compiled = engines[1]._runner.programs
    layers = compiled.compile(Key("layers", 8, 0)).as_text()
    texts = {variant: compiled.compile(Key("sample", 8, variant)).as_text()
             for variant in (Variant.GREEDY, Variant.FULL)}
    before = dict(compiled.traces)
    engines[1].update_params(model.init(9, scale=0.2))
    engines[0].update_params(model.init(9, scale=0.2))
    expected, found = (outcome(engine, plain_requests()[0]) for engine in engines)
    return {
        "same": same,
        "all_reduces": len(re.findall(r" all-reduce(?:-start)?\(", layers)),
        "others": len(re.findall(r" (?:all-gather|all-to-all|collective-permute|reduce-scatter)(?:-start)?\(", layers)),
        "gathered": {variant.name: max(_sizes(text, "all-gather")) for variant, text in texts.items()},
        "vocab": LLAMA["vocab_size"],
        "updated": difference(found, expected)[0], "traced_again": dict(compiled.traces) != before,
    }


def _sizes(text, operation):
    """Elements per row of what an operation gives, wherever it is."""
    shapes = re.findall(rf"= \(?([a-z0-9]+\[[\d,]*\][^=]*?) {operation}(?:-start)?\(", text)
    return [int(np.prod([int(number) for number in dims.split(",") if number])) // 8
            for shape in shapes for dims in re.findall(r"\[([\d,]*)\]", shape)] or [0]


def swapping(size=2):
    """Sequences that are preempted to host memory and come back; a prompt's blocks found again."""
    model, params = model_of("llama")
    wanted = [(prompt, greedy(24, logprobs=1)) for prompt in prompts(4, seed=7, low=14, high=24)]
    roomy = outcome(engine_of(model, params, 1), wanted)
    block = 2 * 2 * 8 * (4 // size) * 8 * 4
    engine = engine_of(model, params, size, kv_cache_bytes=13 * block, swap_bytes=40 * size * block)
    found = difference(outcome(engine, wanted), roomy)
    stats = engine.stats()
    again = difference(outcome(engine, wanted[-1:]), (roomy[0][-1:], roomy[1][-24:]))
    return {"equal": found[0], "furthest": found[1], "moved": [stats.num_swapped_out, stats.num_swapped_in],
            "again": again[0], "hits": engine.stats().prefix_hit_rate}


def folder():
    """``LLM`` of a folder, int8 as well; what it writes back; and sleeping."""
    params = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
    prompt = [{"prompt_token_ids": [1, 2, 3, 4, 5, 6, 7]}]
    found = {}
    with tempfile.TemporaryDirectory() as temporary:
        path = write_tiny_folder(Path(temporary) / "tiny")
        for quantization in (None, "int8"):
            texts = []
            for size in (1, 2):
                llm = LLM(path, tensor_parallel_size=size, quantization=quantization, **FOLDER_SIZES)
                texts.append(llm.generate(prompt, params, use_tqdm=False)[0].outputs[0].token_ids)
            found[str(quantization)] = texts[0] == texts[1]
            if quantization is None:
                llm.save_pretrained(Path(temporary) / "back")
                found["written"] = _tensors(path) == _tensors(Path(temporary) / "back")
                llm.sleep(1)
                llm.wake_up()
                found["awake"] = llm.generate(prompt, params, use_tqdm=False)[0].outputs[0].token_ids == texts[0]
        blocks = {**PLAIN, "attn_v": "Q6_K", "attn_output": "Q4_0", "ffn_down": "Q8_0"}
        file = write_mixture(Path(temporary) / "mixture.gguf", [blocks])
        options = {**FOLDER_SIZES, "skip_tokenizer_init": True, "quantization": "gguf"}
        tokens = [LLM(file, tensor_parallel_size=size, **options).generate(prompt, params, use_tqdm=False)[0]
                  .outputs[0].token_ids for size in (1, 2)]
        found["gguf"] = tokens[0] == tokens[1]
        try:
            LLM(write_mixture(Path(temporary) / "whole.gguf", [PLAIN]), tensor_parallel_size=2, **options)
        except ParameterError as error:
            found["refused"] = str(error)
    return found


def _tensors(path):
    return {name: array.tobytes() for name, array in load_file(path / "model.safetensors").items()}


def trainer():
    """Parameters that lie on a trainer's mesh, in several layouts: used where they are if they lie as the engine's."""
    config = DecoderConfig(**{**LLAMA, "vocab_size": 200})
    model = build_model(config, jnp.dtype("float32"))
    own = model.init(3, scale=0.2)
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:2]).reshape(1, 2), ("fsdp", "model"))
    prompt = [{"prompt_token_ids": [1, 2, 3, 4, 5]}]
    params = SamplingParams(temperature=0.0, max_tokens=5, ignore_eos=True)
    sizes = {"max_num_seqs": 4, "max_num_batched_tokens": 16, "max_model_len": 48, "block_size": 8,
             "kv_cache_bytes": "256K"}
    expected = LLM.from_params(config, own, **sizes).generate(prompt, params, use_tqdm=False)[0].outputs[0].token_ids

    def spread(leaf, axis):
        names = [None] * leaf.ndim
        if axis is not None:
            names[axis] = "model"
        return jax.device_put(leaf, jax.NamedSharding(mesh, jax.P(*names)))

    def axis_of(name, leaf):
        if "norm" in name:
            return None
        return leaf.ndim - 1 if any(part in name for part in ("o_proj", "down")) else leaf.ndim - 2

    found = {}
    for layout, given in (("apart", hugging_face(config, own)), ("stacked", flatten(stacked(own)))):
        given = {name: spread(leaf, axis_of(name.replace("attention.out", "o_proj"), leaf))
                 for name, leaf in given.items()}
        llm = LLM.from_params(config, given, mesh=mesh, **sizes)
        where = {shard.data.unsafe_buffer_pointer() for leaf in given.values() for shard in leaf.addressable_shards}
        held = [leaf for leaf in jax.tree.leaves(llm.engine._runner.weights.outer) +
                jax.tree.leaves(llm.engine._runner.weights.layers) if leaf.ndim]
        kept = [all(shard.data.unsafe_buffer_pointer() in where for shard in leaf.addressable_shards) for leaf in held]
        answer = llm.generate(prompt, params, use_tqdm=False)[0].outputs[0].token_ids
        llm.update_params(jax.tree.map(lambda leaf: leaf * 1, given))
        later = llm.generate(prompt, params, use_tqdm=False)[0].outputs[0].token_ids
        found[layout] = {"equal": answer == later == expected,  "kept": sum(kept), "of": len(kept)}
    return found


def kept():
    """Programs that an engine like it has left on disk: over two devices, and on a device that is not the default."""
    jax.config.update("jax_compilation_cache_dir", None)
    model, params = model_of("llama")
    wanted = [(prompts(1, seed=2)[0], greedy(4))]
    expected = outcome(engine_of(model, params, 1), wanted)
    found = {}
    with tempfile.TemporaryDirectory() as temporary:
        os.environ["JAXLLM_COMPILATION_CACHE"] = temporary
        for name, devices in (("two", jax.devices()[2:4]), ("other", jax.devices()[5:6])):
            mesh = tensor_mesh(device_mesh(tensor=len(devices), devices=devices))
            engines = [engine_of(model, params, 0, mesh=mesh) for _ in range(2)]
            equal = [difference(outcome(engine, wanted), expected)[0] for engine in engines]
            caches = [engine._runner.programs.cache for engine in engines]
            found[name] = {"equal": equal, "compiled": [cache.num_compiled for cache in caches][1:],
                           "where": sorted(device.id for device in engines[1]._runner.newest.devices())}
    return found


def refusals():
    """Sizes and meshes that cannot be."""
    model, _ = model_of("llama")
    moe, _ = model_of("gpt_oss")
    found = []
    for make in (
        lambda: LLM("x", tensor_parallel_size=9), lambda: LLM("x", tensor_parallel_size=0),
        lambda: LLM("x", tensor_parallel_size=True), lambda: partition_of(model, 3), lambda: partition_of(moe, 5),
        lambda: LLM("x", mesh=jax.make_mesh((2,), ("odd",))),
        lambda: LLM("x", mesh=jax.make_mesh((2,), ("tp",)), tensor_parallel_size=2),
    ):
        try:
            make()
        except ParameterError as error:
            found.append(str(error))
    return found


CASES = {
    "programs": programs,
    "refusals": refusals,
    "llama": lambda: as_one("llama", 4, sampled=True),
    "llama, kv heads on two devices each": lambda: as_one("llama", 8),
    "gemma3": lambda: as_one("gemma3", 4),
    "gpt_oss by expert": lambda: as_one("gpt_oss", 4, by_expert=True),
    "llama4 by expert": lambda: as_one("llama4", 2, by_expert=True),
    "olmo2": lambda: as_one("olmo2", 4),
    "alibi": lambda: as_one("alibi", 2),
    "deepseek": lambda: as_one("deepseek", 4),
    "int8 experts": lambda: as_one("gpt_oss", 2, kind="I8"),
    "kept": kept,
    "swapping": swapping,
    "folder": folder,
    "trainer": trainer,
}

if __name__ == "__main__":
    for case in sys.argv[1:]:
        print(json.dumps({case: CASES[case]()}), flush=True)
