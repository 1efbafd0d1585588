"""``SafetensorsSource``: a Hugging Face folder with one or several safetensors files."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from jaxllm.errors import CheckpointError, UnsupportedModelError
from jaxllm.weights.convert import read_plain
from jaxllm.weights.source import ModelSource, TensorInfo

INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"
_SHARD = re.compile(r".*-(\d{5})-of-(\d{5})\.safetensors")
_BARE = "embed_tokens.weight"
_PICKLED = (".bin", ".pt", ".pth", ".ckpt")
_MAX_HEADER = 100_000_000  # bytes; the limit of the reference implementation

DTYPES: dict[str, np.dtype] = {
    "F64": np.dtype(np.float64), "F32": np.dtype(np.float32), "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn), "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
    "I64": np.dtype(np.int64), "I32": np.dtype(np.int32), "I16": np.dtype(np.int16), "I8": np.dtype(np.int8),
    "U64": np.dtype(np.uint64), "U32": np.dtype(np.uint32), "U16": np.dtype(np.uint16), "U8": np.dtype(np.uint8),
    "BOOL": np.dtype(np.bool_),
}
"""The dtypes by their names in the format."""


@dataclasses.dataclass(frozen=True, slots=True)
class Stored:
    """A tensor and where its data lie."""

    info: TensorInfo
    dtype: np.dtype
    path: Path
    offset: int


class SafetensorsSource(ModelSource):
    """A folder with ``config.json`` and its weights as safetensors, single or sharded.

    Raises ``CheckpointError`` (no or malformed ``config.json``, pickled weights only, a shard missing or cut short, an
    index that names what is not there) and ``UnsupportedModelError`` (a dtype that is not supported).
    """

    def __init__(self, path: Path, name: str | None = None) -> None:
        self.path = path
        self.name = name or path.resolve().name
        self.config = read_json(path / "config.json")
        generation = path / "generation_config.json"
        self.generation_config = read_json(generation) if generation.exists() else {}
        self._stored: dict[str, Stored] = {}
        files, placed = _weight_files(path)
        for file in files:
            for tensor, stored in _read_header(file).items():
                if placed is None or placed.get(tensor) == file.name:
                    self._stored[tensor] = stored
        absent = sorted(set(placed or ()) - set(self._stored))
        if absent:
            raise CheckpointError(f"{path / INDEX} names {len(absent)} tensors that are not in the file it gives, "
                                  f"{absent[0]!r} in {(placed or {})[absent[0]]!r} the first")
        if _BARE in self._stored:
            # Of a decoder saved without a head: its names lack what those with one begin with.
            self._stored = {f"model.{tensor}": stored for tensor, stored in self._stored.items()}
        self.tensors = {tensor: stored.info for tensor, stored in self._stored.items()}

    def dtype(self, name: str) -> np.dtype:
        return self._stored[name].dtype

    def read_rows(self, name: str, start: int, stop: int, out: np.ndarray) -> None:
        stored = self._stored[name]
        row_bytes = stored.info.nbytes // max(stored.info.rows, 1)
        read_plain(stored.path, stored.offset + start * row_bytes, stored.dtype, out)


def read_json(path: Path) -> dict[str, Any]:
    """A JSON file that holds an object, or ``CheckpointError``."""
    try:
        value = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{path.parent} has no {path.name}") from None
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise CheckpointError(f"{path} is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} holds {type(value).__name__} where a JSON object is expected")
    return value


def _weight_files(path: Path) -> tuple[list[Path], dict[str, str] | None]:
    """The safetensors files of a folder, and for each tensor the file that an index gives, if there is an index."""
    if (path / INDEX).exists():
        placed = read_json(path / INDEX).get("weight_map")
        if not isinstance(placed, dict) or not all(isinstance(file, str) for file in placed.values()):
            raise CheckpointError(f"{path / INDEX} has no 'weight_map' from tensor names to file names")
        names = sorted(set(placed.values()))
        outside = [name for name in names if Path(name).name != name]
        if outside:
            raise CheckpointError(f"{path / INDEX} names the file {outside[0]!r}, which is not in the folder itself")
        _check_present(path, names)
        return [path / name for name in names], placed
    if (path / _SINGLE).exists():
        return [path / _SINGLE], None
    found = sorted(file.name for file in path.glob("*.safetensors") if not file.name.startswith("adapter_"))
    shards = [match for match in map(_SHARD.fullmatch, found) if match]
    if shards and len({match[2] for match in shards}) == 1:
        count = int(shards[0][2])
        prefix = shards[0][0][: shards[0].start(1)]
        names = [f"{prefix}{number:05d}-of-{count:05d}.safetensors" for number in range(1, count + 1)]
        _check_present(path, names)
        return [path / name for name in names], None
    if len(found) == 1:
        return [path / found[0]], None
    if found:
        raise CheckpointError(f"{path} has several safetensors files and no {INDEX}: {', '.join(found)}")
    pickled = sorted(file.name for file in path.iterdir() if file.suffix in _PICKLED)
    if pickled:
        raise CheckpointError(pickle_message(path, pickled))
    raise CheckpointError(f"{path} has no weights: no {_SINGLE}, no {INDEX}, no other safetensors file")


def pickle_message(where: object, files: list[str]) -> str:
    """Why pickled weights are refused, and what to do."""
    return (f"{where} has its weights only as pickled files ({', '.join(files[:3])}{', ...' if files[3:] else ''}). "
            "Loading a pickle runs whatever code is in it, so they are refused. Convert them where you trust them: "
            "transformers.AutoModelForCausalLM.from_pretrained(FOLDER).save_pretrained(NEW_FOLDER) writes safetensors")


def _check_present(path: Path, names: list[str]) -> None:
    missing = [name for name in names if not (path / name).exists()]
    if missing:
        raise CheckpointError(f"{path} lacks {len(missing)} of its {len(names)} weight files: {', '.join(missing)}")


def _read_header(path: Path) -> dict[str, Stored]:
    """The tensors of one safetensors file (https://huggingface.co/docs/safetensors: 8 bytes of length, JSON, data)."""
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or 8 + length > size:
            raise CheckpointError(f"{path} is cut short or not safetensors: its header would end at byte {8 + length}, "
                                  f"the file has {size}")
        if length > _MAX_HEADER:
            raise CheckpointError(f"{path} is not safetensors: a header of {length} bytes is over {_MAX_HEADER}")
        content = file.read(length)
    try:
        header = json.loads(content)
    except ValueError as error:
        raise CheckpointError(f"{path} is not safetensors: its header is not JSON ({error})") from None
    if not isinstance(header, dict):
        raise CheckpointError(f"{path} is not safetensors: its header is not a JSON object")
    tensors = {name: _stored(path, name, entry, 8 + length) for name, entry in header.items()
               if name != "__metadata__"}
    end = max((stored.offset + stored.info.nbytes for stored in tensors.values()), default=8 + length)
    if end != size:
        raise CheckpointError(f"{path} is {'cut short' if end > size else 'corrupt'}: its tensors end at byte "
                              f"{end}, the file has {size}. Download it again")
    return tensors


def _stored(path: Path, name: str, entry: Any, start: int) -> Stored:
    try:
        kind, shape, (begin, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
        sizes = [*shape, begin, end]
    except (KeyError, TypeError, ValueError):
        raise CheckpointError(f"{path}: the header's entry for {name!r} is malformed: {entry!r}") from None
    if any(isinstance(size, bool) or not isinstance(size, int) or size < 0 for size in sizes):
        raise CheckpointError(f"{path}: the header's entry for {name!r} is malformed: {entry!r}")
    if kind not in DTYPES:
        raise UnsupportedModelError(f"{path}: tensor {name!r} has the dtype {kind!r}; "
                                    f"supported: {', '.join(DTYPES)}")
    nbytes = math.prod(shape) * DTYPES[kind].itemsize
    if end - begin != nbytes:
        raise CheckpointError(f"{path}: tensor {name!r} of shape {list(shape)} and dtype {kind} needs {nbytes} "
                              f"bytes, the header gives it {end - begin}")
    return Stored(TensorInfo(shape, kind, nbytes), DTYPES[kind], path, start + begin)
