"""``Weights``: a model's parameters on the device, replaced as a whole, put aside or dropped."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxllm.errors import EngineError, ParameterError
from jaxllm.models.model import Model, Params
from jaxllm.weights.int8 import INT8
from jaxllm.weights.rows import int8_rows, is_stored
from jaxllm.weights.spec import ParamSpec

_SHOWN = 5


class Weights:
    """outer, head: the model's ``outer_params`` and ``head_params``; layers: each layer's own, as leaves."""

    def __init__(self, model: Model, params: Params) -> None:
        self._model = model
        self._asleep: Params | None = None
        self.present = False
        self.replace(params)

    def replace(self, params: Params) -> None:
        """Take other parameters of the same structure and shapes, converted to the model's dtypes.

        Arrays that are in place already are used as they are. ``ParameterError`` says what does not fit; the old ones
        then stay.
        """
        placed = check_params(self._model, params)
        self.outer = self._model.outer_params(placed)
        self.head = self._model.head_params(placed)
        self.layers = [jax.tree.leaves(placed["layers"][layer]) for layer in range(self._model.config.num_layers)]
        self.present, self._asleep = True, None

    @property
    def params(self) -> Params:
        """The parameters as a nested dict; ``EngineError`` while there are none."""
        if not self.present:
            raise EngineError("the engine has no weights: wake it up, or give it some with update_params")
        layers = map(jax.tree.unflatten, self._model.layer_trees, self.layers)
        return {**self.outer, "layers": dict(enumerate(layers))}

    def put_aside(self) -> None:
        """Move them to host memory; nothing where there are none."""
        if self.present:
            self._asleep = jax.tree.map(np.asarray, self.params)
            self._forget()

    def drop(self) -> None:
        """Forget them."""
        self._asleep = None
        self._forget()

    def take_back(self) -> None:
        """Undo ``put_aside``."""
        if self._asleep is not None:
            self.replace(self._asleep)

    def _forget(self) -> None:
        self.outer, self.head, self.layers, self.present = {}, {}, [], False


def check_params(model: Model, params: Any) -> Params:
    """The parameters as JAX arrays of the model's dtypes; ``ParameterError`` says which do not fit it.

    What the model keeps in int8 may also come as plain numbers, and is then quantized.
    """
    found, treedef = jax.tree_util.tree_flatten_with_path(params, is_leaf=is_stored)
    leaves = {".".join(str(_key(part)) for part in path): leaf for path, leaf in found}
    missing, unknown = model.specs.keys() - leaves.keys(), leaves.keys() - model.specs.keys()
    misfits = (_misfit(path, leaves[path], spec) for path, spec in model.specs.items() if path in leaves)
    wrong = [misfit for misfit in misfits if misfit is not None]
    problems = [f"{path} is missing" for path in sorted(missing)]
    problems += [*(f"{path} is unknown" for path in sorted(unknown)), *wrong]
    if problems:
        more = f"; and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
        raise ParameterError("params", f"{len(leaves)} arrays", "the model's tree of parameters: "
                             + "; ".join(problems[:_SHOWN]) + more)
    return jax.tree.unflatten(treedef, [_placed(leaf, model.specs[path]) for path, leaf in leaves.items()])


def _misfit(path: str, leaf: Any, spec: ParamSpec) -> str | None:
    """What is wrong with a parameter, or ``None``."""
    if is_stored(leaf):
        return None if _like(leaf) == _like(spec.abstract()) else (
            f"{path} has other quantized rows than this engine, which keeps {spec.kinds}")
    if np.shape(leaf) != spec.shape:
        return f"{path} has shape {np.shape(leaf)}, not {spec.shape}"
    if not jnp.issubdtype(jnp.result_type(leaf), jnp.floating):
        return f"{path} holds {jnp.result_type(leaf)}, not floating-point numbers"
    if spec.parts and any(part.kind != INT8 for part in spec.parts):
        return (f"{path} is kept as {spec.kinds}, and plain numbers cannot take its place: give rows of that kind, or "
                "make the engine with quantization=None")
    return None


def _like(leaf: Any) -> tuple[Any, list[Any]]:
    leaves, structure = jax.tree.flatten(leaf)
    return structure, [(array.shape, np.dtype(array.dtype)) for array in leaves]


def _placed(leaf: Any, spec: ParamSpec) -> Any:
    if spec.parts and not is_stored(leaf):
        return int8_rows(leaf)
    # JAX may share the memory of NumPy arrays, which their owner can change; its own arrays never change.
    return jax.tree.map(
        lambda part, like: (jnp.asarray if isinstance(part, jax.Array) else jnp.array)(part, like.dtype),
        leaf, spec.abstract())


def _key(part: Any) -> Any:
    return getattr(part, "key", getattr(part, "idx", part))
