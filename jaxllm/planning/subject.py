"""``Subject``: the model that is planned for, described as the engine would, without weights."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxllm.engine.sizes import cache_spec
from jaxllm.kv_cache.spec import KVSpec
from jaxllm.loading import open_model, open_source
from jaxllm.models.model import Model
from jaxllm.planning.gpus import GPU
from jaxllm.platform import resolve_dtype
from jaxllm.weights.configuration import ConfigSource
from jaxllm.weights.source import ModelSource

_DECODED = {"fp8": "FP8", "mxfp4": "MXFP4"}
"""Formats of checkpoints that are decoded where they are read."""


@dataclasses.dataclass(frozen=True)
class Subject:
    """notes: what is worth knowing of how the engine keeps it."""

    name: str
    model: Model
    kv: KVSpec
    quantization: str | None
    notes: tuple[str, ...]


def open_subject(model: Any, gpu: GPU, dtype: Any, quantization: str | None, kv_cache_dtype: Any,
                 revision: str | None) -> Subject:
    """Describe a model as an engine on this GPU would; raises as ``LLM`` does for one that it would not take."""
    source = _source(model, revision)
    # What "auto" is on all of these GPUs, whatever machine this is.
    resolved = resolve_dtype("bfloat16" if dtype == "auto" else dtype, "gpu")
    opened = open_model(source, resolved, quantization=quantization, has_weights=bool(source.tensors))
    notes = []
    if isinstance(source, ConfigSource) and source.stored_as in _DECODED and opened.quantization is None:
        notes.append(f"the checkpoint's matrices are in {_DECODED[source.stored_as]}, which is decoded: weights are "
                     f"counted in {opened.model.dtype.name}, as they are kept")
    kv = cache_spec(opened.model, kv_cache_dtype, capability=gpu.capability)
    return Subject(source.name, opened.model, kv, opened.quantization, tuple(notes))


def _source(model: Any, revision: str | None) -> ModelSource:
    if isinstance(model, Mapping):
        return ConfigSource.of(model)
    is_path = isinstance(model, str | os.PathLike)
    if is_path and os.fspath(model).endswith(".json") and os.path.isfile(os.path.expanduser(model)):
        return ConfigSource(Path(model).expanduser())
    return open_source(model, revision, load_format="dummy")
