"""``quantize``: any model that ``LLM`` loads, as a quantized checkpoint."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from jaxllm.errors import ParameterError
from jaxllm.models.heads import SCORE
from jaxllm.quantization.gguf_file import FILE_TYPES, write_gguf_file
from jaxllm.quantization.int8_folder import KIND as INT8
from jaxllm.quantization.int8_folder import write_int8_folder
from jaxllm.quantization.result import Quantized
from jaxllm.weights import ModelSource, resolve
from jaxllm.weights.live import TreeSource

KINDS = (INT8, *FILE_TYPES)
"""What matrices can be written in."""


def quantize(
    model: str | os.PathLike[str] | ModelSource,
    target: str | os.PathLike[str],
    to: str,
    *,
    revision: str | None = None,
    overwrite: bool = False,
    progress: Callable[[int], None] = lambda nbytes: None,
) -> Quantized:
    """Write a model with its matrices in another type.

    model: as ``LLM`` takes it: hub id, folder, ``.gguf`` file or packaged name, or what ``jaxllm.weights.resolve``
        returns. revision: branch, tag or commit of a hub model.
    target: with "int8" a folder, which vLLM and transformers read as well (``compressed-tensors``, weights of 8 bits
        beside activations of 16; embedding and head stay as they are); else a ``.gguf`` file.
    to: of ``KINDS``, in any letter case. overwrite: replace what is there.
    progress: called after each tensor, with the bytes that it had before.

    The target is there when it is complete, or not at all.

    Raises ``ParameterError`` for another kind and for a target that is not allowed, ``CheckpointError`` for weights
    that are infinite or no numbers, ``UnsupportedModelError`` for what the target's format cannot say of the model, and
    ``CapacityError`` where the disk has no room for it.
    """
    kinds = {kind.lower(): kind for kind in KINDS}
    if not isinstance(to, str) or to.lower() not in kinds:
        raise ParameterError("to", to, " or ".join(KINDS))
    if not isinstance(target, str | os.PathLike) or not os.fspath(target):
        raise ParameterError("target", target, "the path of a folder for int8, or of a .gguf file for other kinds")
    kind, path = kinds[to.lower()], Path(target).expanduser()
    if (path.suffix.lower() == ".gguf") == (kind == INT8):
        raise ParameterError("target", str(path), "a folder, as int8 is no type of .gguf files" if kind == INT8 else
                             f"a name that ends in .gguf for {kind}")
    source = model if isinstance(model, ModelSource) else resolve(model, revision)
    if isinstance(source, TreeSource):
        raise ParameterError("model", source.name, "safetensors or a .gguf file, not a folder of Orbax: its matrices "
                             "are quantized while it is loaded, with LLM(quantization='int8')")
    if SCORE in source.tensors:
        raise ParameterError("model", source.name, f"a language model, as {SCORE} would be left out of the copy")
    if kind == INT8:
        return write_int8_folder(source, path, overwrite=overwrite, progress=progress)
    return write_gguf_file(source, path, kind, overwrite=overwrite, progress=progress)
