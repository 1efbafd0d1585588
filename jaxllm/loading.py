"""From a checkpoint to a model: which files, which tokenizer, which family, dtype and weights."""

from __future__ import annotations

import dataclasses
import functools
import logging
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxllm.errors import CheckpointError, ParameterError, UnsupportedModelError
from jaxllm.models.config import DecoderConfig
from jaxllm.models.description import Description
from jaxllm.models.heads import SCORE, Head, split_head
from jaxllm.models.matching import match_params
from jaxllm.models.model import Model, Params, build_model, describe, nest
from jaxllm.models.registry import FAMILIES, Family, family_named, family_of
from jaxllm.parallel.partition import Partition, PlacedParams
from jaxllm.parallel.pipeline import Pipeline
from jaxllm.platform import resolve_dtype
from jaxllm.program_cache.kept import kept
from jaxllm.tokenization import Tokenizer, load_tokenizer
from jaxllm.weights import (
    ConfigSource,
    GGUFSource,
    ModelSource,
    Piece,
    SafetensorsSource,
    check_checkpoint,
    load_params,
    resolve,
)
from jaxllm.weights.live import LiveParams, TreeSource
from jaxllm.weights.quantization import check_quantization, chosen_quantization, quantized_specs
from jaxllm.weights.safetensors import read_json
from jaxllm.weights.trees import listed, live_specs, misfit_error

logger = logging.getLogger("jaxllm")


Placed = PlacedParams | list[PlacedParams]
"""Parameters where they belong: of a model in one place, or of each stage of a pipeline."""
LOAD_FORMATS: dict[str, type[SafetensorsSource] | type[GGUFSource] | None] = {
    "auto": None, "safetensors": SafetensorsSource, "gguf": GGUFSource, "dummy": None,
}
"""By name, the checkpoints that they accept, where not all."""

TokenizerChoice = str | os.PathLike[str] | Tokenizer | None


def open_source(model: Any, revision: str | None = None, load_format: str = "auto") -> ModelSource:
    """The checkpoint that is meant, its headers read. load_format: one of ``LOAD_FORMATS``, or ``ParameterError``."""
    if not isinstance(load_format, str) or load_format not in LOAD_FORMATS:
        raise ParameterError("load_format", load_format, "one of " + ", ".join(map(repr, LOAD_FORMATS)))
    if isinstance(model, ModelSource):
        source = model
    elif load_format == "dummy" and isinstance(model, str | os.PathLike) and _is_hf_folder(model):
        source = ConfigSource(Path(model))
    else:
        source = resolve(model, revision, download_weights=load_format != "dummy")
    wanted = LOAD_FORMATS[load_format]
    if wanted is not None and not isinstance(source, wanted):
        raise ParameterError("load_format", load_format, f"{source.path} has another format; leave it at 'auto'")
    return source


def live_source(config: Any, params: Any, *, spread: bool = False) -> LiveParams:
    """The source of ``LLM.from_params``. spread: whether parameters may lie on several devices.

    config: a Hugging Face config as a dict or as the path of a ``config.json``; a ``DecoderConfig``; or what has a
        config: a folder, a hub id or a packaged model's name, whose ``generation_config.json`` then counts too.
    """
    if isinstance(config, DecoderConfig | Mapping):
        return LiveParams(config, params, spread=spread)
    if not isinstance(config, str | os.PathLike) or not os.fspath(config):
        raise ParameterError("config", config, "a Hugging Face config as a dict, the path of a config.json or of a "
                             "folder that has one, or a DecoderConfig")
    if os.path.isfile(config) and os.fspath(config).endswith(".json"):
        return LiveParams(read_json(Path(config)), params, spread=spread)
    source = open_source(config, load_format="dummy")
    return LiveParams(source.config, params, source.generation_config, spread=spread)


def _is_hf_folder(path: str | os.PathLike[str]) -> bool:
    return os.path.exists(os.path.join(path, "config.json"))


