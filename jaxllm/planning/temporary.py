"""What a step takes beside weights and cache: activations, logits, tables."""

from __future__ import annotations

import jax

from jaxllm.kv_cache import block_table
from jaxllm.kv_cache.spec import KVSpec
from jaxllm.models.model import Model
from jaxllm.planning.mesh import MeshSizes
from jaxllm.planning.shards import config_of_one
from jaxllm.runner.keys import VOCAB_LOGPROB_ROWS
from jaxllm.sampling import init_state

_SAMPLER_ARRAYS = 7
"""As large as a GPU's part of the logits, that the sampler with all filters has at once as XLA compiles it for an
H200."""


def temporary_bytes(model: Model, mesh: MeshSizes, tokens: int, rows: int) -> int:
    """The most that is in use at once on one GPU, by the largest step: of the layers, or of the sampler.

    tokens: of the step, rows: of them that are sampled. An estimate, which tests compare with the compiler's.
    """
    vocab_size = model.config.vocab_size
    # Where log-probabilities of the whole vocabulary are wanted, a few rows' logits are whole.
    numbers = max(rows * -(-vocab_size // mesh.tensor), VOCAB_LOGPROB_ROWS * vocab_size)
    return max(_layer_bytes(model, mesh, tokens), _SAMPLER_ARRAYS * numbers * 4)


def _layer_bytes(model: Model, mesh: MeshSizes, tokens: int) -> int:
    """The residual stream (and its sum over the GPUs), and the largest of what a layer makes of it."""
    config, size = config_of_one(model.config, mesh), model.dtype.itemsize
    widest = 2 * (config.num_heads + config.num_kv_heads) * config.head_dim * size
    if config.moe is None or config.moe.dense_layers:
        widest = max(widest, (3 if config.gated_mlp else 2) * config.intermediate_size * size)
    if config.moe is not None:
        # Rows into the experts with their gates, or out of them and these weighted, in float32.
        inside = (config.hidden_size + 3 * config.moe.expert_size) * size
        routed = max(inside, config.hidden_size * (size + 4))
        widest = max(widest, config.moe.experts_per_token * routed)
    if config.moe is not None and mesh.spread:
        # Room for all tokens of all GPUs, as rows and, before and after each expert, with those that they take.
        everything = mesh.data * mesh.tensor * -(-tokens // mesh.tensor)
        pairs = config.moe.experts_per_token * max(2 * config.hidden_size, config.hidden_size + 3
                                                   * config.moe.expert_size)
        return (everything * (pairs + config.hidden_size) + 2 * tokens * config.hidden_size) * size
    streams = 1 if mesh.tensor == 1 else 2
    return tokens * (streams * config.hidden_size * size + widest)


def state_bytes(model: Model, kv: KVSpec, rows: int, max_model_len: int, block_size: int) -> int:
    """Block tables, and the sampler's state once a request needs all of it, on each GPU."""
    table = block_table.abstract(len(kv.groups), rows, -(-max_model_len // block_size))
    state = jax.eval_shape(lambda: init_state(rows, model.config.vocab_size, max_length=max_model_len))
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves((table, state)))
