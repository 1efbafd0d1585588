"""Experts' matrices through everything that loads, quantizes, replaces and writes parameters."""

from __future__ import annotations

import json

import gguf
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gguf import GGMLQuantizationType
from models.fixture_models import FIXTURES, check, expected, opened
from models.paged_forward import PagedForward
from safetensors.numpy import load_file
from support import bits
from weights.checkpoint_files import write_gguf

import jaxllm
from jaxllm import LLM, ParameterError, SamplingParams, UnsupportedModelError
from jaxllm.loading import load_weights, open_model
from jaxllm.models.matching import match_params
from jaxllm.parallel.partition import Partition
from jaxllm.quantization.int8_folder import write_int8_folder
from jaxllm.weights import GGUFSource, resolve
from jaxllm.weights.placement import place
from jaxllm.weights.rows import QuantizedRows
from jaxllm.weights.trees import flatten, live_specs
from pallas_kernels import dequantize

SIZES = {"dtype": "float32", "max_num_seqs": 2, "max_num_batched_tokens": 16, "max_model_len": 32, "block_size": 4,
         "kv_cache_bytes": "1M"}
GREEDY = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True, logprobs=2)
PROMPT = {"prompt_token_ids": [1, 5, 9, 2, 7]}
EXPERTS, ROUTER = "layers.1.mlp.experts", "layers.1.mlp.router.weight"


def loaded(source, quantization=None):
    """A model, and its parameters by path."""
    found = open_model(source, "float32", quantization=quantization)
    params = load_weights(source, found)
    leaves, _ = jax.tree_util.tree_flatten_with_path(params, is_leaf=lambda leaf: isinstance(leaf, QuantizedRows))
    return found.model, {".".join(str(part.key) for part in path): leaf for path, leaf in leaves}, params


def forward(model, params):
    return PagedForward(model, params, rows=3, length=64, tokens_per_step=128, buckets=(8, 64))


def test_rows_of_all_experts_lie_one_below_the_other():
    _, params = opened("mixtral", "float32")
    tensors = load_file(FIXTURES / "mixtral" / "model.safetensors")
    at = "model.layers.1.block_sparse_moe.experts"
    wanted = [tensors[f"{at}.{expert}.{part}.weight"] for expert in range(5) for part in ("w1", "w3")]
    experts = params["layers"][1]["mlp"]["experts"]
    np.testing.assert_array_equal(experts["gate_up"]["weight"], np.concatenate(wanted).astype(np.float32))
    assert experts["down"]["weight"].shape == (5 * 48, 40)


@pytest.mark.sweep
def test_int8_of_experts_is_near_the_numbers_it_means_and_routers_stay_plain():
    source = resolve(FIXTURES / "mixtral")
    model, leaves, params = loaded(source, "int8")
    assert isinstance(leaves[f"{EXPERTS}.gate_up.weight"], QuantizedRows)
    assert isinstance(leaves[ROUTER], jax.Array)
    plain = jax.tree.map(lambda leaf: dequantize(leaf.blocks, leaf.kind, leaf.scale)
                         if isinstance(leaf, QuantizedRows) else leaf, params,
                         is_leaf=lambda leaf: isinstance(leaf, QuantizedRows))
    ids = expected("mixtral")[2][0]
    kept = forward(model, params)
    found = kept.step([[], [], ids])[2]
    wanted = forward(opened("mixtral", "float32")[0].model, plain).step([[], [], ids])[2]
    # Activations are rounded to 16 bits, which are 2e-5 of a row's largest.
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-3 * np.abs(wanted).max())
    kept.reset()
    pieces = [kept.step([[], ids[start:start + 5], []])[1] for start in range(0, len(ids), 5)]
    np.testing.assert_array_equal(np.concatenate(pieces), found)


def test_an_int8_folder_has_routers_as_they_were_and_loads_to_the_same_bits(tmp_path):
    source = resolve(FIXTURES / "qwen2_moe")
    write_int8_folder(source, tmp_path / "new")
    config = json.loads((tmp_path / "new" / "config.json").read_text())["quantization_config"]
    assert config["ignore"] == ["lm_head", "model.layers.1.mlp.gate", "model.layers.1.mlp.shared_expert_gate"]
    (_, found, _), (_, wanted, _) = loaded(resolve(tmp_path / "new")), loaded(source, "int8")
    assert found.keys() == wanted.keys()
    for path, leaf in found.items():
        for ours, theirs in zip(jax.tree.leaves(leaf), jax.tree.leaves(wanted[path]), strict=True):
            np.testing.assert_array_equal(np.asarray(ours), np.asarray(theirs), err_msg=path)


def test_merged_experts_cannot_be_written_as_an_int8_folder(tmp_path):
    with pytest.raises(UnsupportedModelError, match=r"matrices of all experts in one tensor, '.*_linear.weight'.*int8"):
        write_int8_folder(resolve(FIXTURES / "granitemoe"), tmp_path / "new")