def read_tokenizer(source: ModelSource, tokenizer: TokenizerChoice = None, revision: str | None = None) -> Tokenizer:
    """The tokenizer of a checkpoint, or the one that was chosen instead: a folder, a file, a hub id or itself.

    revision: of the hub repository that was chosen.
    """
    if revision is not None and (isinstance(tokenizer, Tokenizer) or not isinstance(revision, str)):
        raise ParameterError("tokenizer_revision", revision, "a branch, tag or commit of a tokenizer on the hub")
    if isinstance(tokenizer, Tokenizer):
        return tokenizer
    if tokenizer is not None and not (isinstance(tokenizer, str | os.PathLike) and os.fspath(tokenizer)):
        raise ParameterError("tokenizer", tokenizer, "a hub id, a folder, a .gguf file or a Tokenizer")
    if tokenizer is not None:
        if revision is None and os.path.isdir(tokenizer) and not any(Path(tokenizer).glob("*.gguf")):
            return load_tokenizer(Path(tokenizer))
        try:
            source = resolve(tokenizer, revision, download_weights=False)
        except ParameterError as error:
            names = {"model": "tokenizer", "revision": "tokenizer_revision"}
            raise ParameterError(names.get(error.parameter, error.parameter), error.value, error.allowed) from None
    return load_tokenizer(source.metadata if isinstance(source, GGUFSource) else source.path)


@dataclasses.dataclass(frozen=True)
class OpenedModel:
    """A checkpoint's model, described and checked against its headers; no weights yet.

    quantization: what its matrices are kept as, ``None`` for plain numbers.
    in_place: whether the parameters are in memory already, in the form that the model takes.
    head: what the checkpoint has; without a language model's, the model's own is the embedding, which means nothing.
    """

    family: Family
    model: Model
    quantization: str | None
    in_place: bool = False
    head: Head = "language model"


def open_model(source: ModelSource, dtype: Any, *, quantization: str | None = None, has_weights: bool = True
               ) -> OpenedModel:
    """Describe the model of a checkpoint; raises if the architecture is unknown or its tensors do not fit.

    quantization: what becomes of its matrices (``jaxllm.weights.quantization``).
    has_weights: whether tensors are wanted of the checkpoint at all.
    """
    check_quantization(quantization, source)
    quantization = chosen_quantization(quantization, source)
    family, config, head = parts_of(source)
    if not has_weights:
        if quantization in ("gguf", "gguf-a8"):
            raise ParameterError("quantization", quantization, "None or 'int8' where weights are random")
        model = _quantized(_described(config, dtype), {}, None, quantization)
        return OpenedModel(family, model, quantization, head=head)
    if isinstance(source, TreeSource):
        if head == "score":
            raise UnsupportedModelError(f"{source.path}: heads that score are read of safetensors; of parameters in "
                                        "memory or in a folder of Orbax, language models and decoders without a head "
                                        "can be used")
        return dataclasses.replace(_open_tree(source, family, config, dtype, quantization), head=head)
    if config.num_layers > len(source.tensors):
        # Before anything is made for each of them: a damaged config can ask for billions.
        raise CheckpointError(f"{source.path} does not fit the model: its config asks for {config.num_layers} layers, "
                              f"and it has {len(source.tensors)} tensors")
    model = _described(config, dtype)
    plan = family.weight_map(model, source.tensors)
    check_checkpoint(source, model.specs, plan, _ignored(family, config, head))
    if head == "score":
        _check_score(source, config)
    return OpenedModel(family, _quantized(model, plan, source, quantization), quantization, head=head)


def _ignored(family: Family, config: DecoderConfig, head: Head) -> tuple[str, ...]:
    ignored = family.ignored_tensors(config)
    return (*ignored, f"^{re.escape(SCORE)}$") if head == "score" else ignored


def _check_score(source: ModelSource, config: DecoderConfig) -> None:
    found = source.tensors.get(SCORE)
    shape = None if found is None else found.shape
    if shape is None or len(shape) != 2 or shape[1] != config.hidden_size or not shape[0]:
        raise CheckpointError(f"{source.path} does not fit the model: {SCORE} should be [labels, {config.hidden_size}]"
                              f", the checkpoint has {'none' if shape is None else list(shape)}")


def score_head(source: ModelSource, opened: OpenedModel) -> np.ndarray | None:
    """The head that scores, float64 [labels, D]; ``None`` for models without one, or without weights."""
    if opened.head != "score" or SCORE not in source.tensors:
        return None
    return source.read(SCORE).astype(np.float64)


def check_pooling(path: Path) -> None:
    """``UnsupportedModelError`` for a folder of a model that pools otherwise than by the last token, which
    sentence-transformers say in ``1_Pooling/config.json``."""
    file = path / "1_Pooling" / "config.json"
    if not file.is_file():
        return
    modes = [name for name, value in read_json(file).items() if name.startswith("pooling_mode") and value is True]
    if modes != ["pooling_mode_lasttoken"]:
        raise UnsupportedModelError(f"{file} has {', '.join(modes) or 'no pooling_mode'}; supported is "
                                    "pooling_mode_lasttoken alone")


