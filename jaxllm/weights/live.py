"""Models whose parameters are a tree of arrays: in memory, as training code has them, or in a folder of Orbax's."""

from __future__ import annotations

import abc
import collections
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxllm.errors import ParameterError
from jaxllm.models.config import DecoderConfig
from jaxllm.weights.source import ModelSource
from jaxllm.weights.trees import flatten


class TreeSource(ModelSource):
    """A model whose parameters come whole, in any layout of ``jaxllm.weights.trees``; it has no tensors to read one by
    one.

    leaves: by dotted path, the arrays or their shapes and dtypes.
    """

    leaves: Mapping[str, Any]

    @abc.abstractmethod
    def load(self, dtype: np.dtype, *, on_host: bool = False) -> dict[str, Any]:
        """The arrays, by dotted path. dtype: what they will be converted to, if they have another. on_host: leave what
        is read in host memory, for several devices to take their parts of."""

    def dtype(self, name: str) -> np.dtype:
        return np.dtype(self.leaves[name].dtype)

    def read_rows(self, name: str, start: int, stop: int, out: np.ndarray) -> None:
        raise NotImplementedError(f"{type(self).__name__} gives its parameters as a whole")


class LiveParams(TreeSource):
    """Parameters in memory, which are used where they are.

    config: a Hugging Face config, or ``decoder`` in its place. generation_config: as in ``generation_config.json``.
    params: as ``LLM.from_params`` takes them. spread: whether they may lie on several devices.
    """

    def __init__(self, config: Mapping[str, Any] | DecoderConfig, params: Any,
                 generation_config: Mapping[str, Any] | None = None, *, spread: bool = False) -> None:
        self.spread = spread
        self.name, self.path = "live parameters", Path("live parameters")
        self.decoder = config if isinstance(config, DecoderConfig) else None
        self.config = {"vocab_size": config.vocab_size} if isinstance(config, DecoderConfig) else config
        self.generation_config = generation_config or {}
        self.leaves = flatten(params)
        self.tensors = {}

    def load(self, dtype: np.dtype, *, on_host: bool = False) -> dict[str, Any]:
        return dict(self.leaves)

    def choose_dtype(self, dtype: Any) -> Any:
        """For "auto" the dtype that all parameters have; ``ParameterError`` if they have several."""
        if not isinstance(dtype, str) or dtype != "auto":
            return dtype
        counts = collections.Counter(
            str(leaf.dtype) for leaf in jax.tree.leaves(self.leaves)
            if hasattr(leaf, "dtype") and jax.dtypes.issubdtype(leaf.dtype, np.floating))
        if len(counts) > 1:
            found = ", ".join(f"{count} in {name}" for name, count in counts.most_common())
            raise ParameterError("dtype", dtype, f"a dtype by name, as the arrays of params have several: {found}")
        return next(iter(counts), dtype)
