"""Tiny models for tensor parallelism, each with what some family has; and what an engine of one gives."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
from support import EOS, greedy, prompts, run

from jaxllm.engine.build import EngineSizes, build_engine
from jaxllm.models.config import DecoderConfig, LatentConfig, MoEConfig, RopeConfig
from jaxllm.models.model import build_model
from jaxllm.parallel import device_mesh, tensor_mesh
from jaxllm.parallel.partition import Partition
from jaxllm.sampling_params import SamplingParams
from jaxllm.weights.rows import StoredRows

LLAMA = {
    "family": "llama", "vocab_size": 199, "hidden_size": 32, "num_layers": 2, "num_heads": 8, "num_kv_heads": 4,
    "head_dim": 8, "intermediate_size": 64, "max_position_embeddings": 128,
}
SIZES = {"max_model_len": 64, "max_num_seqs": 8, "max_num_batched_tokens": 32, "block_size": 8,
         "kv_cache_bytes": 1 << 18, "overlap": False}
MODELS = {
    "llama": LLAMA,
    "gemma3": {**LLAMA, "family": "none", "num_kv_heads": 2, "tie_word_embeddings": True, "qk_norm": "head",
               "norm_offset": 1.0, "post_norms": True, "embedding_scale": 5.65, "sliding_window": 8,
               "full_layers": (1,), "local_rope": RopeConfig(theta=1000.0), "activation": "gelu_tanh",
               "logit_soft_cap": 30.0, "attention_soft_cap": 50.0},
    "gpt_oss": {**LLAMA, "family": "none", "attention_sinks": True, "attention_bias": True,
                "attention_output_bias": True, "sliding_window": 8, "full_layers": (1,),
                "moe": MoEConfig(num_experts=8, experts_per_token=2, expert_size=16, normalize=True, bias=True,
                                 gate_limit=7.0, gate_slope=1.702)},
    "olmo2": {**LLAMA, "family": "none", "num_kv_heads": 2, "qk_norm": "all", "pre_norms": False,
              "post_norms": True},
    "alibi": {**LLAMA, "family": "none", "num_kv_heads": 8, "rope": None, "norm": "layer", "norm_bias": True,
              "alibi_slopes": tuple(2.0**-power for power in range(1, 9)), "attention_bias": True,
              "attention_output_bias": True, "mlp_bias": True, "gated_mlp": False, "activation": "gelu",
              "parallel_residual": True, "shared_norm": True, "learned_positions": True, "head_bias": True,
              "qk_norm": "heads"},
    "deepseek": {**LLAMA, "family": "none", "num_kv_heads": 1, "head_dim": 20, "attention_scale": 0.25,
                 "latent": LatentConfig(kv_rank=16, q_rank=12, plain_dim=8, rope_dim=4, v_dim=8),
                 "rope": RopeConfig(rotary_dim=4),
                 "moe": MoEConfig(num_experts=8, experts_per_token=3, expert_size=16, dense_layers=(0,),
                                  scores="sigmoid", normalize=True, correction=True, groups=2, taken_groups=1,
                                  shared_size=32)},
    "llama4": {**LLAMA, "family": "none",
               "moe": MoEConfig(num_experts=4, experts_per_token=1, expert_size=32, scores="sigmoid",
                                weigh_inputs=True, shared_size=32, shared_gate=True)},
}


def model_of(name, kind=None):
    """A model, its matrices kept as ``kind`` if that is given, and random parameters in its own layout."""
    model = build_model(DecoderConfig(**MODELS[name]), jnp.dtype("float32"))
    if kind is not None:
        model = dataclasses.replace(model, specs={
            path: dataclasses.replace(spec, parts=(StoredRows(kind, spec.shape[0]),)) if spec.is_matrix else spec
            for path, spec in model.specs.items()})
    params = model.init(3, scale=0.2)
    if name == "gpt_oss" and kind is None:  # biases that count
        params = jax.tree.map(lambda leaf: leaf + 0.1 * jnp.cos(jnp.arange(leaf.size).reshape(leaf.shape)), params)
    return model, params


def partition_of(model, size, **options):
    """``size`` devices with a model."""
    return Partition(model, tensor_mesh(device_mesh(tensor=size)) if size > 1 else None, **options)


def engine_of(model, params, size, *, by_expert=False, mesh=None, **sizes):
    """An engine of a model over so many devices, or those of a mesh."""
    partition = partition_of(model, size, by_expert=by_expert) if mesh is None else Partition(model, mesh)
    return build_engine(model, lambda: params, EngineSizes(**{**SIZES, **sizes}), partition=partition,
                        eos_token_ids=[EOS])


def requests(*, sampled=True):
    """Greedy ones with log-probabilities, of few enough tokens that all steps have one size; with ``sampled`` longer
    ones, and each of the sampler's ways."""
    if not sampled:
        return [(prompt[:2 + number], greedy(16 - number, logprobs=4))
                for number, prompt in enumerate(prompts(2, low=8))]
    made = [(prompt, greedy(8, logprobs=4, prompt_logprobs=2)) for prompt in prompts(3, high=40)]
    ways = [{"temperature": 0.8}, {"temperature": 1.1, "top_k": 20, "top_p": 0.9},
            {"temperature": 0.9, "repetition_penalty": 1.2, "presence_penalty": 0.3}]
    return made + [(prompt, SamplingParams(max_tokens=8, ignore_eos=True, seed=number, **ways[number % 3]))
                   for number, prompt in enumerate(prompts(6, seed=1, high=20))]


def plain_requests():
    """Greedy ones, and others that are sampled without filters, apart: each has a program of its own."""
    wanted = prompts(3, seed=4, high=20)
    return ([(prompt, greedy(6)) for prompt in wanted],
            [(prompt, SamplingParams(temperature=0.7 + number / 4, max_tokens=6, ignore_eos=True, seed=number))
             for number, prompt in enumerate(wanted)])


def outcome(engine, wanted):
    """Token ids and all log-probabilities of the requests' outputs."""
    outputs = run(engine, wanted)
    assert [output.error for output in outputs] == [None] * len(wanted)
    lines = [line for output in outputs
             for line in (*(output.prompt_logprobs or [None])[1:], *(output.outputs[0].logprobs or ()))]
    return ([output.outputs[0].token_ids for output in outputs],
            [[entry.logprob for _, entry in sorted(line.items())] for line in lines])


def difference(found, expected):
    """Whether tokens are equal, and the largest difference of log-probabilities."""
    pairs = [(one, other) for mine, theirs in zip(found[1], expected[1], strict=True)
             for one, other in zip(mine, theirs, strict=True)]
    return found[0] == expected[0], max((abs(one - other) for one, other in pairs), default=0.0)
