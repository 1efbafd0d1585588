"""Finding and reading a model's tokenizer: Hugging Face folders, and GGUF metadata."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken

from jaxllm.errors import CheckpointError, ModelNotFoundError, UnsupportedModelError
from jaxllm.tokenization.boundaries import boundary_tokens
from jaxllm.tokenization.gguf import from_gguf
from jaxllm.tokenization.tokenizer import Tokenizer

_SLOW_FILES = ("tokenizer.model", "spiece.model", "vocab.json")
_NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")
_ADDED_TOKEN_FIELDS = ("lstrip", "rstrip", "single_word", "normalized", "special")


def load_tokenizer(source: str | Path | Mapping[str, Any]) -> Tokenizer:
    """The tokenizer of a Hugging Face folder, or of GGUF metadata (a mapping with ``tokenizer.ggml.*`` keys)."""
    return from_gguf(source) if isinstance(source, Mapping) else from_folder(source)


def from_folder(path: str | Path) -> Tokenizer:
    """The tokenizer of a local Hugging Face folder.

    ``tokenizer.json`` is read as it is; the slow formats (``tokenizer.model`` and such) are converted by transformers,
    which needs the extra ``jaxllm[transformers]``. ``tokenizer_config.json``, ``special_tokens_map.json``,
    ``generation_config.json`` (end-of-sequence ids) and chat template files are honoured where they exist.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise ModelNotFoundError(f"no folder at {str(folder)!r} to read a tokenizer from")
    config = _read_json(folder / "tokenizer_config.json")
    special_map = _read_json(folder / "special_tokens_map.json")
    defaults: Mapping[str, str] = {}
    if (folder / "tokenizer.json").is_file():
        backend = _read_backend(folder / "tokenizer.json")
        _add_special_tokens(backend, config, special_map)
    elif any((folder / name).is_file() for name in _SLOW_FILES):
        backend, defaults = _converted_backend(folder)
    else:
        looked_for = ", ".join(("tokenizer.json", *_SLOW_FILES))
        raise ModelNotFoundError(f"no tokenizer in {str(folder)!r}: looked for {looked_for}")
    named = _named_tokens(config, special_map, defaults)
    bos_id, eos_id, pad_id = (_token_id(backend, named, name) for name in ("bos_token", "eos_token", "pad_token"))
    if backend.post_processor is None:
        # As in transformers 5, a post-processor in tokenizer.json decides, whatever the flags say.
        backend.post_processor = boundary_tokens(
            bos_id if config.get("add_bos_token", False) else None,
            eos_id if config.get("add_eos_token", False) else None,
        )
    return Tokenizer(
        backend,
        bos_token_id=bos_id,
        eos_token_ids=_end_ids(eos_id, _read_json(folder / "generation_config.json")),
        pad_token_id=pad_id,
        special_tokens=named,
        chat_template=_chat_templates(folder, config),
        # transformers never cleans up after BPE: it would remove spaces that the model wrote.
        clean_up_tokenization_spaces=bool(config.get("clean_up_tokenization_spaces", False))
        and not isinstance(backend.model, tokenizers.models.BPE),
    )


def _read_json(path: Path) -> dict[str, Any]:
    """The file's object, empty when there is no such file."""
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CheckpointError(f"{path} is not valid JSON: {error}") from None
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} holds a {type(content).__name__}, not an object")
    return content


def _read_backend(path: Path) -> tokenizers.Tokenizer:
    try:
        return tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # tokenizers raises bare Exception
        raise CheckpointError(f"{path} is not a tokenizer that the tokenizers library reads: {error}") from None


def _converted_backend(folder: Path) -> tuple[tokenizers.Tokenizer, Mapping[str, str]]:
    """The converted tokenizer, and the special tokens that its class has by default."""
    try:
        import transformers
    except ImportError:
        raise UnsupportedModelError(
            f"{str(folder)!r} has no tokenizer.json, only a format that transformers converts: "
            "pip install 'jaxllm[transformers]'"
        ) from None
    try:
        converted = transformers.AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
        return converted.backend_tokenizer, converted.special_tokens_map
    except Exception as error:
        raise UnsupportedModelError(
            f"transformers could not convert the tokenizer in {str(folder)!r}: {type(error).__name__}: {error}"
        ) from error


