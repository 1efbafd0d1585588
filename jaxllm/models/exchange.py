"""``Exchange``: how tokens reach experts that are spread over replicas and the devices of each, and come back."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Int32


@dataclasses.dataclass(frozen=True)
class Exchange:
    """Experts dealt out over ``data`` x ``tensor`` devices, as many to each (Lepikhin et al. 2020, GShard; Rajbhandari
    et al. 2022, DeepSpeed-MoE). Its methods are for functions that run under ``jax.shard_map`` over both axes.

    data_axis, tensor_axis: the mesh's axes. The devices along ``tensor_axis`` have the same tokens, of which each sends
    its own part; those along ``data_axis`` have others. data, tensor: their sizes.

    The buffers have room for the worst case, in which every token goes to one device: no token is ever dropped. A
    token is sent once to each device, whatever the number of its experts there.
    """

    data_axis: str
    tensor_axis: str
    data: int
    tensor: int

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

    def own_sums(self, part: Float[Array, "T D"]) -> Float[Array, "t D"]:
        """This device's rows of the sum over ``tensor_axis``: one reduce-scatter."""
        if self.tensor == 1:
            return part
        found: Array = jax.lax.psum_scatter(self._filled(part, 0), self.tensor_axis, scatter_dimension=0, tiled=True)
        return found

    def all_rows(self, own: Float[Array, "t D"], count: int) -> Float[Array, "T D"]:
        """The first ``count`` rows that the devices along ``tensor_axis`` have: one all-gather."""
        if self.tensor == 1:
            return own
        found: Array = jax.lax.all_gather(own, self.tensor_axis, tiled=True)
        return found[:count]

    def send(self, x: Float[Array, "t D"], experts: Int32[Array, "t A"], num_experts: int
             ) -> tuple[Float[Array, "N D"], Int32[Array, "N A"], Bool[Array, "n t A"]]:
        """Rows to the devices of their experts: those that came here, a device's after the other's, and which of this
        device's experts they take, ``num_experts // devices`` where there is none; and where own rows went.

        Rows that a device has no expert of are sent as zeros. Two all-to-alls.
        """
        here = self.device_of(experts, num_experts)[None] == jnp.arange(self.devices)[:, None, None]
        rows = jnp.where(here.any(-1)[..., None], x[None], 0)
        local = jnp.where(here, self.local_number(experts, num_experts)[None], num_experts // self.devices)
        return self._swap(rows).reshape(-1, x.shape[1]), self._swap(local).reshape(-1, experts.shape[1]), here

    def send_numbers(self, numbers: Float[Array, "t A"]) -> Float[Array, "N A"]:
        """Numbers of rows, to all devices: one all-to-all, in the order of ``send``."""
        everywhere = jnp.broadcast_to(numbers[None], (self.devices, *numbers.shape))
        return self._swap(everywhere).reshape(-1, numbers.shape[1])

    def give_back(self, results: Float[Array, "N A D"], here: Bool[Array, "n t A"]) -> Float[Array, "t A D"]:
        """What the experts made of own rows. results: of the rows that came here. here: as ``send`` gave it. One
        all-to-all."""
        back = self._swap(results.reshape(self.devices, -1, *results.shape[1:]))
        # Of every row and expert one device alone has a result; the others' are not looked at.
        device = jnp.argmax(here, axis=0)
        found: Array = jnp.take_along_axis(back, device[None, :, :, None], axis=0)[0]
        return jnp.where(here.any(0)[..., None], found, 0)

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
