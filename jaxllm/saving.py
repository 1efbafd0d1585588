"""``save_pretrained``: the model of an ``LLM``, with the parameters that it has now, as a Hugging Face folder."""

from __future__ import annotations

import os
from pathlib import Path

from jaxllm.conversion import configuration, write_files
from jaxllm.errors import ParameterError
from jaxllm.models.model import Params
from jaxllm.origin import Origin
from jaxllm.quantities import parse_bytes
from jaxllm.quantization.int8_folder import REPLACEABLE
from jaxllm.quantization.output import check_target, written_whole
from jaxllm.quantization.safetensors_writer import SHARD_BYTES, write_shards
from jaxllm.quantization.tokenizer_files import files_of, tokenizer_files
from jaxllm.weights.checkpoint_tensors import checkpoint_tensors
from jaxllm.weights.live import LiveParams


def save_pretrained(origin: Origin, params: Params, folder: str | os.PathLike[str], *,
                    max_shard_size: int | str = SHARD_BYTES, overwrite: bool = False) -> None:
    """See ``LLM.save_pretrained``."""
    if not isinstance(folder, str | os.PathLike) or not os.fspath(folder):
        raise ParameterError("folder", folder, "the path of a folder")
    shard_bytes = parse_bytes("max_shard_size", max_shard_size)
    opened, model = origin.opened, origin.opened.model
    if opened.head != "language model":
        raise ParameterError("model", opened.head, "a language model, as another head would be left out of the copy")
    source = origin.source()
    if isinstance(source, LiveParams) and source.decoder is not None:
        raise ParameterError("config", type(source.decoder), "for save_pretrained, a Hugging Face config in "
                             "from_params: config.json cannot be made of a DecoderConfig")
    target = Path(folder).expanduser()
    check_target(target, [source.path], overwrite=overwrite, replaceable=REPLACEABLE, name="folder")
    tensors = checkpoint_tensors(model, opened.family, params, source.tensors)
    files = configuration(source, model.dtype)
    if origin.tokenizer is not None:
        files |= files_of(origin.tokenizer, model.config.max_position_embeddings)
    elif not isinstance(source, LiveParams):
        files |= tokenizer_files(source)
    with written_whole(target, sum(tensor.nbytes for tensor in tensors) + sum(map(len, files.values()))) as partial:
        write_files(partial, files)
        write_shards(partial, tensors, shard_bytes)