def write_mixture_of_experts(path, up="Q8_0"):
    """A layer with 3 experts; up: what their up projections are stored as, the gates in Q8_0."""
    width, size, vocab, count = 64, 32, 24, 3
    rng = np.random.default_rng(0)
    shapes = {"token_embd": (vocab, width), "output_norm": (width,), "blk.0.attn_norm": (width,),
              "blk.0.ffn_norm": (width,), "blk.0.attn_q": (width, width), "blk.0.attn_k": (32, width),
              "blk.0.attn_v": (32, width), "blk.0.attn_output": (width, width), "blk.0.ffn_gate_inp": (count, width),
              "blk.0.ffn_gate_exps": (count, size, width), "blk.0.ffn_up_exps": (count, size, width),
              "blk.0.ffn_down_exps": (count, width, size)}
    kinds = {"blk.0.ffn_gate_exps": "Q8_0", "blk.0.ffn_up_exps": up, "blk.0.ffn_down_exps": "Q4_0"}
    tensors = {}
    for name, shape in shapes.items():
        kind = GGMLQuantizationType[kinds.get(name, "F32")]
        values = rng.standard_normal(shape, np.float32)
        tensors[f"{name}.weight"] = values if kind == 0 else gguf.quants.quantize(values, kind), kind
    metadata = {"llama.block_count": 1, "llama.context_length": 64, "llama.embedding_length": width,
                "llama.feed_forward_length": size, "llama.attention.head_count": 2,
                "llama.attention.head_count_kv": 1, "llama.attention.layer_norm_rms_epsilon": 1e-5,
                "llama.expert_count": count, "llama.expert_used_count": 2}
    return write_gguf(path, tensors, metadata)


@pytest.mark.sweep
def test_experts_of_a_gguf_file_stay_as_they_are_stored_and_mean_the_same(tmp_path):
    source = GGUFSource(write_mixture_of_experts(tmp_path / "tiny.gguf"))
    (model, leaves, params), (plain, numbers, decoded) = loaded(source, "gguf"), loaded(source)
    at = "layers.0.mlp.experts"
    assert [leaves[f"{at}.{name}.weight"].kind for name in ("gate_up", "down")] == ["Q8_0", "Q4_0"]
    blocks = leaves[f"{at}.gate_up.weight"]
    np.testing.assert_array_equal(dequantize(blocks.blocks, blocks.kind), numbers[f"{at}.gate_up.weight"])
    ids = [1, 7, 3, 20, 5, 5, 9]
    found, wanted = (forward(*each).step([[], ids, []])[1] for each in ((model, params), (plain, decoded)))
    np.testing.assert_array_equal(found, wanted)


def test_experts_of_a_gguf_file_are_decoded_where_their_gates_have_another_type(tmp_path):
    source = GGUFSource(write_mixture_of_experts(tmp_path / "tiny.gguf", up="Q4_0"))
    _, leaves, _ = loaded(source, "gguf")
    assert isinstance(leaves["layers.0.mlp.experts.gate_up.weight"], jax.Array)
    assert leaves["layers.0.mlp.experts.down.weight"].kind == "Q4_0"


@pytest.mark.sweep
def test_new_parameters_by_a_checkpoints_names_are_computed_with():
    folder = FIXTURES / "mixtral"
    config, tensors = json.loads((folder / "config.json").read_text()), load_file(folder / "model.safetensors")
    changed = {name: values[::-1] if ".experts." in name else values for name, values in tensors.items()}
    llm, other = (LLM.from_params(config, params, None, **SIZES) for params in (tensors, changed))
    first, wanted = (each.generate([PROMPT], GREEDY, use_tqdm=False)[0] for each in (llm, other))
    llm.update_params(changed)
    (found,) = llm.generate([PROMPT], GREEDY, use_tqdm=False)
    assert found.error is None
    assert bits(found) == bits(wanted) != bits(first)
    del changed["model.layers.0.block_sparse_moe.experts.3.w2.weight"]
    with pytest.raises(ParameterError, match=r"missing: model\.layers\.0\.block_sparse_moe\.experts\.3\.w2\.weight, "
                                             r"of rows of layers\.0\.mlp\.experts\.down\.weight"):
        llm.update_params(changed)


@pytest.mark.sweep
@pytest.mark.parametrize("name", ["granitemoe"])
def test_a_round_trip_through_orbax_keeps_every_bit(name, tmp_path):
    jaxllm.convert(FIXTURES / name, tmp_path / "orbax")
    (_, found, params), (_, wanted, _) = (loaded(resolve(each)) for each in (tmp_path / "orbax", FIXTURES / name))
    assert found.keys() == wanted.keys()
    for path, leaf in found.items():
        np.testing.assert_array_equal(np.asarray(leaf, jnp.float32), wanted[path], err_msg=path)
    model = opened(name, "float32")[0].model
    ids = expected(name)[0][0]
    check(name, 0, forward(model, jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), params)).step(
        [ids, [], []])[0])


@pytest.mark.parametrize("name", ["granitemoe", "mixtral", "qwen2_moe"])
def test_parameters_by_a_checkpoints_names_are_those_that_are_read(name):
    model, params = opened(name, "float32")
    given = flatten(load_file(FIXTURES / name / "model.safetensors"))
    found, problems = match_params(model.model, given)
    assert problems == []
    specs = live_specs(model.model.specs, found)
    assert not specs[f"{EXPERTS}.gate_up.weight"].parts
    placed = place(Partition(model.model), found)
    for path, leaf in flatten(params).items():
        np.testing.assert_array_equal(placed[path], leaf, err_msg=path)
