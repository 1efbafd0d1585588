"""Parameters in the layouts that users of JAX have them in, matched with a model's own.

Three layouts are known, each nested or flat, and told apart by their names:

- the model's own tree ("layers.0.attention.qkv.weight");
- the same with all layers in one array, along its first axis ("layers.attention.qkv.weight"), for ``lax.scan``;
- the names of a Hugging Face checkpoint ("model.layers.0.self_attn.q_proj.weight").
"""

from __future__ import annotations

import dataclasses
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jaxllm.errors import ParameterError
from jaxllm.weights.int8 import INT8
from jaxllm.weights.rows import RowParts, StackedLayer, StoredRows, is_stored
from jaxllm.weights.spec import ParamSpec, Piece

LAYOUTS = ("a nested dict of arrays, an nnx.State, or a flat dict from names to arrays: in the model's own layout, "
           "with its layers stacked, or with a Hugging Face checkpoint's names")
_OF_LAYER = re.compile(r"layers\.(\d+)\.(.+)")
_MAX_SHOWN = 30


@dataclasses.dataclass(frozen=True)
class Given:
    """What was given for a parameter: one array or quantized rows; several arrays whose rows follow one another; or,
    with ``layer``, that layer's share of one array.

    pieces: the leaves' names, as they were given, and what becomes of them.
    """

    pieces: tuple[Piece, ...]
    leaves: tuple[Any, ...]
    layer: int | None = None

    @property
    def is_quantized(self) -> bool:
        """Whether it is quantized rows."""
        return is_stored(self.leaves[0])

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """Of the arrays, after their transforms."""
        return [tuple(leaf.shape) if piece.transform is None else
                piece.transform(np.broadcast_to(np.zeros((), leaf.dtype), leaf.shape)).shape
                for piece, leaf in zip(self.pieces, self.leaves, strict=True)]

    @property
    def shape(self) -> tuple[int, ...] | None:
        """Its shape as a parameter, or as all layers'; ``None`` where the arrays do not go together."""
        shapes = self.shapes
        if len(shapes) == 1:
            return shapes[0]
        if not all(shapes) or len({shape[1:] for shape in shapes}) > 1:
            return None
        return sum(shape[0] for shape in shapes), *shapes[0][1:]

    def describe(self) -> str:
        """Names and shapes, for people."""
        return ", ".join(f"{piece.name} {list(leaf.shape)}"
                         for piece, leaf in zip(self.pieces, self.leaves, strict=True))


_Plan = dict[str, tuple[tuple[Piece, ...], int | None]]
"""For each parameter the leaves that it consists of, and its layer where it is a share of a stack."""


def flatten(params: Any) -> dict[str, Any]:
    """The leaves of a tree by dotted path; ``ParameterError`` for what is no tree of parameters.

    What the leaves are is not looked at. ``None`` stands for an empty tree.
    """
    nnx = sys.modules.get("flax.nnx")
    if nnx is not None and isinstance(params, nnx.State):
        params = nnx.to_pure_dict(params)
    elif nnx is not None and isinstance(params, nnx.Module):
        raise ParameterError("params", type(params), f"{LAYOUTS}; of a module give nnx.state(module, nnx.Param)")
    if not isinstance(params, Mapping | None):
        raise ParameterError("params", type(params), LAYOUTS)
    found: dict[str, Any] = {}
    for path, leaf in _leaves(params, ()):
        if path in found:
            raise ParameterError("params", path, "names that still differ when they are joined by dots")
        found[path] = leaf
    return found


