"""``Description``: what is known of a model's parameters before they exist, as plain data that can be kept."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp

from jaxllm.weights.spec import ParamSpec

Params = dict[Any, Any]
"""Nested dict of parameter leaves; a layer's number is an int key."""


@dataclasses.dataclass(frozen=True)
class Description:
    """The parameters of a decoder, and which of its layers are alike.

    It is derived from the modules (``jaxllm.models.modules``) and never written by hand.

    specs: by dotted path ("layers.0.attention.qkv.weight"): shape, dtype and logical axes.
    like: for each layer, the first one whose modules equal its own.
    """

    specs: Mapping[str, ParamSpec]
    like: tuple[int, ...]

    def to_bytes(self) -> bytes:
        """All of it, for ``from_bytes``; parts are not kept."""
        specs = {path: [spec.shape, spec.dtype.name, spec.axes] for path, spec in self.specs.items()}
        return json.dumps({"specs": specs, "like": self.like}).encode()

    @classmethod
    def from_bytes(cls, content: bytes) -> Description:
        """The description that ``to_bytes`` wrote; ``ValueError``, ``TypeError`` or ``KeyError`` for other bytes."""
        stored = json.loads(content)
        specs = {path: ParamSpec(tuple(shape), jnp.dtype(dtype), tuple(axes))
                 for path, (shape, dtype, axes) in stored["specs"].items()}
        return cls(specs, tuple(stored["like"]))
