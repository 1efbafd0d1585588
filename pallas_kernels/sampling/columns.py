"""``Columns``: the vocabulary of rows of logits, on one device or cut over several; what is said of a row as a whole.

What filters, draws and log-probabilities ask of rows is a few reductions. Over devices each is the device's own, and an
exchange of a number or a short list for each row: no device sees a whole row (Shoeybi et al. 2019, Megatron-LM, has the
same for the loss). Maxima, counts and lists are then the very ones of whole rows; sums differ in the last bits, as they
do between implementations.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from pallas_kernels.reductions import row_sum
from pallas_kernels.sampling import reductions
from pallas_kernels.sampling.tiles import map_row_tiles


class Columns:
    """All of them, on one device."""

    def first(self, x: Float[Array, "B V"]) -> Int[Array, ""] | int:
        """The token of the first column."""
        return 0

    def ids(self, x: Float[Array, "B V"]) -> Int[Array, "B V"]:
        """The token of each column."""
        return lax.broadcasted_iota(jnp.int32, x.shape, 1)

    def size(self, x: Float[Array, "B V"]) -> int:
        """A number that is larger than any token."""
        return x.shape[1]

    def own(self, whole: Array, x: Float[Array, "B V"]) -> Array:
        """Of values of the whole vocabulary, ``[B, V]``, those of the columns that are here, which are those of x."""
        return whole

    def max(self, x: Array) -> Array:
        """The largest of each row, float or int."""
        return jnp.max(x, axis=-1)

    def sum(self, x: Float[Array, "B V"]) -> Float[Array, " B"]:
        """In a fixed order; monotone for terms that are not negative."""
        return row_sum(x)

    def count(self, mask: Bool[Array, "B V"]) -> Int[Array, " B"]:
        """How many are true."""
        return reductions.count(mask)

    def any(self, found: Bool[Array, " B"]) -> Bool[Array, " B"]:
        """Whether a device has found it."""
        return found

    def argmax(self, x: Float[Array, "B V"]) -> tuple[Int[Array, " B"], Float[Array, " B"]]:
        """The token of each row's largest entry, ties to the lowest, and the entry."""
        return reductions.argmax(x)

    def top_k(self, x: Float[Array, "B V"], k: int) -> tuple[Float[Array, "B k"], Int[Array, "B k"]]:
        """The k largest entries of each row and their tokens, ties by lowest token."""
        return reductions.top_k(x, k)

    def take(self, x: Float[Array, "B V"], tokens: Int[Array, "B K"]) -> Float[Array, "B K"]:
        """The entries of some tokens."""
        return jnp.take_along_axis(x, tokens, axis=1)

    def map_rows[Result](self, function: Callable[..., Result], *arguments: Any) -> Result:
        """``map_row_tiles``."""
        return map_row_tiles(function, *arguments)


WHOLE = Columns()


@dataclasses.dataclass(frozen=True)
class SplitColumns(Columns):
    """Under ``jax.shard_map``: each device of a mesh axis has as many columns, in the order of the tokens; the last
    may have some beyond the vocabulary, which hold -inf."""

    axis: str

    def first(self, x: Float[Array, "B V"]) -> Int[Array, ""]:
        return lax.axis_index(self.axis) * x.shape[-1]

    def ids(self, x: Float[Array, "B V"]) -> Int[Array, "B V"]:
        return super().ids(x) + self.first(x)

    def size(self, x: Float[Array, "B V"]) -> int:
        return x.shape[1] * lax.axis_size(self.axis)

    def own(self, whole: Array, x: Float[Array, "B V"]) -> Array:
        padded = jnp.pad(whole, ((0, 0), (0, self.size(x) - whole.shape[1])))
        return lax.dynamic_slice_in_dim(padded, self.first(x), x.shape[1], axis=1)

    def max(self, x: Array) -> Array:
        return jnp.max(lax.all_gather(super().max(x), self.axis), axis=0)  # the same on all devices, of NaN too

    def sum(self, x: Float[Array, "B V"]) -> Float[Array, " B"]:
        return row_sum(lax.all_gather(super().sum(x), self.axis, axis=1))  # an all-reduce promises no order

    def count(self, mask: Bool[Array, "B V"]) -> Int[Array, " B"]:
        found: Array = lax.psum(super().count(mask), self.axis)
        return found

    def any(self, found: Bool[Array, " B"]) -> Bool[Array, " B"]:
        return lax.psum(found.astype(jnp.int32), self.axis) > 0

    def argmax(self, x: Float[Array, "B V"]) -> tuple[Int[Array, " B"], Float[Array, " B"]]:
        index, best = super().argmax(x)
        bests, tokens = lax.all_gather((best, index + self.first(x)), self.axis)
        chosen = jnp.argmax(bests, axis=0)[None]
        best, token = (jnp.take_along_axis(found, chosen, axis=0)[0] for found in (bests, tokens))
        return token, best

    def top_k(self, x: Float[Array, "B V"], k: int) -> tuple[Float[Array, "B k"], Int[Array, "B k"]]:
        values, index = super().top_k(x, min(k, x.shape[1]))
        values, tokens = lax.all_gather((values, index + self.first(x)), self.axis, axis=1, tiled=True)
        # Ties are in the order of tokens: within each device's list, and from device to device.
        best, where = lax.top_k(values, k)
        return best, jnp.take_along_axis(tokens, where, axis=1)

    def take(self, x: Float[Array, "B V"], tokens: Int[Array, "B K"]) -> Float[Array, "B K"]:
        index = tokens - self.first(x)
        here = (index >= 0) & (index < x.shape[1])
        found = super().take(x, jnp.clip(index, 0, x.shape[1] - 1))
        total: Array = lax.psum(jnp.where(here, found, 0), self.axis)
        return total

    def map_rows[Result](self, function: Callable[..., Result], *arguments: Any) -> Result:
        return function(*arguments)  # tiles would exchange as often as there are of them
