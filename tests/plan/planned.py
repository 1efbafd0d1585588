"""Plans of real models' configurations, each described once."""

from __future__ import annotations

import functools
from pathlib import Path

import jaxllm

CONFIGS = Path(__file__).parents[1] / "fixtures" / "configs"
"""``config.json`` of published models, the entries that their translation reads: of Gemma 3 27B its text model's."""

SIZES = {"tensor": "tensor_parallel_size", "pipe": "pipeline_parallel_size", "data": "data_parallel_size",
         "experts": "enable_expert_parallel"}


@functools.cache
def planned(name, gpu="h200", **given):
    """The plan of a model by the name of its file; ``tensor=8`` and so on are short for the arguments' names."""
    return jaxllm.plan(CONFIGS / f"{name}.json", gpu, **{SIZES.get(key, key): value for key, value in given.items()})
