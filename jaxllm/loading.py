"""From a checkpoint to a model: which family, which dtype, which weights, which defaults."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterable
from typing import Any

import jax

from jaxllm.errors import CheckpointError, ParameterError
from jaxllm.models.model import Model, Params, build_model, nest
from jaxllm.models.registry import Family, family_of
from jaxllm.platform import resolve_dtype
from jaxllm.runner.buckets import bucket_for
from jaxllm.runner.programs import Key, Programs
from jaxllm.sampling import needs_state, variant_of
from jaxllm.sampling_params import SamplingParams
from jaxllm.tokenization import Tokenizer
from jaxllm.weights import ModelSource, Piece, check_checkpoint, load_params

logger = logging.getLogger("jaxllm")


@dataclasses.dataclass(frozen=True)
class OpenedModel:
    """A checkpoint's model, described and checked against its headers; no weights yet."""

    family: Family
    model: Model


def open_model(source: ModelSource, dtype: Any) -> OpenedModel:
    """Describe the model of a checkpoint; raises if the architecture is unknown or its tensors do not fit."""
    family = family_of(source.config)
    config = family.decoder_config(source.config)
    if config.num_layers > len(source.tensors):
        # Before anything is made for each of them: a damaged config can ask for billions.
        raise CheckpointError(f"{source.path} does not fit the model: its config asks for {config.num_layers} layers, "
                              f"and it has {len(source.tensors)} tensors")
    model = build_model(config, resolve_dtype(dtype, jax.default_backend()))
    plan = {path: [Piece(name) for name in names] for path, names in family.weight_map(config).items()}
    check_checkpoint(source, model.specs, plan, family.ignored_tensors(config))
    return OpenedModel(family, model)


def load_weights(source: ModelSource, opened: OpenedModel) -> Params:
    """The model's parameters, streamed tensor by tensor into their final dtype."""
    config = opened.model.config
    return nest(load_params(
        source, opened.model.specs, opened.family.weight_map(config), ignore=opened.family.ignored_tensors(config)))


@dataclasses.dataclass(frozen=True)
class FirstStep:
    """What the first step of an engine is expected to compute: how many prompt tokens, sampled how."""

    num_tokens: int = 32
    params: SamplingParams = dataclasses.field(default_factory=lambda: SamplingParams(temperature=0.0))


def first_programs(programs: Programs, step: FirstStep) -> Iterable[Key]:
    """What a first request needs: a decode, its prompt's step, its sampler."""
    smallest, largest = programs.token_buckets[0], programs.token_buckets[-1]
    tokens = bucket_for(programs.token_buckets, min(step.num_tokens, largest))
    keys = [*programs.forward_keys(smallest), *programs.forward_keys(tokens),
            Key("sample", programs.row_buckets[0], variant_of(step.params)), Key("update_table")]
    if needs_state(step.params):
        keys.append(Key("set_sampling_slot"))
    return dict.fromkeys(keys)


def end_token_ids(source: ModelSource, tokenizer: Tokenizer) -> frozenset[int]:
    """Every id that ends a generation: the tokenizer's, ``config.json``'s and ``generation_config.json``'s.

    Ids that the tokenizer does not have are left out: some checkpoints say -1 for none, and others were made with a
    larger vocabulary. ``CheckpointError`` for what is neither an id nor a list of ids.
    """
    found = set(tokenizer.eos_token_ids)
    for config in (source.config, source.generation_config):
        ids = config.get("eos_token_id")
        listed = [] if ids is None else ids if isinstance(ids, list) else [ids]
        if not all(isinstance(token, int) and not isinstance(token, bool) for token in listed):
            raise CheckpointError(f"{source.path} has eos_token_id={ids!r}, which is neither a token id nor a list of "
                                  "token ids")
        found.update(listed)
    return frozenset(token for token in found if 0 <= token < tokenizer.vocab_size)


def sampling_defaults(source: ModelSource) -> SamplingParams:
    """The sampling parameters that ``generation_config.json`` recommends, as far as they are valid."""
    stored = source.generation_config
    names = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
    chosen = {name: stored[name] for name in names if stored.get(name) is not None}
    if stored.get("do_sample") is False:
        chosen = {name: value for name, value in chosen.items() if name == "repetition_penalty"} | {"temperature": 0.0}
    try:
        return SamplingParams(**chosen)
    except ParameterError as error:
        logger.warning("the model's generation_config.json is ignored: %s", error)
        return SamplingParams()
