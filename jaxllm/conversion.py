"""``convert``: any model that ``LLM`` loads, as a folder of Orbax, for JAX's training code and for jaxllm itself, or as
one of Hugging Face's."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxllm.errors import ParameterError
from jaxllm.loading import load_weights, open_model
from jaxllm.models.heads import SCORE
from jaxllm.models.matching import match_params
from jaxllm.models.model import nest
from jaxllm.parallel.partition import Partition
from jaxllm.quantization.int8_folder import REPLACEABLE
from jaxllm.quantization.output import check_target, written_whole
from jaxllm.quantization.rope import with_rope_scaling
from jaxllm.quantization.safetensors_writer import write_shards
from jaxllm.quantization.tokenizer_files import end_ids, tokenizer_files
from jaxllm.weights import GGUFSource, ModelSource, resolve
from jaxllm.weights.checkpoint_tensors import checkpoint_tensors
from jaxllm.weights.orbax import PARAMS, save_params
from jaxllm.weights.placement import place
from jaxllm.weights.trees import flatten

FORMATS = ("orbax", "safetensors")


@dataclasses.dataclass(frozen=True)
class Converted:
    """What was written: so many arrays, of so many bytes, in this dtype."""

    arrays: int
    nbytes: int
    dtype: str


def convert(
    model: str | os.PathLike[str] | ModelSource,
    target: str | os.PathLike[str],
    *,
    dtype: Any = "stored",
    revision: str | None = None,
    overwrite: bool = False,
    to: str = "orbax",
) -> Converted:
    """Write a model as a folder of Orbax or of Hugging Face, its configuration and tokenizer beside the parameters.

    model: as ``LLM`` takes it, or what ``jaxllm.weights.resolve`` returns. revision: branch, tag or commit of a hub
        model.
    target: the folder, which ``LLM(target)`` loads.
    to: "orbax": in ``target/params`` are the parameters in the layout of ``llm.engine.params``, for
        ``orbax.checkpoint.StandardCheckpointer().restore``. "safetensors": what transformers loads, in files of up to 5
        GB with an index.
    dtype: as for ``LLM``; "stored" is that of the model's tensors, the narrowest that holds all of them, and float32
        for those that are quantized. Nothing is rounded then.
    overwrite: replace what is there.

    The target is there when it is complete, or not at all. The whole model is in memory meanwhile.

    Raises ``ParameterError`` for a target that is not allowed, ``UnsupportedModelError`` without Orbax
    (``jaxllm[orbax]``) and for what a ``config.json`` cannot say, ``CapacityError`` without room on the disk.
    """
    if not isinstance(target, str | os.PathLike) or not os.fspath(target):
        raise ParameterError("target", target, "the path of a folder")
    if to not in FORMATS:
        raise ParameterError("to", to, " or ".join(map(repr, FORMATS)))
    folder = Path(target).expanduser()
    source = model if isinstance(model, ModelSource) else resolve(model, revision)
    if SCORE in source.tensors:
        raise ParameterError("model", source.name, f"a language model, as {SCORE} would be left out of the copy")
    check_target(folder, [source.path], overwrite=overwrite, replaceable=(*REPLACEABLE, PARAMS))
    opened = open_model(source, stored_dtype(source) if isinstance(dtype, str) and dtype == "stored" else dtype,
                        quantization="none")
    files = configuration(source, opened.model.dtype) | tokenizer_files(source)
    total = opened.model.weight_bytes + sum(map(len, files.values()))
    with written_whole(folder, total) as partial:
        write_files(partial, files)
        found, _ = match_params(opened.model, flatten(load_weights(source, opened)))
        params = nest(place(Partition(opened.model), found))
        if to == "orbax":
            save_params(partial, params)
        else:
            write_shards(partial, checkpoint_tensors(opened.model, opened.family, params, source.tensors))
    return Converted(len(opened.model.specs), opened.model.weight_bytes, opened.model.dtype.name)


def stored_dtype(source: ModelSource) -> np.dtype:
    """The narrowest floating-point dtype that holds all tensors' numbers."""
    dtypes = {source.dtype(name) for name in source.tensors}
    floating = sorted(map(str, (dtype for dtype in dtypes if jax.dtypes.issubdtype(dtype, np.floating))))
    return np.dtype(jnp.result_type(*floating) if floating else np.float32)


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Make a folder of these files, by name, which may be in folders within."""
    folder.mkdir()
    for name, content in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)


def configuration(source: ModelSource, dtype: np.dtype) -> dict[str, bytes]:
    """``config.json`` and ``generation_config.json``."""
    config = {key: value for key, value in with_rope_scaling(source.config, source.path).items()
              if key != "torch_dtype"} | {"dtype": dtype.name}
    generation = dict(source.generation_config)
    if isinstance(source, GGUFSource) and (ends := end_ids(source)):
        generation["eos_token_id"] = ends
    files = {"config.json": config} | ({"generation_config.json": generation} if generation else {})
    return {name: json.dumps(content, indent=2).encode() + b"\n" for name, content in files.items()}
