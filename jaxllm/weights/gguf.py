"""``GGUFSource``: one GGUF file (or its numbered parts) as a Hugging Face style checkpoint."""

from __future__ import annotations

import dataclasses
import math
import re
from pathlib import Path
from typing import Any

import numpy as np

from jaxllm.errors import CheckpointError, UnsupportedModelError
from jaxllm.weights.convert import cast, read_plain
from jaxllm.weights.files import open_unbuffered, read_into
from jaxllm.weights.gguf_header import GGUFHeader, GGUFTensor, read_header
from jaxllm.weights.names import architecture_of, end_ids, split_layer, unpermuted_rows
from jaxllm.weights.quantized import decode, elements_at_once, plain_dtype
from jaxllm.weights.source import ModelSource, TensorInfo

_PART = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf")
_ROPE_DIVISORS = "rope_freqs.weight"
_LONGROPE_FACTORS = {"rope_factors_long.weight": "long_factor", "rope_factors_short.weight": "short_factor"}


class GGUFSource(ModelSource):
    """A GGUF file; given any part of a split one, all of its parts.

    Names, shapes, norms, the row order of query and key projections and ``config`` are those of the Hugging Face
    checkpoint that the file was made from. ``metadata`` holds the file's own key/value pairs, the tokenizer among them.

    Llama 3's long-context rotary scaling is stored as numbers by which to divide each rotary frequency:
    ``config["rope_frequency_divisors"]``, present only then. Phi-3's, for long and for short texts, are in
    ``config["rope_scaling"]``, as in Hugging Face's.

    Raises ``CheckpointError`` (not GGUF, cut short, a part missing, an unknown tensor) and ``UnsupportedModelError``
    (version, byte order, tensor type, architecture).
    """

    def __init__(self, path: Path, name: str | None = None) -> None:
        headers = [read_header(part) for part in _parts(path)]
        self.path = path
        self.name = name or path.stem
        self.metadata: dict[str, Any] = headers[0].metadata
        self._architecture = architecture_of(self.metadata, path)
        try:
            self._config = {"architectures": [self._architecture.name], **self._architecture.config(self.metadata)}
        except (CheckpointError, UnsupportedModelError) as error:
            raise type(error)(f"{path}: {error}") from None
        self._stored: dict[str, tuple[GGUFTensor, Path]] = {}
        self._row_order: dict[str, np.ndarray] = {}
        self._raised: set[str] = set()
        self._transposed: set[str] = set()
        for header in headers:
            self._add(header)
        self.tensors = {
            name: TensorInfo(tensor.shape[::-1] if name in self._transposed else tensor.shape, tensor.kind.name,
                             tensor.nbytes)
            for name, (tensor, _) in self._stored.items()
        }
        self._complete_config()
        self.config = self._config
        self.generation_config = {
            key: self._config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id") if key in self._config
        }

    def dtype(self, name: str) -> np.dtype:
        return plain_dtype(self._stored[name][0].kind) or np.dtype(np.float32)

    def read_rows(self, name: str, start: int, stop: int, out: np.ndarray) -> None:
        tensor, path = self._stored[name]
        if name in self._raised:
            self._read_lowered(name, out)
            return
        if name in self._row_order:
            self._read_reordered(name, start, stop, out)
            return
        if name in self._transposed:
            self._read_transposed(name, start, stop, out)
            return
        offset = tensor.offset + start * (tensor.nbytes // max(self.tensors[name].rows, 1))
        plain = plain_dtype(tensor.kind)
        if plain is not None:
            read_plain(path, offset, plain, out)
            return
        flat = out.reshape(-1)
        step = elements_at_once(tensor.kind, out.dtype)
        raw = np.empty(tensor.kind.row_bytes(min(step, flat.size)), np.uint8)
        with open_unbuffered(path) as file:
            for at in range(0, flat.size, step):
                part = flat[at : at + step]
                stored = raw[: tensor.kind.row_bytes(part.size)]
                read_into(file, offset + tensor.kind.row_bytes(at), stored)
                decode(stored, tensor.kind, part)

    def _read_lowered(self, name: str, out: np.ndarray) -> None:
        """``read_rows`` for a vector that the file has with 1 added: in float32, where that is undone exactly."""
        tensor, path = self._stored[name]
        raw, values = np.empty(tensor.nbytes, np.uint8), np.empty(tensor.shape, np.float32)
        with open_unbuffered(path) as file:
            read_into(file, tensor.offset, raw)
        decode(raw, tensor.kind, values)
        values -= 1
        cast(values, out)

    def _read_transposed(self, name: str, start: int, stop: int, out: np.ndarray) -> None:
        """``read_rows`` for columns of the file's matrix, all of which is decoded for it."""
        tensor, path = self._stored[name]
        raw, values = np.empty(tensor.nbytes, np.uint8), np.empty(tensor.shape, self.dtype(name))
        with open_unbuffered(path) as file:
            read_into(file, tensor.offset, raw)
        decode(raw, tensor.kind, values.reshape(-1))
        cast(values.T[start:stop], out)

    def _read_reordered(self, name: str, start: int, stop: int, out: np.ndarray) -> None:
        """``read_rows`` for rows that lie in another order; they are put in order while still quantized."""
        tensor, _ = self._stored[name]
        if len(tensor.shape) == 1:  # a bias: its elements are what is reordered
            start, stop = 0, tensor.shape[0]
        raw = np.empty((stop - start, tensor.nbytes // tensor.shape[0]), np.uint8)
        self.read_stored(name, start, stop, raw)
        decode(raw.reshape(-1), tensor.kind, out.reshape(-1))

    def read_stored(self, name: str, start: int, stop: int, out: np.ndarray) -> None:
        tensor, path = self._stored[name]
        row_bytes = tensor.nbytes // tensor.shape[0]
        wanted = self._row_order[name][start:stop] if name in self._row_order else None
        first, last = (start, stop) if wanted is None else (int(wanted.min()), int(wanted.max()) + 1)
        raw = out if wanted is None else np.empty((last - first, row_bytes), np.uint8)
        with open_unbuffered(path) as file:
            read_into(file, tensor.offset + first * row_bytes, raw)
        if wanted is not None:
            np.take(raw, wanted - first, axis=0, out=out)

    def _add(self, header: GGUFHeader) -> None:
        for tensor in header.tensors:
            if tensor.name == _ROPE_DIVISORS:
                self._config["rope_frequency_divisors"] = _numbers(header, tensor)
                continue
            if tensor.name in _LONGROPE_FACTORS:
                scaling = self._config["rope_scaling"] or {"rope_type": "longrope"}
                self._config["rope_scaling"] = scaling | {_LONGROPE_FACTORS[tensor.name]: _numbers(header, tensor)}
                continue
            pattern, layer = split_layer(tensor.name)
            if pattern not in self._architecture.tensors:
                raise CheckpointError(
                    f"{header.path} has the tensor {tensor.name!r}, which the GGUF architecture "
                    f"{self.metadata['general.architecture']!r} does not have"
                )
            name = self._architecture.tensors[pattern].format(layer)
            first = name.replace("*", "0")
            if first in self._stored:
                raise CheckpointError(f"{header.path} has the tensor {tensor.name!r}, as another part of the model has")
            if first != name:
                self._add_experts(name, tensor, header.path)
                continue
            self._stored[name] = tensor, header.path
            if pattern in self._architecture.raised:
                self._raised.add(name)
            if pattern in self._architecture.transposed:
                self._transposed.add(name)
            if pattern in self._architecture.permuted:
                heads = self._config[self._architecture.permuted[pattern]]
                if not tensor.shape or tensor.shape[0] == 0 or tensor.shape[0] % (2 * heads):
                    raise CheckpointError(f"{header.path}: {tensor.name!r} of shape {list(tensor.shape)} does not "
                                          f"divide into {heads} heads of even size")
                self._row_order[name] = unpermuted_rows(tensor.shape[0], heads)

    def _add_experts(self, name: str, tensor: GGUFTensor, path: Path) -> None:
        """One tensor for each expert, whose number takes the place of ``*``, in place of one that holds all of them."""
        count = tensor.shape[0]
        if len(tensor.shape) != 3 or count == 0:
            raise CheckpointError(f"{path}: {tensor.name!r} of shape {list(tensor.shape)} holds no experts' matrices")
        nbytes = tensor.nbytes // count
        for expert in range(count):
            each = dataclasses.replace(tensor, shape=tensor.shape[1:], offset=tensor.offset + expert * nbytes,
                                       nbytes=nbytes)
            self._stored[name.replace("*", str(expert))] = each, path

    def _complete_config(self) -> None:
        """Add what the tensors and the tokenizer tell, the same way for every architecture."""
        embedding = self.tensors.get(self._architecture.tensors["token_embd.weight"])
        if embedding is None or len(embedding.shape) != 2:
            raise CheckpointError(f"{self.path} has no tensor 'token_embd.weight' with two dimensions")
        self._config["vocab_size"] = embedding.shape[0]
        self._config["tie_word_embeddings"] = "lm_head.weight" not in self.tensors
        self._config["attention_bias"] = any(name.endswith("self_attn.q_proj.bias") for name in self.tensors)
        self._config["mlp_bias"] = any(name.endswith("mlp.up_proj.bias") for name in self.tensors)
        for key, theirs in (("bos_token_id", "bos"), ("pad_token_id", "padding")):
            number = self.metadata.get(f"tokenizer.ggml.{theirs}_token_id")
            if number is not None:
                self._config[key] = number
        ends = end_ids(self.metadata)
        if ends:
            self._config["eos_token_id"] = ends[0] if len(ends) == 1 else ends


def _numbers(header: GGUFHeader, tensor: GGUFTensor) -> list[float]:
    raw, numbers = np.empty(tensor.nbytes, np.uint8), np.empty(math.prod(tensor.shape), np.float32)
    with open_unbuffered(header.path) as file:
        read_into(file, tensor.offset, raw)
    decode(raw, tensor.kind, numbers)
    return numbers.tolist()


def _parts(path: Path) -> list[Path]:
    """All parts of a split GGUF file in order, or the file itself."""
    match = _PART.fullmatch(path.name)
    if match is None:
        return [path]
    count = int(match[3])
    parts = [path.with_name(f"{match[1]}-{number:05d}-of-{count:05d}.gguf") for number in range(1, count + 1)]
    missing = [part.name for part in parts if not part.exists()]
    if missing:
        raise CheckpointError(f"{path} is one of {count} parts; missing beside it: {', '.join(missing)}")
    return parts