def _leaves(node: Any, path: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    if node is None:
        return
    if isinstance(node, Mapping):
        items: Iterable[tuple[Any, Any]] = node.items()
    elif isinstance(node, list | tuple):
        items = enumerate(node)
    else:
        value = getattr(node, "get_value", None)  # of an nnx.Variable
        yield ".".join(path), node if value is None else value()
        return
    for key, child in items:
        if isinstance(key, bool) or not isinstance(key, str | int):
            raise ParameterError("params", key, "names that are strings, or numbers of layers")
        yield from _leaves(child, (*path, str(key)))


def match(specs: Mapping[str, ParamSpec], weight_map: Mapping[str, Sequence[str | Piece]], ignore: Iterable[str],
          leaves: Mapping[str, Any], *, abstract: bool = False, spread: bool = False
          ) -> tuple[dict[str, Given], list[str]]:
    """What was given for each parameter, and everything that does not fit, in words.

    weight_map, ignore: the family's names, and patterns of names that no parameter needs. leaves: by dotted path
    (``flatten``), arrays or, with ``abstract``, their shapes and dtypes. spread: whether arrays may lie on several
    devices.
    """
    plan, ignore = _plan(specs, weight_map, ignore, leaves)
    missing: dict[str, str] = {}
    for path, (pieces, layer) in plan.items():
        shape = [_num_layers(specs), *specs[path].shape] if layer is not None else list(specs[path].shape)
        for piece in pieces:
            if piece.name not in leaves:
                part = "shape" if len(pieces) == 1 else f"rows of {path}, which has shape"
                missing.setdefault(piece.name, f"of {part} {shape}")
    known = {piece.name for pieces, _ in plan.values() for piece in pieces}
    patterns = [re.compile(pattern) for pattern in ignore]
    extra = [name for name in sorted(leaves.keys() - known) if not any(each.search(name) for each in patterns)]
    kinds = (jax.ShapeDtypeStruct,) if abstract else (jax.Array, np.ndarray, np.generic)
    reasons = {name: _unusable(leaves[name], kinds, spread) for name in sorted(known & leaves.keys())}
    wrong = {name: reason for name, reason in reasons.items() if reason is not None}
    problems = [*(f"missing: {name}, {what}" for name, what in sorted(missing.items())),
                *(f"unexpected: {name}{_shape_of(leaves[name])}" for name in extra),
                *(f"wrong type: {name} {reason}" for name, reason in wrong.items())]
    found: dict[str, Given] = {}
    for path, (pieces, layer) in plan.items():
        if any(piece.name not in leaves or piece.name in wrong for piece in pieces):
            continue
        given = _given(pieces, [leaves[piece.name] for piece in pieces], layer)
        misfit = _misfit(path, given, specs[path], _num_layers(specs))
        if misfit is None:
            found[path] = given
        else:
            problems.append(misfit)
    return found, list(dict.fromkeys(problems))


def layer_and_name(path: str) -> tuple[int | None, str]:
    """A parameter's layer and its name there; ``None`` and its path where it is of no layer."""
    found = _OF_LAYER.fullmatch(path)
    return (None, path) if found is None else (int(found[1]), found[2])


def listed(problems: Sequence[str]) -> str:
    """Problems one below the other, the first few dozen."""
    more = [f"and {len(problems) - _MAX_SHOWN} more"] if len(problems) > _MAX_SHOWN else []
    return "\n  ".join([*problems[:_MAX_SHOWN], *more])


def misfit_error(count: int, problems: Sequence[str]) -> ParameterError:
    """The error for parameters that do not fit. count: of the arrays that were given."""
    return ParameterError("params", f"{count} arrays", f"they do not fit the model:\n  {listed(problems)}")


def live_specs(specs: Mapping[str, ParamSpec], found: Mapping[str, Given]) -> dict[str, ParamSpec]:
    """The specs with each parameter described as it was given, so that nothing need be copied: matrices whose rows come
    in several arrays stay apart, and stacked layers stay stacked. Vectors that come in several arrays are joined, and
    so are experts' matrices: a step takes rows of few of them."""

    def live(spec: ParamSpec, given: Given) -> ParamSpec:
        if given.layer is not None:
            return dataclasses.replace(spec, stack=given.shapes[0][0])
        if len(given.leaves) > 1 and len(spec.shape) == 2 and not spec.is_of_experts:
            return dataclasses.replace(spec, parts=tuple(StoredRows(None, shape[0]) for shape in given.shapes))
        return spec

    return {path: live(spec, found[path]) for path, spec in specs.items()}


def _plan(specs: Mapping[str, ParamSpec], weight_map: Mapping[str, Sequence[str | Piece]], ignore: Iterable[str],
          leaves: Mapping[str, Any]) -> tuple[_Plan, Iterable[str]]:
    """The layout that most of the names are of, and patterns of names that may be there beside."""
    own: _Plan = {path: ((Piece(path),), None) for path in specs}
    stacked: _Plan = {}
    for path in specs:
        layer, name = layer_and_name(path)
        stacked[path] = own[path] if layer is None else ((Piece(f"layers.{name}"),), layer)
    theirs: _Plan = {path: (tuple(piece if isinstance(piece, Piece) else Piece(piece) for piece in pieces), None)
                     for path, pieces in weight_map.items()}
    layouts: list[tuple[_Plan, Iterable[str]]] = [(own, ()), (stacked, ()), (theirs, ignore)]

    def common(layout: tuple[_Plan, Iterable[str]]) -> int:
        return len(leaves.keys() & {piece.name for pieces, _ in layout[0].values() for piece in pieces})

    return max(layouts, key=common)


def _num_layers(specs: Mapping[str, ParamSpec]) -> int:
    return len({layer for layer, _ in map(layer_and_name, specs) if layer is not None})


def _given(pieces: tuple[Piece, ...], leaves: Sequence[Any], layer: int | None) -> Given:
    """With what an engine's own parameters may hold taken apart: rows in plain parts, a share of a stack."""
    leaf = leaves[0]
    if isinstance(leaf, StackedLayer):
        return Given(pieces, (leaf.array,), int(leaf.layer))
    if isinstance(leaf, RowParts) and not any(map(is_stored, leaf.parts)):
        names = (Piece(f"{pieces[0].name}.{number}") for number in range(len(leaf.parts)))
        return Given(tuple(names), leaf.parts)
    return Given(pieces, tuple(leaves), layer)


def _misfit(path: str, given: Given, spec: ParamSpec, num_layers: int) -> str | None:
    """Why it cannot become the parameter, or ``None``."""
    if given.is_quantized:
        return None if _like(given.leaves[0]) == _like(spec.abstract()) else (
            f"wrong type: {path} has other quantized rows than this engine, which keeps {spec.kinds}")
    name, shape = (path, spec.shape) if given.layer is None else (given.pieces[0].name, (num_layers, *spec.shape))
    if given.shape != shape:
        return f"wrong shape: {name} should be {list(shape)}, params has {given.describe()}"
    if any(part.kind not in (None, INT8) for part in spec.parts):
        return (f"wrong type: {path} is kept as {spec.kinds}, and plain numbers cannot take its place: give rows of "
                "that kind, or make the engine with quantization=None")
    return None


def _unusable(leaf: Any, kinds: tuple[Any, ...], spread: bool) -> str | None:
    """Why a leaf cannot be a parameter, whatever its shape, or ``None``. kinds: of arrays. spread: as of ``match``."""
    if is_stored(leaf):
        return None
    if isinstance(leaf, jax.core.Tracer):
        return "is being traced by JAX: parameters are taken outside of jit"
    if not isinstance(leaf, kinds):
        return f"is a {type(leaf).__name__}, not an array"
    if not jax.dtypes.issubdtype(leaf.dtype, np.floating):
        return f"of shape {list(leaf.shape)} holds {leaf.dtype}, not floating-point numbers"
    if isinstance(leaf, jax.Array) and leaf.is_deleted():
        return "was deleted or donated: give the array that took its place"
    if isinstance(leaf, jax.Array) and len(leaf.sharding.device_set) > 1 and not spread:
        return (f"lies on {len(leaf.sharding.device_set)} devices, and this engine runs on one: make it with mesh=, or "
                "gather the array with jax.device_put")
    return None


def _shape_of(leaf: Any) -> str:
    shape = getattr(leaf, "shape", None)
    return f", a {type(leaf).__name__}" if shape is None else f", of shape {list(shape)}"


def _like(leaf: Any) -> tuple[Any, list[Any]]:
    leaves, structure = jax.tree.flatten(leaf)
    return structure, [(array.shape, np.dtype(array.dtype)) for array in leaves]
