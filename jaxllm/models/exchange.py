"""``Exchange``: how tokens reach experts that are spread over replicas and the devices of each, and come back."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Int32


class Lanes(NamedTuple):
    """Of rows to and from each device: where those to it start, how many, where they go there, how many come from it.
    The arguments of ``jax.lax.ragged_all_to_all``."""

    starts: Int32[Array, " n"]
    counts: Int32[Array, " n"]
    targets: Int32[Array, " n"]
    coming: Int32[Array, " n"]


class Sent(NamedTuple):
    """What ``Exchange.send`` has done: ``N`` rows that came here, a device's after the other's.

    rows: these. experts: which of this device's experts each takes; a number beyond them where there is none. numbers:
    of them, if any were sent. here: of own rows, which of their experts each device has. coming: how many rows came
    from each device, where they were counted.
    """

    rows: Float[Array, "N D"]
    experts: Int32[Array, "N A"]
    numbers: Float[Array, "N A"] | None
    here: Bool[Array, "n t A"]
    coming: Int32[Array, " n"] | None = None


@dataclasses.dataclass(frozen=True)
class Exchange:
    """Experts dealt out over ``data`` x ``tensor`` devices, as many to each (Lepikhin et al. 2020, GShard; Rajbhandari
    et al. 2022, DeepSpeed-MoE). Its methods are for functions that run under ``jax.shard_map`` over both axes.

    data_axis, tensor_axis: the mesh's axes. The devices along ``tensor_axis`` have the same tokens, of which each sends
    its own part; those along ``data_axis`` have others. data, tensor: their sizes.

    ragged: whether rows alone are sent that the receiver has experts of, by ``jax.lax.ragged_all_to_all``, which GPUs
    have and CPUs have not; elsewhere all rows are, as ``jax.lax.all_to_all`` has parts of one size.

    Either way the buffers have room for the worst case, in which every token goes to one device: no token is ever
    dropped. A token is sent once to each device, whatever the number of its experts there, and a result comes back for
    each of its experts.
    """

    data_axis: str
    tensor_axis: str
    data: int
    tensor: int
    ragged: bool = False

    @property
    def devices(self) -> int:
        """How many there are."""
        return self.data * self.tensor

    def index(self) -> Int[Array, ""]:
        """The number of this device, from 0: neighbours along ``tensor_axis``."""
        return jax.lax.axis_index(self._axes)

    def device_of(self, experts: Int[Array, "*shape"], num_experts: int) -> Int[Array, "*shape"]:
        """Where experts are: the first device has the first of them, and so on. An expert of number ``num_experts``,
        which is none, is on device ``devices``, which is none either."""
        return experts // (num_experts // self.devices)

    def local_number(self, experts: Int[Array, "*shape"], num_experts: int) -> Int[Array, "*shape"]:
        """Which of its device's experts each is."""
        return experts % (num_experts // self.devices)

    def own_rows(self, values: Array, fill: int = 0) -> Array:
        """This device's part of rows that all along ``tensor_axis`` have; the last one's is filled up."""
        if self.tensor == 1:
            return values
        each = -(-values.shape[0] // self.tensor)
        start = jax.lax.axis_index(self.tensor_axis) * each
        return jax.lax.dynamic_slice_in_dim(self._filled(values, fill), start, each)

    def at_own_place(self, own: Float[Array, "t D"], count: int) -> Float[Array, "T D"]:
        """This device's rows among ``count``, zeros where the others along ``tensor_axis`` have theirs."""
        if self.tensor == 1:
            return own
        each = own.shape[0]
        start = jax.lax.axis_index(self.tensor_axis) * each
        return jax.lax.dynamic_update_slice_in_dim(jnp.zeros((each * self.tensor, own.shape[1]), own.dtype), own, start,
                                                   axis=0)[:count]

    def send(self, x: Float[Array, "t D"], experts: Int32[Array, "t A"], num_experts: int,
             numbers: Float[Array, "t A"] | None = None) -> Sent:
        """Rows to the devices of their experts, and ``numbers`` of them, where there are any."""
        here = self.device_of(experts, num_experts)[None] == jnp.arange(self.devices)[:, None, None]
        local = jnp.where(here, self.local_number(experts, num_experts)[None], num_experts // self.devices)
        return (self._send_counted if self.ragged else self._send_padded)(x, local, here, numbers)

    def give_back(self, results: Float[Array, "N A D"], sent: Sent) -> Float[Array, "t A D"]:
        """What the experts made of own rows, zeros where a row has none. results: of the rows that came here."""
        if self.ragged:
            return self._give_back_counted(results, sent)
        back = self._swap(results.reshape(self.devices, -1, *results.shape[1:]))
        # Of every row and expert one device alone has a result; the others' are not looked at.
        device = jnp.argmax(sent.here, axis=0)
        found: Array = jnp.take_along_axis(back, device[None, :, :, None], axis=0)[0]
        return jnp.where(sent.here.any(0)[..., None], found, 0)

    def _send_padded(self, x: Float[Array, "t D"], local: Int32[Array, "n t A"], here: Bool[Array, "n t A"],
                     numbers: Float[Array, "t A"] | None) -> Sent:
        """Every row to every device, as zeros where it has no expert of the row."""
        rows = jnp.where(here.any(-1)[..., None], x[None], 0)
        everywhere = None if numbers is None else jnp.broadcast_to(numbers[None], here.shape)
        rows, local, everywhere = jax.tree.map(lambda parts: self._swap(parts).reshape(-1, parts.shape[-1]),
                                               (rows, local, everywhere))
        return Sent(rows, local, everywhere, here)

    def _send_counted(self, x: Float[Array, "t D"], local: Int32[Array, "n t A"], here: Bool[Array, "n t A"],
                      numbers: Float[Array, "t A"] | None) -> Sent:
        """To each device the rows that it has experts of, after the counts of them."""
        tokens, taken = local.shape[1:]
        wanted = here.any(-1)
        counts = jnp.sum(wanted, axis=1, dtype=jnp.int32)
        # Of the pairs of a device and a row those that are wanted first: a row has as many as it has experts, at most.
        order = jnp.argsort(~wanted.reshape(-1), stable=True)[:tokens * min(taken, self.devices)]
        coming = self._swap(counts)
        lanes = Lanes(_starts(counts), counts, self._swap(_starts(coming)), coming)
        room, none = self.devices * tokens, jnp.iinfo(jnp.int32).max
        local = jnp.where(here, local, none)
        found = self._move(x[order % tokens], jnp.zeros((room, x.shape[1]), x.dtype), lanes)
        experts = self._move(local.reshape(-1, taken)[order], jnp.full((room, taken), none, local.dtype), lanes)
        weights = None if numbers is None else self._move(
            numbers[order % tokens], jnp.zeros((room, taken), numbers.dtype), lanes)
        return Sent(found, experts, weights, here, coming)

    def _give_back_counted(self, results: Float[Array, "N A D"], sent: Sent) -> Float[Array, "t A D"]:
        """Of each row that came here as many results as it has experts here, one after the other."""
        tokens, taken = sent.here.shape[1:]
        have = (sent.experts != jnp.iinfo(jnp.int32).max).reshape(-1)
        order = jnp.argsort(~have, stable=True)
        upto = jnp.concatenate([jnp.zeros(1, jnp.int32), jnp.cumsum(have, dtype=jnp.int32)])
        assert sent.coming is not None
        starts = _starts(sent.coming)
        counts = upto[(starts + sent.coming) * taken] - upto[starts * taken]
        coming = jnp.sum(sent.here, axis=(1, 2), dtype=jnp.int32)
        lanes = Lanes(_starts(counts), counts, self._swap(_starts(coming)), coming)
        width = results.shape[-1]
        found = self._move(results.reshape(-1, width)[order], jnp.zeros((tokens * taken, width), results.dtype), lanes)
        places = (jnp.cumsum(sent.here.reshape(-1)) - 1).reshape(sent.here.shape)
        place = jnp.take_along_axis(places, jnp.argmax(sent.here, axis=0)[None], axis=0)[0]
        return jnp.where(sent.here.any(0)[..., None], found[place], 0)

    def _move(self, rows: Array, into: Array, lanes: Lanes) -> Array:
        found: Array = jax.lax.ragged_all_to_all(rows, into, *lanes, axis_name=self._axes)
        return found

    def _swap(self, parts: Array) -> Array:
        """Part n to device n; of what came, the part of device n is the n-th."""
        found: Array = jax.lax.all_to_all(parts, self._axes, 0, 0, tiled=True)
        return found

    def _filled(self, values: Array, fill: int) -> Array:
        missing = -values.shape[0] % self.tensor
        return jnp.pad(values, ((0, missing), *((0, 0),) * (values.ndim - 1)), constant_values=fill)

    @property
    def _axes(self) -> tuple[str, str]:
        return self.data_axis, self.tensor_axis


def _starts(counts: Int32[Array, " n"]) -> Int32[Array, " n"]:
    """Where runs of so many rows start, one after the other."""
    return jnp.cumsum(counts, dtype=jnp.int32) - counts
