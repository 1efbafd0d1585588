"""One set of parameters in every layout that ``LLM.from_params`` takes, and back."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from flax import nnx

from jaxllm.models.decoder import Decoder
from jaxllm.models.model import build_model, nest
from jaxllm.models.registry import family_named
from jaxllm.weights.trees import flatten


def stacked(own):
    """With all layers in one array."""
    layers = [own["layers"][layer] for layer in range(len(own["layers"]))]
    return {**own, "layers": jax.tree.map(lambda *parts: jnp.stack(parts), *layers)}


def _names(config):
    """For each parameter, its parts' names in a checkpoint."""
    plan = family_named(config.family).weight_map(build_model(config, jnp.float32))
    return {path: tuple(piece.name for piece in pieces) for path, pieces in plan.items()}


def hugging_face(config, own):
    """A flat dict of a checkpoint's names, the parts of fused matrices apart."""
    heads, kv = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    ends = {"qkv": (heads, heads + kv), "gate_up": (config.intermediate_size,)}
    leaves = flatten(own)
    return {name: part for path, names in _names(config).items()
            for name, part in zip(names, jnp.split(leaves[path], ends.get(path.split(".")[-2], ())), strict=True)}


def nnx_state(config, own):
    """The state of the model's modules."""
    state = nnx.state(Decoder(config, jnp.float32))
    nnx.replace_by_pure_dict(state, own)
    return state


def to_own(config, params):
    """The model's own tree from one that has its layers stacked, or a checkpoint's names; differentiable."""
    if "layers" in params:
        layers = params["layers"]
        return params if 0 in layers else {**params, "layers": {
            layer: jax.tree.map(lambda leaf, at=layer: leaf[at], layers) for layer in range(config.num_layers)}}
    return nest({path: jnp.concatenate([params[name] for name in parts]) for path, parts in _names(config).items()})


LAYOUTS = {
    "own": lambda config, own: own,
    "flat": lambda config, own: flatten(own),
    "nnx.State": nnx_state,
    "stacked": lambda config, own: stacked(own),
    "Hugging Face": hugging_face,
    "Hugging Face, nested": lambda config, own: nested(hugging_face(config, own)),
}


def nested(flat):
    """A flat dict as a tree of dicts."""
    tree = {}
    for name, leaf in flat.items():
        *parents, last = name.split(".")
        functools.reduce(lambda node, parent: node.setdefault(parent, {}), parents, tree)[last] = leaf
    return tree
