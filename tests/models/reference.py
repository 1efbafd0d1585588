"""An independent decoder in plain float64 numpy: whole sequences, no cache, no batching. The oracle of model tests."""

from __future__ import annotations

import numpy as np


def _norm(x, weight, epsilon):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + epsilon) * weight


def _rotate(x, angles):
    half = x.shape[-1] // 2
    first, second = x[..., :half], x[..., half:]
    cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], -1)


def logits(config, params, token_ids, inverse_frequencies):
    """Logits [T, V] of a sequence."""
    wide = {name: np.asarray(value).astype(np.float64) for name, value in _flatten(params)}

    def project(x, name):
        y = x @ wide[name + ".weight"].T
        return y + wide[name + ".bias"] if name + ".bias" in wide else y

    heads, kv_heads, size = config.num_heads, config.num_kv_heads, config.head_dim
    x = wide["embedding.weight"][token_ids]
    steps = len(token_ids)
    angles = np.arange(steps)[:, None] * np.asarray(inverse_frequencies, np.float64)
    seen = np.tril(np.ones((steps, steps), bool))
    if config.sliding_window is not None:
        seen &= ~np.tril(np.ones((steps, steps), bool), -config.sliding_window)
    for layer in range(config.num_layers):
        at = f"layers.{layer}."
        h = _norm(x, wide[at + "attention_norm.weight"], config.norm_eps)
        qkv = project(h, at + "attention.qkv").reshape(steps, heads + 2 * kv_heads, size)
        q, k = _rotate(qkv[:, :heads], angles), _rotate(qkv[:, heads:heads + kv_heads], angles)
        v = qkv[:, heads + kv_heads:]
        mixed = np.empty((steps, heads, size))
        for head in range(heads):
            group = head // (heads // kv_heads)
            scores = np.where(seen, q[:, head] @ k[:, group].T / np.sqrt(size), -np.inf)
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            mixed[:, head] = weights / weights.sum(-1, keepdims=True) @ v[:, group]
        x = x + project(mixed.reshape(steps, -1), at + "attention.out")
        h = _norm(x, wide[at + "mlp_norm.weight"], config.norm_eps)
        gate, up = np.split(project(h, at + "mlp.gate_up"), 2, axis=-1)
        x = x + project(gate / (1 + np.exp(-gate)) * up, at + "mlp.down")
    x = _norm(x, wide["norm.weight"], config.norm_eps)
    return x @ wide.get("head.weight", wide["embedding.weight"]).T


def logprobs(config, params, token_ids, inverse_frequencies):
    """Log-softmax of ``logits``."""
    z = logits(config, params, token_ids, inverse_frequencies)
    z = z - z.max(-1, keepdims=True)
    return z - np.log(np.exp(z).sum(-1, keepdims=True))


def _flatten(tree, prefix=""):
    for name, value in tree.items():
        path = f"{prefix}{name}"
        if isinstance(value, dict):
            yield from _flatten(value, path + ".")
        else:
            yield path, value