def _add_special_tokens(
    backend: tokenizers.Tokenizer, config: Mapping[str, Any], special_map: Mapping[str, Any]
) -> None:
    """Add what the other files know of special tokens and ``tokenizer.json`` does not, as transformers does.

    ``added_tokens_decoder`` of the configuration has the last word on a token's flags; tokens with a role (BOS, EOS
    and so on) are special even where the vocabulary holds them as ordinary ones.
    """
    decoder = config.get("added_tokens_decoder", {})
    if not isinstance(decoder, Mapping) or not all(
            str(key).isdecimal() and isinstance(spec, Mapping) and isinstance(spec.get("content"), str)
            for key, spec in decoder.items()):
        raise CheckpointError("tokenizer_config.json has an added_tokens_decoder that does not map ids to tokens")
    specs = sorted(decoder.items(), key=lambda item: int(item[0]))
    flags = [{name: spec[name] for name in _ADDED_TOKEN_FIELDS if name in spec} for _, spec in specs]
    backend.add_tokens([AddedToken(spec["content"], **kept) for (_, spec), kept in zip(specs, flags, strict=True)])
    for key, spec in specs:
        given = backend.token_to_id(spec["content"])
        if given != int(key):
            raise CheckpointError(
                f"tokenizer_config.json gives the token {spec['content']!r} the id {key}, but the vocabulary of "
                f"tokenizer.json makes it {given}"
            )
    added = {token.content for token in backend.get_added_tokens_decoder().values()}
    backend.add_special_tokens(
        [
            AddedToken(text, special=True)
            for text in _named_tokens(config, special_map).values()
            if text not in added and backend.token_to_id(text) is not None
        ]
    )


def _named_tokens(*sources: Mapping[str, Any]) -> dict[str, str]:
    """``bos_token`` and such as text; earlier sources win."""
    named: dict[str, str] = {}
    for source in sources:
        for name in _NAMED_TOKENS:
            token = source.get(name)
            text = token.get("content") if isinstance(token, Mapping) else token
            if isinstance(text, str):
                named.setdefault(name, text)
    return named


def _token_id(backend: tokenizers.Tokenizer, named: Mapping[str, str], name: str) -> int | None:
    if name not in named:
        return None
    token_id = backend.token_to_id(named[name])
    # A padding token invented for training is common, and nothing here pads.
    if token_id is None and name != "pad_token":
        raise CheckpointError(f"the tokenizer's {name} {named[name]!r} is not in its vocabulary")
    return token_id


def _end_ids(eos_id: int | None, generation_config: Mapping[str, Any]) -> list[int]:
    listed = generation_config.get("eos_token_id", [])
    more = [listed] if isinstance(listed, int) else list(listed or [])
    return ([] if eos_id is None else [eos_id]) + more


def _chat_templates(folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """Templates by name. Files win over the configuration, as in transformers."""
    templates: dict[str, str] = {}
    configured = config.get("chat_template")
    if isinstance(configured, str):
        templates["default"] = configured
    elif isinstance(configured, list):
        if not all(isinstance(entry, Mapping) and isinstance(entry.get("name"), str)
                   and isinstance(entry.get("template"), str) for entry in configured):
            raise CheckpointError("tokenizer_config.json has a chat_template that does not name its templates")
        templates.update((entry["name"], entry["template"]) for entry in configured)
    if (folder / "chat_template.jinja").is_file():
        templates["default"] = (folder / "chat_template.jinja").read_text(encoding="utf-8")
    for path in sorted((folder / "additional_chat_templates").glob("*.jinja")):
        templates[path.stem] = path.read_text(encoding="utf-8")
    return templates
