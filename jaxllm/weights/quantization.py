"""Which parameters stay quantized, and as what: the choices of ``quantization``."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from jaxllm.errors import ParameterError
from jaxllm.weights.gguf import GGUFSource
from jaxllm.weights.int8 import INT8
from jaxllm.weights.source import ModelSource
from jaxllm.weights.spec import ParamSpec, Piece

QUANTIZATIONS = ("none", "gguf", "gguf-a8", "int8")
_OF_FILES = ("gguf", "gguf-a8")


def check_quantization(quantization: Any, source: ModelSource | None = None) -> None:
    """Raise ``ParameterError`` unless it is ``None`` or a choice, and one that the checkpoint allows."""
    if quantization is not None and not (isinstance(quantization, str) and quantization in QUANTIZATIONS):
        raise ParameterError("quantization", quantization, "None (as the checkpoint says), 'none' (decoded), "
                             "'gguf' (as a .gguf file stores them), 'gguf-a8' (so, with activations of 8 bits) or "
                             "'int8' (made while loading, from any checkpoint)")
    if quantization in _OF_FILES and source is not None and not isinstance(source, GGUFSource):
        raise ParameterError("quantization", quantization, f"only for .gguf files, which {source.path} is not; 'int8' "
                             "quantizes any checkpoint while it is loaded")


def chosen_quantization(quantization: str | None, source: ModelSource) -> str | None:
    """What becomes of the matrices, ``None`` where they are decoded; by default what the checkpoint says."""
    chosen = source.quantization if quantization is None else quantization
    return None if chosen == "none" else chosen


def quantized_specs(
    specs: Mapping[str, ParamSpec], plan: Mapping[str, Sequence[Piece]], source: ModelSource | None, quantization: str
) -> dict[str, ParamSpec]:
    """The specs with every matrix described as it will be kept, by "gguf", "gguf-a8" or "int8".

    With the first two, the tensors whose type has no kernel, or that are transformed, are plain; so are the experts of
    a layer whose gates and up projections have different types. source: ``None`` only where there are no tensors, with
    "int8".
    """
    # Here, as it brings JAX, which reading a header can do without.
    from jaxllm.weights.rows import StoredRows
    from pallas_kernels.quantized import FORMATS, ROUNDING

    def kind_of(piece: Piece) -> str | None:
        assert source is not None
        kind = source.tensors[piece.name].dtype
        if piece.transform is not None or kind not in FORMATS:
            return None
        return kind + ROUNDING if quantization == "gguf-a8" else kind

    def parts_of(path: str, spec: ParamSpec) -> tuple[StoredRows, ...]:
        if not spec.is_matrix:
            return ()
        if quantization == "int8":
            return (StoredRows(INT8, spec.shape[0]),)
        assert source is not None
        kinds = [(kind_of(piece), source.tensors[piece.name].rows) for piece in plan[path]]
        runs = itertools.groupby(kinds, key=lambda pair: pair[0])
        parts = tuple(StoredRows(kind, sum(rows for _, rows in run)) for kind, run in runs)
        if spec.is_of_experts and len(parts) > 1:
            return ()
        return () if [part.kind for part in parts] == [None] else parts

    return {path: dataclasses.replace(spec, parts=parts_of(path, spec)) for path, spec in specs.items()}
