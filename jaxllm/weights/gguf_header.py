"""The header of a GGUF file: its metadata and where its tensors lie.

Source: the GGUF specification, https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and 3. The
``gguf`` package's own reader makes an array view for every string of the vocabulary, which takes seconds.
"""

from __future__ import annotations

import dataclasses
import math
import struct
from pathlib import Path
from typing import Any

import numpy as np

from jaxllm.errors import CheckpointError, UnsupportedModelError
from jaxllm.weights.quantized import SUPPORTED_TYPES, UNSUPPORTED_TYPES, GGUFType

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_FLOAT32, _STRING, _ARRAY = 6, 8, 9
_MAX_DIMENSIONS = 4
_MAX_DEPTH = 4  # of arrays within arrays


@dataclasses.dataclass(frozen=True, slots=True)
class GGUFTensor:
    """One tensor of a GGUF file: ``shape`` as numpy has it (slowest first), ``offset`` from the start of the file."""

    name: str
    shape: tuple[int, ...]
    kind: GGUFType
    offset: int
    nbytes: int


@dataclasses.dataclass(frozen=True)
class GGUFHeader:
    """Metadata (strings, numbers, booleans; arrays as lists of strings or numpy arrays) and tensors in file order."""

    path: Path
    metadata: dict[str, Any]
    tensors: list[GGUFTensor]


def read_header(path: Path) -> GGUFHeader:
    """Read and check a GGUF file's header; no tensor data is read.

    Raises ``CheckpointError`` if the file is not GGUF, is cut short or contradicts itself, ``UnsupportedModelError``
    for a version, byte order or tensor type that is not supported.
    """
    size = path.stat().st_size
    if size < 24:
        raise CheckpointError(f"{path} is not a GGUF file: it has only {size} bytes")
    data = np.memmap(path, np.uint8, "r")
    try:
        return _Parser(path, data).parse()
    finally:
        del data


