"""``GGUFSource``: one GGUF file (or its numbered parts) as a Hugging Face style checkpoint."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np

from jaxllm.errors import CheckpointError
from jaxllm.weights.convert import CHUNK, read_plain
from jaxllm.weights.files import FileReader
from jaxllm.weights.gguf_header import GGUFHeader, GGUFTensor, read_header
from jaxllm.weights.names import architecture_of, split_layer, unpermuted_rows
from jaxllm.weights.quantized import decode, plain_dtype
from jaxllm.weights.source import ModelSource, TensorInfo

_PART = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf")
_ROPE_FACTORS = "rope_freqs.weight"


class GGUFSource(ModelSource):
    """A GGUF file; given any part of a split one, all of its parts.

    Names, shapes, the row order of query and key projections and ``config`` are those of the Hugging Face checkpoint
    that the file was made from. ``metadata`` holds the file's own key/value pairs, the tokenizer among them.

    Llama 3's long-context rotary scaling is stored as numbers by which to divide each rotary frequency:
    ``config["rope_scaling"]`` is then ``{"rope_type": "factors", "factors": [...]}``.

    Raises ``CheckpointError`` (not GGUF, cut short, a part missing, an unknown tensor) and ``UnsupportedModelError``
    (version, byte order, tensor type, architecture).
    """

    def __init__(self, path: Path, name: str | None = None) -> None:
        headers = [read_header(part) for part in _parts(path)]
        self.path = path
        self.name = name or path.stem
        self.metadata: dict[str, Any] = headers[0].metadata
        self._architecture = architecture_of(self.metadata, path)
        self._config = self._architecture.config(self.metadata)
        self._stored: dict[str, tuple[GGUFTensor, FileReader]] = {}
        self._row_order: dict[str, np.ndarray] = {}
        for header in headers:
            self._add(header)
        self.tensors = {
            name: TensorInfo(tensor.shape, tensor.kind.name, tensor.nbytes)
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
        tensor, reader = self._stored[name]
        row_bytes = tensor.nbytes // max(self.tensors[name].rows, 1)
        offset = tensor.offset + start * row_bytes
        order = self._row_order.get(name)
        if order is not None:
            if len(tensor.shape) == 1:  # a bias: its elements are what is reordered
                start, stop, row_bytes = 0, tensor.shape[0], tensor.nbytes // tensor.shape[0]
            wanted = order[start:stop]
            first = int(wanted.min())
            raw = np.empty((int(wanted.max()) + 1 - first, row_bytes), np.uint8)
            reader.read_into(tensor.offset + first * row_bytes, raw)
            decode(raw[wanted - first].reshape(-1), tensor.kind, out.reshape(-1))
            return
        plain = plain_dtype(tensor.kind)
        if plain is not None:
            read_plain(reader, offset, plain, out)
            return
        flat = out.reshape(-1)
        for at in range(0, flat.size, CHUNK):
            part = flat[at : at + CHUNK]
            raw = np.empty(tensor.kind.row_bytes(part.size), np.uint8)
            reader.read_into(offset + tensor.kind.row_bytes(at), raw)
            decode(raw, tensor.kind, part)

    def _add(self, header: GGUFHeader) -> None:
        reader = FileReader(header.path)
        for tensor in header.tensors:
            if tensor.name == _ROPE_FACTORS:
                factors = np.empty(tensor.shape, np.float32)
                read_plain(reader, tensor.offset, plain_dtype(tensor.kind) or np.dtype(np.float32), factors)
                self._config["rope_scaling"] = {"rope_type": "factors", "factors": factors.tolist()}
                continue
            pattern, layer = split_layer(tensor.name)
            if pattern not in self._architecture.tensors:
                raise CheckpointError(
                    f"{header.path} has the tensor {tensor.name!r}, which the GGUF architecture "
                    f"{self.metadata['general.architecture']!r} does not have"
                )
            name = self._architecture.tensors[pattern].format(layer)
            if name in self._stored:
                raise CheckpointError(f"{header.path} has the tensor {tensor.name!r}, as another part of the model has")
            self._stored[name] = tensor, reader
            if pattern in self._architecture.permuted:
                heads = self._config[self._architecture.permuted[pattern]]
                if not tensor.shape or tensor.shape[0] % (2 * heads):
                    raise CheckpointError(f"{header.path}: {tensor.name!r} of shape {list(tensor.shape)} does not "
                                          f"divide into {heads} heads of even size")
                self._row_order[name] = unpermuted_rows(tensor.shape[0], heads)

    def _complete_config(self) -> None:
        """Add what the tensors and the tokenizer tell, the same way for every architecture."""
        embedding = self.tensors.get("model.embed_tokens.weight")
        if embedding is None:
            raise CheckpointError(f"{self.path} has no tensor 'token_embd.weight'")
        self._config["vocab_size"] = embedding.shape[0]
        self._config["tie_word_embeddings"] = "lm_head.weight" not in self.tensors
        self._config["attention_bias"] = any(name.endswith("self_attn.q_proj.bias") for name in self.tensors)
        self._config["mlp_bias"] = any(name.endswith("mlp.up_proj.bias") for name in self.tensors)
        ids = {key: self.metadata.get(f"tokenizer.ggml.{key}_token_id") for key in ("bos", "padding")}
        ends = [self.metadata.get(f"tokenizer.ggml.{key}_token_id") for key in ("eos", "eot", "eom")]
        if ids["bos"] is not None:
            self._config["bos_token_id"] = ids["bos"]
        if ids["padding"] is not None:
            self._config["pad_token_id"] = ids["padding"]
        found = list(dict.fromkeys(end for end in ends if end is not None))
        if found:
            self._config["eos_token_id"] = found[0] if len(found) == 1 else found


def _parts(path: Path) -> list[Path]:
    """All parts of a split GGUF file, or the file itself."""
    match = _PART.fullmatch(path.name)
    if match is None:
        return [path]
    count = int(match[3])
    parts = [path.with_name(f"{match[1]}-{number:05d}-of-{count:05d}.gguf") for number in range(1, count + 1)]
    missing = [part.name for part in parts if not part.exists()]
    if missing:
        raise CheckpointError(f"{path} is one of {count} parts; missing beside it: {', '.join(missing)}")
    return parts
