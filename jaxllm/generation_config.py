"""What a ``generation_config.json`` says: which tokens end a generation, and the defaults of requests."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxllm.errors import CheckpointError, ParameterError
from jaxllm.sampling_params import SamplingParams
from jaxllm.tokenization import Tokenizer
from jaxllm.weights import ModelSource
from jaxllm.weights.safetensors import read_json

logger = logging.getLogger("jaxllm")

GENERATION_DEFAULTS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_new_tokens")
"""Those entries of a ``generation_config.json`` that become defaults of requests."""


def stored_generation_config(source: ModelSource, generation_config: Any = "auto") -> Mapping[str, Any]:
    """A ``generation_config.json``: the checkpoint's for "auto" and "vllm", else that of a folder."""
    if isinstance(generation_config, str) and generation_config in ("auto", "vllm"):
        return source.generation_config
    name = "generation_config.json"
    is_path = isinstance(generation_config, str | os.PathLike)
    if not is_path or not os.path.exists(os.path.join(generation_config, name)):
        raise ParameterError("generation_config", generation_config, f"'auto', 'vllm' or a folder that holds {name}")
    return read_json(Path(generation_config, name))


def end_token_ids(source: ModelSource, tokenizer: Tokenizer | None, generation_config: Any = "auto") -> frozenset[int]:
    """Every id that ends a generation: the tokenizer's, ``config.json``'s and ``generation_config.json``'s.

    Ids that do not exist are left out: some checkpoints say -1 for none, and others were made with a larger vocabulary.
    ``CheckpointError`` for what is neither an id nor a list of ids.
    """
    found = set(() if tokenizer is None else tokenizer.eos_token_ids)
    for config in (source.config, stored_generation_config(source, generation_config)):
        ids = config.get("eos_token_id")
        listed = [] if ids is None else ids if isinstance(ids, list) else [ids]
        if not all(isinstance(token, int) and not isinstance(token, bool) for token in listed):
            raise CheckpointError(f"{source.path} has eos_token_id={ids!r}, which is neither a token id nor a list of "
                                  "token ids")
        found.update(listed)
    limit = source.config.get("vocab_size", 0) if tokenizer is None else tokenizer.vocab_size
    return frozenset(token for token in found if 0 <= token < limit)


def sampling_defaults(source: ModelSource, generation_config: Any = "auto", override: Any = None) -> SamplingParams:
    """The sampling parameters of requests that bring none.

    generation_config: "auto" takes what the checkpoint recommends, as far as it is valid; "vllm" nothing; a folder,
        what its ``generation_config.json`` says. override: entries by name that come on top, of ``GENERATION_DEFAULTS``
        or ``do_sample``; ``ParameterError`` for others, and for values out of range.
    """
    stored = stored_generation_config(source, generation_config)
    recommended = _from_generation_config({} if generation_config == "vllm" else stored)
    given: dict[str, Any] = {}
    if override is not None:
        known = (*GENERATION_DEFAULTS, "do_sample")
        if not isinstance(override, Mapping) or not set(override) <= set(known):
            raise ParameterError("override_generation_config", override, "a mapping whose names are among "
                                 + ", ".join(known))
        given = _from_generation_config(override)
    try:
        defaults = SamplingParams(**recommended)
    except ParameterError as error:
        logger.warning("the model's generation_config.json is ignored: %s", error)
        defaults = SamplingParams()
    try:
        return defaults.replace(**given)
    except ParameterError as error:
        raise ParameterError("override_generation_config", override, str(error)) from None


def _from_generation_config(entries: Mapping[str, Any]) -> dict[str, Any]:
    """The entries of ``GENERATION_DEFAULTS`` as fields of ``SamplingParams``."""
    fields = {name: entries[name] for name in GENERATION_DEFAULTS if entries.get(name) is not None}
    if entries.get("do_sample") is False:
        fields = {name: fields[name] for name in ("repetition_penalty", "max_new_tokens") if name in fields}
        fields["temperature"] = 0.0
    if "max_new_tokens" in fields:
        fields["max_tokens"] = fields.pop("max_new_tokens")
    return fields
