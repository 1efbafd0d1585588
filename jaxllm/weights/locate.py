"""``resolve``: what a user names as a model, to the checkpoint that is meant."""

from __future__ import annotations

import os
import re
from pathlib import Path

from jaxllm.errors import CheckpointError, ModelNotFoundError, ParameterError
from jaxllm.weights.compressed_tensors import CompressedTensorsSource, is_compressed
from jaxllm.weights.configuration import ConfigSource
from jaxllm.weights.fp8 import Fp8Source, is_fp8
from jaxllm.weights.gguf import GGUFSource
from jaxllm.weights.hub import download, download_configuration
from jaxllm.weights.mxfp4 import Mxfp4Source, is_mxfp4
from jaxllm.weights.packaged import find_packaged, packaged_file
from jaxllm.weights.safetensors import SafetensorsSource, read_json
from jaxllm.weights.source import ModelSource

_ORBAX_MARK = "_METADATA"
_LATER_PART = re.compile(r"-(?!00001-)\d{5}-of-\d{5}\.gguf$")


def resolve(model: str | os.PathLike[str], revision: str | None = None, *, download_weights: bool = True
            ) -> ModelSource:
    """Find a model and read its headers; hub models are downloaded first if they are not in the cache.

    model: in this order, a folder or ``.gguf`` file that exists; the name of a packaged model, in any letter case; a
        hub id ``org/name``, or ``org/name:FILE`` for a GGUF file of a hub repository, where FILE is its name or a part
        that only one has (``org/name:Q4_K_M``).
    revision: branch, tag or commit of a hub repository.
    download_weights: without, a hub model whose weights are not in the cache is a ``ConfigSource``; a GGUF file, which
        is one with its weights, is downloaded all the same.

    Raises ``ModelNotFoundError``, ``CheckpointError``, ``UnsupportedModelError``.
    """
    text = os.fspath(model) if isinstance(model, str | os.PathLike) else None
    if not isinstance(text, str) or not text.strip():
        raise ParameterError("model", model, "a hub id, a folder, a .gguf file or the name of a packaged model")
    if not isinstance(revision, str | None):
        raise ParameterError("revision", revision, "a branch, tag or commit, or None")
    path = Path(os.path.expanduser(text))
    exists = os.path.exists(path)  # unlike Path.exists, also for names too long to be a file's
    packaged = find_packaged(text) if not exists and isinstance(model, str) else None
    if exists or packaged is not None:
        if revision is not None:
            raise ParameterError("revision", revision, f"only for hub ids, and {text!r} is not one")
        return open_path(path) if packaged is None else GGUFSource(packaged_file(packaged), packaged.name)
    if not isinstance(model, str) or _looks_like_path(text):
        raise ModelNotFoundError(f"no such file or folder: {_short(text)!r}")
    if not download_weights and ":" not in text:
        folder = download_configuration(text, revision)
        if (folder / "config.json").exists() and not any(folder.glob("*.safetensors")):
            return ConfigSource(folder, text)
    return open_path(download(text, revision), name=text)


def open_path(path: Path, name: str | None = None) -> ModelSource:
    """The checkpoint at a path that exists: a GGUF file, a folder of Hugging Face's or Orbax's, or one with one GGUF
    model."""
    try:
        return _open(path, name)
    except OSError as error:
        raise CheckpointError(f"{error.filename or path} cannot be read: {error.strerror or error}") from error


def _open(path: Path, name: str | None) -> ModelSource:
    if path.is_file():
        if path.suffix.lower() != ".gguf":
            raise CheckpointError(f"{path} is not a model that can be read: give a .gguf file, or the folder that "
                                  "holds config.json and the safetensors files")
        return GGUFSource(path, name)
    if not any(path.glob("*.safetensors*")):
        tree = orbax_tree(path)
        if tree is not None:
            # Here, as it brings JAX, which reading the other headers can do without.
            from jaxllm.weights.orbax import OrbaxSource

            return OrbaxSource(path, tree, name)
        found = sorted(file for file in path.glob("*.gguf") if not _LATER_PART.search(file.name))
        if len(found) == 1:
            return GGUFSource(found[0], name)
        if found:
            raise CheckpointError(f"{path} has several GGUF files, give one: {', '.join(file.name for file in found)}")
    return _kind_of(path)(path, name)


def _kind_of(folder: Path) -> type[SafetensorsSource]:
    """How a folder of Hugging Face's keeps its matrices."""
    config = read_json(folder / "config.json") if (folder / "config.json").exists() else {}
    if is_compressed(config):
        return CompressedTensorsSource
    if is_fp8(config):
        return Fp8Source
    return Mxfp4Source if is_mxfp4(config) else SafetensorsSource


def orbax_tree(folder: Path) -> Path | None:
    """Where the tree of parameters lies in a folder of Orbax: itself, or a folder in it, which is called "params" where
    there are several trees. ``None`` where there is none; ``CheckpointError`` where it cannot be told."""
    if (folder / _ORBAX_MARK).is_file():
        return folder
    found = {mark.parent.name: mark.parent for mark in sorted(folder.glob(f"*/{_ORBAX_MARK}"))}
    if "params" in found or not found:
        return found.get("params")
    if len(found) > 1:
        raise CheckpointError(f"{folder} has several trees of Orbax, of which none is called params: "
                              + ", ".join(found))
    return next(iter(found.values()))


def _short(text: str) -> str:
    return text if len(text) <= 200 else f"{text[:200]}..."


def _looks_like_path(text: str) -> bool:
    repo, _, _ = text.partition(":")
    rooted = text.startswith(("/", ".", "~")) or text[1:3] == ":/"
    return rooted or "\\" in text or repo.count("/") > 1 or repo.endswith((".gguf", ".safetensors", "/"))
