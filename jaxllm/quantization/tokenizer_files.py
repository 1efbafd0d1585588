"""The files of a Hugging Face folder that hold a model's tokenizer."""

from __future__ import annotations

import fnmatch
import json
from typing import Any

from jaxllm.tokenization import Tokenizer
from jaxllm.tokenization.gguf import from_gguf
from jaxllm.weights.gguf import GGUFSource
from jaxllm.weights.hub import TOKENIZER_FILES
from jaxllm.weights.source import ModelSource

_LICENSES = ("LICENSE*", "NOTICE*")


def tokenizer_files(source: ModelSource) -> dict[str, bytes]:
    """By name, with the licenses: a folder's own files as they are, or those that say what a GGUF file's metadata does.

    Empty for a model without a tokenizer. Raises ``UnsupportedModelError`` for tokenizers of GGUF files that jaxllm
    does not know.
    """
    if isinstance(source, GGUFSource):
        return _from_metadata(source) if _has_tokenizer(source) else {}
    wanted = [path for path in sorted(source.path.iterdir()) if path.is_file()
              and any(fnmatch.fnmatch(path.name, pattern) for pattern in (*TOKENIZER_FILES, *_LICENSES))]
    wanted += sorted(source.path.glob("additional_chat_templates/*.jinja"))
    return {str(path.relative_to(source.path)): path.read_bytes() for path in wanted}


def end_ids(source: GGUFSource) -> list[int]:
    """The ids that end a generation, as the file's tokenizer has them; none without one."""
    return list(from_gguf(source.metadata).eos_token_ids) if _has_tokenizer(source) else []


def _has_tokenizer(source: GGUFSource) -> bool:
    return "tokenizer.ggml.model" in source.metadata


def _from_metadata(source: GGUFSource) -> dict[str, bytes]:
    return files_of(from_gguf(source.metadata), source.config["max_position_embeddings"])


def files_of(tokenizer: Tokenizer, max_length: int) -> dict[str, bytes]:
    """A tokenizer as the files of a folder, by name. max_length: the model's context."""
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast", **tokenizer.special_tokens,
        "clean_up_tokenization_spaces": tokenizer.cleans_up_spaces, "model_max_length": max_length,
    }
    files = {"tokenizer.json": tokenizer.backend.to_str(pretty=True),
             "tokenizer_config.json": json.dumps(config, indent=2)}
    for name, template in tokenizer.chat_templates.items():
        place = "chat_template.jinja" if name == "default" else f"additional_chat_templates/{name}.jinja"
        files[place] = template
    return {name: content.encode() for name, content in files.items()}