class _Parser:
    def __init__(self, path: Path, data: np.memmap) -> None:
        self.path = path
        self.data = memoryview(data)
        self.size = len(self.data)
        self.at = 0

    def parse(self) -> GGUFHeader:
        magic = bytes(self.take(4))
        if magic != b"GGUF":
            raise CheckpointError(f"{self.path} is not a GGUF file: it begins with {magic!r} instead of b'GGUF'")
        version = self.number("I")
        if version & 0xFFFF == 0:
            raise UnsupportedModelError(f"{self.path} is a big-endian GGUF file; only little-endian ones are read")
        if version not in (2, 3):
            raise UnsupportedModelError(f"{self.path} has GGUF version {version}; versions 2 and 3 are read. "
                                        "Convert the model again with a current llama.cpp")
        tensor_count, pair_count = self.number("Q"), self.number("Q")
        metadata: dict[str, Any] = {}
        for _ in range(pair_count):
            key = self.string()
            metadata[key] = self.value(key, self.number("I"))
        places = [self.tensor() for _ in range(tensor_count)]
        return GGUFHeader(self.path, metadata, self.place(places, metadata))

    def take(self, count: int) -> memoryview:
        end = self.at + count
        if end > self.size:
            raise CheckpointError(f"{self.path} is cut short or corrupt: its header reaches byte {end}, "
                                  f"the file has {self.size}")
        part = self.data[self.at : end]
        self.at = end
        return part

    def number(self, code: str) -> Any:
        return struct.unpack("<" + code, self.take(struct.calcsize("<" + code)))[0]

    def string(self) -> str:
        # Names are UTF-8 by the specification; bytes that are not survive as surrogates rather than stop the load.
        return str(self.take(self.number("Q")), "utf-8", "surrogateescape")

    def value(self, key: str, kind: int) -> Any:
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            return self.array(key, self.number("I"), self.number("Q"), depth=1)
        if kind == _FLOAT32:
            # 1e-05 rather than 9.999999747378752e-06: the shortest decimal that is this float32.
            return float(str(np.float32(self.number("f"))))
        if kind in _SCALARS:
            return self.number(_SCALARS[kind])
        raise CheckpointError(f"{self.path}: metadata {key!r} has the unknown value type {kind}")

    def array(self, key: str, kind: int, count: int, depth: int) -> Any:
        if kind == _STRING:
            return self.strings(count)
        if kind == _ARRAY and depth < _MAX_DEPTH:
            return [self.array(key, self.number("I"), self.number("Q"), depth + 1) for _ in range(count)]
        if kind in _SCALARS:
            dtype = np.dtype(_SCALARS[kind]).newbyteorder("<")
            return np.frombuffer(self.take(count * dtype.itemsize), dtype).copy()
        raise CheckpointError(f"{self.path}: metadata {key!r} is an array of the value type {kind}, which is not read")

    def strings(self, count: int) -> list[str]:
        # A vocabulary has hundreds of thousands of strings: everything this loop needs is a local variable.
        unpack, data, at, size = struct.Struct("<Q").unpack_from, self.data, self.at, self.size
        if count * 8 > size - at:
            self.take(count * 8)
        found = []
        for _ in range(count):
            start = at + 8
            if start > size:
                break
            at = start + unpack(data, at)[0]
            if at > size:
                break
            found.append(str(data[start:at], "utf-8", "surrogateescape"))
        if len(found) < count:
            self.take(size - self.at + 1)
        self.at = at
        return found

    def tensor(self) -> tuple[str, tuple[int, ...], int, int]:
        name = self.string()
        dimensions = self.number("I")
        if dimensions > _MAX_DIMENSIONS:
            raise CheckpointError(f"{self.path}: tensor {name!r} has {dimensions} dimensions, at most 4 are possible")
        shape = tuple(reversed(struct.unpack(f"<{dimensions}Q", self.take(8 * dimensions))))
        return name, shape, self.number("I"), self.number("Q")

    def place(self, places: list[tuple[str, tuple[int, ...], int, int]], metadata: dict[str, Any]) -> list[GGUFTensor]:
        alignment = metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment < 8 or alignment % 8:
            raise CheckpointError(f"{self.path}: general.alignment={alignment!r} is not a multiple of 8")
        start = -(-self.at // alignment) * alignment
        tensors: dict[str, GGUFTensor] = {}
        for name, shape, number, offset in places:
            kind = self.kind(name, number)
            columns = shape[-1] if shape else 1
            if columns % kind.block:
                raise CheckpointError(f"{self.path}: tensor {name!r} of type {kind.name} has rows of {columns} "
                                      f"elements, which is no multiple of its blocks of {kind.block}")
            if offset % alignment:
                raise CheckpointError(f"{self.path}: tensor {name!r} starts at {offset}, off the alignment {alignment}")
            if name in tensors:
                raise CheckpointError(f"{self.path} has two tensors named {name!r}")
            nbytes = math.prod(shape[:-1]) * kind.row_bytes(columns)
            tensors[name] = GGUFTensor(name, shape, kind, start + offset, nbytes)
        self.check_whole(list(tensors.values()))
        return list(tensors.values())

    def kind(self, name: str, number: int) -> GGUFType:
        kind = SUPPORTED_TYPES.get(number)
        if kind is None:
            shown = UNSUPPORTED_TYPES.get(number, f"number {number}")
            supported = ", ".join(known.name for known in SUPPORTED_TYPES.values())
            raise UnsupportedModelError(f"{self.path}: tensor {name!r} has the type {shown}; supported: {supported}")
        return kind

    def check_whole(self, tensors: list[GGUFTensor]) -> None:
        cut = [tensor for tensor in tensors if tensor.offset + tensor.nbytes > self.size]
        if cut:
            end = max(tensor.offset + tensor.nbytes for tensor in cut)
            raise CheckpointError(f"{self.path} is cut short: it has {self.size} bytes and its tensors end at {end}; "
                                  f"{len(cut)} of {len(tensors)} are missing or incomplete, {cut[0].name!r} the first. "
                                  "Download it again")
