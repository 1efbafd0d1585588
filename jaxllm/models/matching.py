"""Parameters as they were given, matched with a model's by its own names or its family's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxllm.models.model import Model
from jaxllm.models.registry import family_named
from jaxllm.weights.trees import Given, match


def match_params(model: Model, leaves: Mapping[str, Any], *, abstract: bool = False, spread: bool = False
                 ) -> tuple[dict[str, Given], list[str]]:
    """What was given for each parameter, and everything that does not fit; see ``jaxllm.weights.trees.match``."""
    family = family_named(model.config.family)
    if family is None:
        return match(model.specs, {}, (), leaves, abstract=abstract, spread=spread)
    return match(model.specs, family.weight_map(model, leaves), family.ignored_tensors(model.config), leaves,
                 abstract=abstract, spread=spread)
