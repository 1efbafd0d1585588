"""Checkpoints in the ``compressed-tensors`` format whose matrices are signed bytes with a factor per row.

Source: https://github.com/vllm-project/compressed-tensors, ``quantization/quant_args.py`` (what the entries of
``quantization_config`` mean) and ``compressors`` (how tensors are stored): "pack-quantized" keeps ``weight_packed``,
int32 [out, in / 4] whose bytes, the lowest first, are the numbers plus 128, zeros at the end of a row; "int-quantized"
and "naive-quantized" keep ``weight``, int8. Beside either is ``weight_scale`` [out, 1].
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from jaxllm.errors import CheckpointError, UnsupportedModelError
from jaxllm.weights.convert import cast, read_plain
from jaxllm.weights.files import open_unbuffered, read_into
from jaxllm.weights.int8 import INT8
from jaxllm.weights.safetensors import SafetensorsSource, Stored
from jaxllm.weights.source import TensorInfo

METHOD = "compressed-tensors"
PACKED = "pack-quantized"
FORMATS = (PACKED, "int-quantized", "naive-quantized")
CONFIG_KEYS = ("quantization_config", "compression_config")
"""Where a ``config.json`` says how it is quantized; the second one is older."""

_WEIGHTS: dict[str, tuple[Any, ...]] = {
    "num_bits": (8,), "type": ("int",), "symmetric": (True,), "strategy": ("channel",), "dynamic": (False,),
    "actorder": (None, False, "weight", "static"), "group_size": (None, -1), "block_structure": (None,),
}
"""What the weights of a group may be; the first is what a missing entry means."""
_NOTHING_ELSE = ("input_activations", "output_activations")
_PRESETS = {"W8A16": dict.fromkeys(_NOTHING_ELSE) | {"weights": {"num_bits": 8, "strategy": "channel"}}}
"""Groups that are given by a name and a list of targets."""


class CompressedTensorsSource(SafetensorsSource):
    """A Hugging Face folder with matrices in int8, which appear under the names and shapes of the plain ones.

    ``config`` is that of the model before it was quantized. Matrices that the checkpoint leaves as they were are plain.

    Raises ``UnsupportedModelError`` for other quantizations, ``CheckpointError`` for tensors that do not fit together.
    """

    quantization = "int8"

    def __init__(self, path: Path, name: str | None = None) -> None:
        super().__init__(path, name)
        self.config = plain_config(self.config, path / "config.json")
        self._int8: dict[str, tuple[TensorInfo, Stored, Stored]] = {}
        self._int8 = dict(self._matrices())
        if not self._int8:
            raise CheckpointError(f"{path / 'config.json'} says that the model is quantized, and no tensor is")
        used = {part for name in self._int8 for part in _parts_of(name)}
        plain = {name: info for name, info in self.tensors.items() if name not in used}
        self.tensors = plain | {name: info for name, (info, *_) in self._int8.items()}

    def dtype(self, name: str) -> np.dtype:
        return np.dtype(np.float32) if name in self._int8 else super().dtype(name)

    def read_rows(self, name: str, start: int, stop: int, out: np.ndarray) -> None:
        if name not in self._int8:
            super().read_rows(name, start, stop, out)
            return
        codes, scale = np.empty(out.shape, np.uint8), np.empty(len(out), np.float32)
        self.read_int8(name, start, stop, codes, scale)
        cast(codes.view(np.int8) * scale[:, None], out)

    def read_int8(self, name: str, start: int, stop: int, codes: np.ndarray, scale: np.ndarray) -> None:
        if name not in self._int8:
            super().read_int8(name, start, stop, codes, scale)
            return
        _, stored, factors = self._int8[name]
        row_bytes = stored.info.nbytes // stored.info.rows
        columns = codes.shape[1]
        raw = codes if row_bytes == columns else np.empty((stop - start, row_bytes), np.uint8)
        with open_unbuffered(stored.path) as file:
            read_into(file, stored.offset + start * row_bytes, raw)
        if stored.info.dtype == "I32":
            np.bitwise_xor(raw[:, :columns], 128, out=codes)
        read_plain(factors.path, factors.offset + start * factors.dtype.itemsize, factors.dtype, scale)
        if not np.isfinite(scale).all():
            raise CheckpointError(f"{self.path}: {name + '_scale'!r} holds numbers that are infinite or no numbers")

    def _matrices(self) -> Iterator[tuple[str, tuple[TensorInfo, Stored, Stored]]]:
        """What is in int8: the plain name, what it appears as, where its codes and its factors lie."""
        for name, codes in self._stored.items():
            module, _, leaf = name.rpartition(".")
            if leaf == "weight_packed":
                if f"{module}.weight" in self._stored:
                    raise CheckpointError(f"{self.path}: {name!r} and {module + '.weight'!r} are both there; one is "
                                          "needed")
                shape = self._packed_shape(module, codes)
            elif leaf == "weight" and codes.info.dtype == "I8":
                shape = codes.info.shape
            else:
                continue
            if len(shape) != 2 or not all(shape):
                raise CheckpointError(f"{self.path}: {name!r} of shape {list(shape)} is no matrix")
            factors = self._stored.get(f"{module}.weight_scale")
            if factors is None or factors.info.shape not in ((shape[0], 1), (shape[0],)) \
                    or factors.info.dtype not in ("F32", "F16", "BF16"):
                found = "none" if factors is None else f"{factors.info.dtype} {list(factors.info.shape)}"
                raise CheckpointError(f"{self.path}: {name!r} needs {module + '.weight_scale'!r}, floating-point "
                                      f"numbers of shape {[shape[0], 1]}; there is {found}")
            nbytes = codes.info.nbytes + factors.info.nbytes
            yield f"{module}.weight", (TensorInfo(shape, INT8, nbytes), codes, factors)

    def _packed_shape(self, module: str, codes: Stored) -> tuple[int, ...]:
        """The matrix's own shape, which is kept beside its packed bytes."""
        name = f"{module}.weight_shape"
        if name not in self._stored or math.prod(self._stored[name].info.shape) != 2:
            raise CheckpointError(f"{self.path}: {module + '.weight_packed'!r} needs {name!r}, two integers")
        rows, columns = map(int, self.read(name).reshape(-1))
        if codes.info.dtype != "I32" or codes.info.shape != (rows, -(-columns // 4)) or rows < 1:
            raise CheckpointError(f"{self.path}: {module + '.weight_packed'!r} is {codes.info.dtype} "
                                  f"{list(codes.info.shape)}, which does not fit {name!r}, {[rows, columns]}")
        return rows, columns


def is_compressed(config: Mapping[str, Any]) -> bool:
    """Whether a ``config.json`` says that the checkpoint is in this format, supported or not."""
    return any(isinstance(config.get(key), Mapping) and config[key].get("quant_method") == METHOD
               for key in CONFIG_KEYS)


def plain_config(config: Mapping[str, Any], where: object) -> dict[str, Any]:
    """A ``config.json`` in this format without what it says of quantization.

    Raises ``UnsupportedModelError`` unless that is int8 of the weights alone, symmetric, each row with a factor.
    """
    for key in CONFIG_KEYS:
        if config.get(key):
            _check(config[key], f"{where}: {key}")
    return {key: value for key, value in config.items() if key not in CONFIG_KEYS}


def quantization_config(ignore: list[str]) -> dict[str, Any]:
    """What a ``config.json`` says of matrices in int8. ignore: the modules that are not."""
    weights = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel", "group_size": None,
               "block_structure": None, "dynamic": False, "actorder": None, "observer": "minmax",
               "observer_kwargs": {}}
    group = {"targets": ["Linear"], "weights": weights, "input_activations": None, "output_activations": None,
             "format": PACKED}
    return {"quant_method": METHOD, "format": PACKED, "quantization_status": "compressed", "ignore": ignore,
            "config_groups": {"group_0": group}, "kv_cache_scheme": None, "global_compression_ratio": None}


def _parts_of(name: str) -> Iterator[str]:
    module = name.rpartition(".")[0]
    return (f"{module}.{leaf}" for leaf in ("weight", "weight_packed", "weight_scale", "weight_shape"))


def _check(found: Any, where: str) -> None:
    """Refuse by name what cannot be computed with as it is stored."""
    if not isinstance(found, Mapping):
        raise CheckpointError(f"{where} is {found!r}; an object is needed")
    groups = found.get("config_groups")
    if not isinstance(groups, Mapping) or not groups:
        raise CheckpointError(f"{where}.config_groups is {groups!r}; an object with a group or more is needed")
    _expect(found, "format", (PACKED, *FORMATS), where)
    for name in ("kv_cache_scheme", "transform_config"):
        if found.get(name):
            _refuse(found, name, "null", where)
    sparsity = found.get("sparsity_config")
    if sparsity and not (isinstance(sparsity, Mapping) and sparsity.get("format", "dense") == "dense"):
        _refuse(found, "sparsity_config", "null", where)
    for name, group in groups.items():
        place = f"{where}.config_groups.{name}"
        if isinstance(group, list) and str(name).upper() in _PRESETS:
            group = _PRESETS[str(name).upper()]
        if not isinstance(group, Mapping) or not isinstance(group.get("weights"), Mapping):
            raise UnsupportedModelError(f"{place} is {group!r:.200}, which is not supported: an object with weights, "
                                        f"or one of the names {', '.join(_PRESETS)}, is")
        for key in _NOTHING_ELSE:
            if group.get(key) is not None:
                _refuse(group, key, "null (weights alone)", place)
        if group.get("format") is not None:
            _expect(group, "format", FORMATS, place)
        weights = dict(group["weights"])
        if weights.get("strategy") is None:
            weights["strategy"] = {None: "tensor", -1: "channel"}.get(weights.get("group_size"), "group")
        for key, allowed in _WEIGHTS.items():
            _expect(weights, key, allowed, f"{place}.weights")


def _expect(entries: Mapping[str, Any], key: str, allowed: tuple[Any, ...], where: str) -> None:
    value = entries.get(key, allowed[0])
    if not any(type(value) is type(choice) and value == choice for choice in allowed):
        _refuse(entries, key, " or ".join(dict.fromkeys(map(repr, allowed))), where)


def _refuse(entries: Mapping[str, Any], key: str, allowed: str, where: str) -> None:
    raise UnsupportedModelError(f"{where}.{key}={entries[key]!r:.200} is not supported: {allowed} is. Give the "
                                "checkpoint that it was made from, or a .gguf file")
