"""A Llama in plain jnp over the model's own tree of parameters: whole sequences, no cache, and differentiable."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def logprobs(config, params, token_ids):
    """Float32 log-softmax [T, V] after each token of a sequence."""
    head = params["embedding" if config.tie_word_embeddings else "head"]["weight"]
    return jax.nn.log_softmax(hidden_states(config, params, token_ids) @ head.T)


def hidden_states(config, params, token_ids):
    """Float32 hidden states [T, D] after the final norm."""
    steps, size = len(token_ids), config.head_dim
    angles = jnp.arange(steps)[:, None, None] * config.rope.inverse_frequencies(size)
    seen = jnp.tril(jnp.ones((steps, steps), bool))
    x = params["embedding"]["weight"][jnp.asarray(token_ids)]
    for layer in range(config.num_layers):
        part = params["layers"][layer]
        h = _norm(x, part["attention_norm"]["weight"], config)
        qkv = _linear(h, part["attention"]["qkv"]).reshape(steps, -1, size)
        q, k, v = jnp.split(qkv, (config.num_heads, config.num_heads + config.num_kv_heads), axis=1)
        repeats = config.num_heads // config.num_kv_heads
        q, k, v = _rotate(q, angles), _rotate(k, angles).repeat(repeats, 1), v.repeat(repeats, 1)
        scores = jnp.einsum("qnh,knh->nqk", q, k) * size**-0.5
        attended = jnp.einsum("nqk,knh->qnh", jax.nn.softmax(jnp.where(seen, scores, -jnp.inf)), v)
        x = x + _linear(attended.reshape(steps, -1), part["attention"]["out"])
        gate, up = jnp.split(_linear(_norm(x, part["mlp_norm"]["weight"], config), part["mlp"]["gate_up"]), 2, -1)
        x = x + _linear(jax.nn.silu(gate) * up, part["mlp"]["down"])
    return _norm(x, params["norm"]["weight"], config)


def _norm(x, weight, config):
    return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + config.norm_eps) * weight


def _linear(x, part):
    y = x @ part["weight"].T
    return y + part["bias"] if "bias" in part else y


def _rotate(x, angles):
    first, second = jnp.split(x, 2, -1)
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], -1)