def parts_of(source: ModelSource) -> tuple[Family, DecoderConfig, Head]:
    """Which decoder a checkpoint is of, and with which head; raises where its architecture is unknown."""
    decoder = source.decoder if isinstance(source, LiveParams) else None
    if decoder is None:
        known = {architecture for family in FAMILIES for architecture in family.architectures}
        hf_config, head = split_head(source.config, known)
        family = family_of(hf_config)
        return family, family.decoder_config(hf_config), head
    named = family_named(decoder.family)
    if named is None:
        raise ParameterError("config.family", decoder.family, "one of " + ", ".join(each.name for each in FAMILIES))
    return named, decoder, "language model"


def _open_tree(source: TreeSource, family: Family, config: DecoderConfig, dtype: Any, quantization: str | None
               ) -> OpenedModel:
    """The model of a tree of parameters, in the form that they are in where they are in memory."""
    live = isinstance(source, LiveParams)
    model = _described(config, source.choose_dtype(dtype) if isinstance(source, LiveParams) else dtype)
    found, problems = match_params(model, source.leaves, abstract=not live,
                                   spread=isinstance(source, LiveParams) and source.spread)
    if problems and live:
        raise misfit_error(len(source.leaves), problems)
    if problems:
        raise CheckpointError(f"{source.path} does not fit the model:\n  {listed(problems)}")
    if quantization is not None:
        return OpenedModel(family, _quantized(model, {}, None, quantization), quantization)
    if not live:
        return OpenedModel(family, model, None)
    return OpenedModel(family, dataclasses.replace(model, specs=live_specs(model.specs, found)), None, in_place=True)


def _described(config: DecoderConfig, dtype: Any) -> Model:
    """The model of a config; an earlier process may have kept its description, which saves importing Flax."""
    resolved = resolve_dtype(dtype, jax.default_backend())
    found = kept("the description of a model", (config, resolved), functools.partial(describe, config, resolved),
                 write=Description.to_bytes, read=Description.from_bytes)
    return build_model(config, resolved, found)


def _quantized(model: Model, plan: Mapping[str, Sequence[Piece]], source: ModelSource | None, quantization: str | None
               ) -> Model:
    if quantization is None:
        return model
    return dataclasses.replace(model, specs=quantized_specs(model.specs, plan, source, quantization))


def load_weights(source: ModelSource, opened: OpenedModel) -> Params:
    """The model's parameters, streamed tensor by tensor into their final dtype; those of a tree in its own layout."""
    if isinstance(source, TreeSource):
        return source.load(opened.model.dtype)
    return _streamed(source, opened, None)


def load_placed(source: ModelSource, opened: OpenedModel, partition: Partition | Pipeline) -> Params | Placed:
    """As ``load_weights``, for any devices: each is given its part of a tensor, and none has more."""
    if isinstance(partition, Partition) and partition.mesh is None:
        return load_weights(source, opened)
    if isinstance(source, TreeSource):
        return source.load(opened.model.dtype, on_host=True)
    return _placed(partition, lambda put: _streamed(source, opened, put))


def random_weights(source: ModelSource, opened: OpenedModel, partition: Partition | Pipeline) -> Params | Placed:
    """Random parameters where they belong."""
    if isinstance(partition, Partition) and partition.mesh is None:
        return opened.model.init()
    return _placed(partition, lambda put: opened.model.init(put=put))


def _placed(partition: Partition | Pipeline, make: Callable[[Callable[[str, Any], Any]], Params]) -> Placed:
    """What ``make`` makes with a function that places a parameter, as it is found on each stage."""
    if isinstance(partition, Partition):
        return PlacedParams(partition.owner, make(partition.owner.put))
    stages = partition.stages

    def put(path: str, leaf: Any) -> list[Any]:
        return [stage.put(path, leaf) if stage.here and path in stage.whole.specs else None for stage in stages]

    params = make(put)
    return [PlacedParams(stage, _on_stage(params, number) or {}) for number, stage in enumerate(stages)]


def _on_stage(params: Any, number: int) -> Any:
    """Of a tree of what each stage has, that of one; ``None`` where it has nothing."""
    if not isinstance(params, dict):
        return params[number]
    parts = {name: _on_stage(part, number) for name, part in params.items()}
    return {name: part for name, part in parts.items() if part is not None} or None


def _streamed(source: ModelSource, opened: OpenedModel, put: Callable[[str, Any], Any] | None) -> Params:
    family, model = opened.family, opened.model
    return nest(load_params(
        source, model.specs, family.weight_map(model, source.tensors),
        ignore=_ignored(family, model.config, opened.head), put=put))
