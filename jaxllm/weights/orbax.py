"""Folders that Orbax wrote (https://orbax.readthedocs.io): a tree of parameters beside a ``config.json``.

Orbax is an extra, ``jaxllm[orbax]``, and is imported when such a folder is opened or written.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from jaxllm.errors import CheckpointError, UnsupportedModelError
from jaxllm.weights.live import TreeSource
from jaxllm.weights.safetensors import DTYPES, read_json
from jaxllm.weights.source import TensorInfo
from jaxllm.weights.trees import flatten

PARAMS = "params"
"""The subfolder that ``save_params`` writes the tree to."""
_VALUE = ".value"  # the last name of every leaf of an nnx.State


class OrbaxSource(TreeSource):
    """A folder with ``config.json`` and a tree of parameters, in any layout of ``jaxllm.weights.trees``.

    tree: where in it Orbax wrote that (``jaxllm.weights.locate.orbax_tree``).

    Raises ``CheckpointError`` (no or malformed ``config.json``, a tree that Orbax cannot read) and
    ``UnsupportedModelError`` (Orbax is not installed, a leaf that is no array).
    """

    def __init__(self, path: Path, tree: Path, name: str | None = None) -> None:
        self.path = path
        self.name = name or path.resolve().name
        self._tree = tree
        self.config = read_json(path / "config.json")
        generation = path / "generation_config.json"
        self.generation_config = read_json(generation) if generation.exists() else {}
        with _checkpointer(path) as checkpointer:
            metadata = checkpointer.metadata(self._tree.resolve())
        described = getattr(metadata, "item_metadata", metadata)
        if described is None:
            raise CheckpointError(f"{path} cannot be read by Orbax: {tree} does not say what it holds")
        self._structure = described.tree
        self.leaves = {name: self._abstract(name, leaf) for name, leaf in _named(self._structure).items()}
        names = {dtype: name for name, dtype in DTYPES.items()}
        self.tensors = {
            name: TensorInfo(leaf.shape, names.get(leaf.dtype, leaf.dtype.name),
                             math.prod(leaf.shape) * leaf.dtype.itemsize)
            for name, leaf in self.leaves.items()}

    def load(self, dtype: np.dtype, *, on_host: bool = False) -> dict[str, Any]:
        import jax

        device = jax.sharding.SingleDeviceSharding(
            jax.local_devices(backend="cpu")[0] if on_host else jax.devices()[0])

        def wanted(leaf: Any) -> Any:
            kept = not jax.dtypes.issubdtype(leaf.dtype, np.floating)
            return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype if kept else dtype, sharding=device)

        targets = jax.tree.map(wanted, self._structure, is_leaf=_is_array)
        with _checkpointer(self.path) as checkpointer:
            return _named(checkpointer.restore(self._tree.resolve(), targets))

    def _abstract(self, name: str, leaf: Any) -> Any:
        import jax

        if not _is_array(leaf) or leaf.dtype is None:
            raise UnsupportedModelError(f"{self._tree}: {name!r} is no array, as parameters are")
        return jax.ShapeDtypeStruct(tuple(leaf.shape), np.dtype(leaf.dtype))


def save_params(folder: Path, params: Mapping[Any, Any]) -> None:
    """Write a tree of arrays to the subfolder ``PARAMS``, as it is, to the bit."""
    with _checkpointer(folder) as checkpointer:
        checkpointer.save(folder.resolve() / PARAMS, params)
        checkpointer.wait_until_finished()


@contextlib.contextmanager
def _checkpointer(path: Path) -> Iterator[Any]:
    try:
        from orbax import checkpoint
    except ImportError:
        raise UnsupportedModelError(f"{path}: folders of Orbax need the package orbax-checkpoint: pip install "
                                    "'jaxllm[orbax]'") from None
    checkpointer = checkpoint.StandardCheckpointer()
    try:
        yield checkpointer
    except (ValueError, KeyError, OSError) as error:
        raise CheckpointError(f"{path} cannot be read by Orbax: {error}") from error
    finally:
        checkpointer.close()


def _is_array(leaf: Any) -> bool:
    return hasattr(leaf, "shape") and hasattr(leaf, "dtype")


def _named(tree: Any) -> dict[str, Any]:
    """The leaves by dotted path."""
    leaves = flatten(tree)
    if leaves and all(name.endswith(_VALUE) for name in leaves):
        return {name.removesuffix(_VALUE): leaf for name, leaf in leaves.items()}
    return leaves
