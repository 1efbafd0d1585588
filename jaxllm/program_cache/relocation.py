"""Loading a serialized executable for other devices than those that it was compiled for."""

from __future__ import annotations

import io
import pickle
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax._src import compiler
from jax.experimental import serialize_executable


class NotMovedError(Exception):
    """The runtime does not load an executable for other devices."""


def dumped(executable: jax.stages.Compiled, devices: Sequence[jax.Device]) -> bytes:
    """An executable as ``loaded`` takes it. devices: those it is for, in the order of its mesh."""
    return pickle.dumps((*serialize_executable.serialize(executable), [device.id for device in devices]))


def loaded(content: bytes, devices: Sequence[jax.Device]) -> jax.stages.Compiled:
    """The executable for these devices, as many as it was compiled for, of the same kind.

    Raises ``NotMovedError`` where it works on its old devices only, and whatever else is wrong.
    """
    serialized, in_tree, out_tree, ids = pickle.loads(content)
    if ids == [device.id for device in devices]:
        return serialize_executable.deserialize_and_load(serialized, in_tree, out_tree, execution_devices=devices)
    try:
        unloaded, arguments, no_kwargs = _Unpickler(serialized, ids, devices).load()
        executable = unloaded.load()
        found = executable.xla_executable.local_devices()
    except Exception as error:
        raise NotMovedError(str(error)) from error
    if set(found) != set(devices):
        raise NotMovedError(f"it stays on {found}")
    return jax.stages.Compiled(executable, [], in_tree.unflatten(arguments), out_tree, no_kwargs=no_kwargs)


class _Unpickler(serialize_executable._JaxPjrtUnpickler):
    """Puts new devices in the place of old ones, and has the runtime assign the program to them."""

    def __init__(self, serialized: bytes, ids: Sequence[int], devices: Sequence[jax.Device]) -> None:
        super().__init__(io.BytesIO(serialized), devices[0].client, devices)
        self.devices_by_id = dict(zip(ids, devices, strict=True))

    def persistent_load(self, pid: tuple[Any, ...]) -> Any:
        if pid[0] != "exec":
            return super().persistent_load(pid)
        devices = list(self.devices_by_id.values())
        options = compiler.get_compile_options(
            num_replicas=1, num_partitions=len(devices),
            device_assignment=np.array([[device.id for device in devices]]))
        return self.backend.deserialize_executable(pid[1], self.execution_devices, options)
