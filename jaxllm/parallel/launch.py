"""Where a process stands among those of its job, as SLURM, Open MPI, torchrun, Kubernetes or plain variables say it."""

from __future__ import annotations

import dataclasses
import os
import re
import socket
from collections.abc import Callable, Sequence
from pathlib import Path

from jaxllm.checks import check_integer
from jaxllm.errors import ParameterError

ADDRESS, COUNT, ID, DEVICES = "COORDINATOR_ADDRESS", "NUM_PROCESSES", "PROCESS_ID", "LOCAL_DEVICE_IDS"
"""The plain variables; each may also be written with ``JAX_`` in front."""
KUBERNETES_PORT = 55527
"""Of the coordinator where only its host is known; JAX's own choice. ``JAX_COORDINATOR_PORT`` is another."""


@dataclasses.dataclass(frozen=True)
class Launch:
    """One process of a job.

    coordinator_address: ``host:port`` of process 0; ``None`` where there is one process.
    local_device_ids: the accelerators of its host that it may use; ``None`` for all.
    origin: who says so, in words.
    """

    coordinator_address: str | None
    num_processes: int
    process_id: int
    local_device_ids: tuple[int, ...] | None
    origin: str


@dataclasses.dataclass(frozen=True)
class _Launcher:
    """What a launcher's variables say. address: asked for only where nobody gives one."""

    name: str
    num_processes: int | None
    process_id: int
    address: Callable[[], str]
    local_id: int = 0
    num_local: int = 1


def find_launch(coordinator_address: str | None = None, num_processes: int | None = None,
                process_id: int | None = None, local_device_ids: int | Sequence[int] | None = None) -> Launch:
    """Each value from the arguments, else the plain variables, else the launcher's own; one process if none is there.

    The launchers are looked for in this order: torchrun, Open MPI, SLURM, Kubernetes. ``ParameterError`` names the
    variable that is missing or wrong, its value, and what is allowed.
    """
    address = _given("coordinator_address", coordinator_address, ADDRESS)
    count = _integer(*_given("num_processes", num_processes, COUNT), low=1)
    place = _integer(*_given("process_id", process_id, ID), low=0)
    devices = _devices(*_given("local_device_ids", local_device_ids, DEVICES))
    if count == 1 and not place:
        return Launch(None, 1, 0, devices, "arguments or variables")
    launcher = None if None not in (address[1], count, place) else _launcher()
    if launcher is None:
        named = {ADDRESS: address[1], COUNT: count, ID: place}
        present = [f"{name}={value!r}" for name, value in named.items() if value is not None]
        if not present:
            return Launch(None, 1, 0, devices, "nothing that tells of other processes")
        for name, value in named.items():
            if value is None:
                raise ParameterError(name, None, f"set it, or give {name.lower()}=: beside {' and '.join(present)} it "
                                     "is not known otherwise, without SLURM, Open MPI, torchrun or Kubernetes")
        origin = "arguments or variables"
    else:
        origin = launcher.name
        place = launcher.process_id if place is None else place
        count = launcher.num_processes if count is None else count
        if count is None:
            raise ParameterError(COUNT, None, f"set it to the number of processes, which {origin} tells to none of "
                                 "them (for a Job: its completions)")
        if count == 1 and place == 0:
            return Launch(None, 1, 0, devices, origin)
        if devices is None:
            devices = _share(launcher)
        if address[1] is None:
            address = (ADDRESS, launcher.address())
    assert count is not None
    assert place is not None
    if place >= count:
        raise ParameterError(ID, place, f"less than {COUNT}, which is {count}")
    return Launch(_checked_address(*address), count, place, devices, origin)


def _given(argument: str, value: object, variable: str) -> tuple[str, object]:
    """What is given under which name: an argument, or a variable with or without ``JAX_``."""
    if value is not None:
        return argument, value
    found = {name: os.environ[name] for name in (variable, f"JAX_{variable}") if os.environ.get(name)}
    if len(set(found.values())) > 1:
        raise ParameterError(variable, found[variable], f"JAX_{variable} is {found[f'JAX_{variable}']!r}: set one")
    return next(iter(found.items()), (variable, None))


def _integer(name: str, value: object, low: int) -> int | None:
    if isinstance(value, str):
        value = int(value) if re.fullmatch(r"\d+", value.strip()) else value
    return None if value is None else check_integer(name, value, low)


def _devices(name: str, value: object) -> tuple[int, ...] | None:
    allowed = "numbers of devices, like 0,1, each once"
    if value is None:
        return None
    given = value.split(",") if isinstance(value, str) else [value] if isinstance(value, int) else value
    if not isinstance(given, Sequence):
        raise ParameterError(name, value, allowed)
    found = tuple(_integer(name, item, 0) for item in given)
    if not found or len(set(found)) < len(found):
        raise ParameterError(name, value, allowed)
    return found  # type: ignore[return-value]  # none of the items was None


def _checked_address(name: str, address: object) -> str:
    host, _, port = address.rpartition(":") if isinstance(address, str) else ("", "", "")
    if not host or not re.fullmatch(r"\d{1,5}", port) or not 0 < int(port) < 65536 or (
            ":" in host and not re.fullmatch(r"\[.+\]", host)):
        raise ParameterError(name, address, "host:port, the same on all processes: a host of process 0 that the others "
                             "reach, and a port that is free there")
    assert isinstance(address, str)
    return address


def _launcher() -> _Launcher | None:
    return _torchrun() or _open_mpi() or _slurm() or _kubernetes()


def _required(name: str, because: str, low: int = 0) -> int:
    value = _integer(name, os.environ.get(name), low)
    if value is None:
        raise ParameterError(name, None, f"an integer >= {low}, as {because} is set: it is the launcher's to set")
    return value


def _torchrun() -> _Launcher | None:
    present = [name for name in ("RANK", "WORLD_SIZE") if name in os.environ]
    if not present:
        return None
    because = f"{present[0]}={os.environ[present[0]]!r}"

    def address() -> str:
        host = os.environ.get("MASTER_ADDR")
        if not host:
            raise ParameterError("MASTER_ADDR", host, f"the host of process 0, as {because} is set")
        # torchrun itself listens on its port.
        own = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        return f"{_bracketed(host)}:{_required('MASTER_PORT', because, 1) + own}"

    return _Launcher("torchrun", _required("WORLD_SIZE", because, 1), _required("RANK", because), address,
                     _integer("LOCAL_RANK", os.environ.get("LOCAL_RANK"), 0) or 0,
                     _integer("LOCAL_WORLD_SIZE", os.environ.get("LOCAL_WORLD_SIZE"), 1) or 1)


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def _open_mpi() -> _Launcher | None:
    names = [f"OMPI_COMM_WORLD_{name}" for name in ("SIZE", "RANK", "LOCAL_RANK", "LOCAL_SIZE")]
    present = [name for name in names[:2] if name in os.environ]
    if not present:
        return None
    because = f"{present[0]}={os.environ[present[0]]!r}"

    def address() -> str:
        from jax._src.clusters import OmpiCluster

        try:
            return OmpiCluster.get_coordinator_address(None, os.environ.get("JAX_COORDINATOR_PORT"))
        except (RuntimeError, KeyError, ValueError) as error:
            raise ParameterError(ADDRESS, None, f"host:port of process 0, as in mpirun -x {ADDRESS}=node1:1234; it "
                                 f"cannot be found otherwise ({error})") from None

    size, rank = _required(names[0], because, 1), _required(names[1], because)
    return _Launcher("Open MPI", size, rank, address, _integer(names[2], os.environ.get(names[2]), 0) or 0,
                     _integer(names[3], os.environ.get(names[3]), 1) or 1)


def _slurm() -> _Launcher | None:
    if "SLURM_JOB_ID" not in os.environ:
        return None
    tasks = _integer("SLURM_NTASKS", os.environ.get("SLURM_NTASKS"), 1)
    if "SLURM_STEP_NODELIST" not in os.environ:
        if tasks is None or tasks == 1:
            return None
        raise ParameterError("SLURM_NTASKS", tasks, "the script runs once, outside of a step (SLURM_STEP_NODELIST is "
                             f"not set): start it with srun, or set {COUNT}=1 for one process")
    because = f"SLURM_STEP_NODELIST={os.environ['SLURM_STEP_NODELIST']!r}"
    of_step = _integer("SLURM_STEP_NUM_TASKS", os.environ.get("SLURM_STEP_NUM_TASKS"), 1)
    count = of_step or _required("SLURM_NTASKS", because, 1)

    def address() -> str:
        from jax._src.clusters import SlurmCluster

        return SlurmCluster.get_coordinator_address(None, os.environ.get("JAX_COORDINATOR_PORT"))

    return _Launcher("SLURM", count, _required("SLURM_PROCID", because), address,
                     _required("SLURM_LOCALID", because), _tasks_here(count))


def _tasks_here(count: int) -> int:
    """How many tasks of the step this node has; SLURM writes ``2(x3),1`` for 2, 2, 2 and 1."""
    for name in ("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"):
        text = os.environ.get(name)
        if text is None:
            continue
        tasks: list[int] = []
        for part in text.split(","):
            found = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part)
            if found is None:
                raise ParameterError(name, text, "numbers of tasks as SLURM writes them, like 2(x3),1")
            tasks += [int(found[1])] * int(found[2] or 1)
        node = _integer("SLURM_NODEID", os.environ.get("SLURM_NODEID"), 0) or 0
        if node >= len(tasks):
            raise ParameterError("SLURM_NODEID", node, f"less than {len(tasks)}, the nodes in {name}={text!r}")
        return tasks[node]
    return count


def _kubernetes() -> _Launcher | None:
    if "JOB_COMPLETION_INDEX" not in os.environ:
        return None
    index = _required("JOB_COMPLETION_INDEX", "JOB_COMPLETION_INDEX")

    def address() -> str:
        # A pod with a subdomain, as JobSet gives it: JOB-INDEX.SUBDOMAIN.NAMESPACE.svc...
        name = socket.getfqdn()
        found = re.fullmatch(rf"(.+)-{index}(\..+)", name)
        if found is None:
            raise ParameterError(ADDRESS, None, f"host:port of process 0: the pod's name, {name!r}, does not tell, as "
                                 "it is not JOB-INDEX.SUBDOMAIN (spec.subdomain names a headless service)")
        return f"{found[1]}-0{found[2]}:{os.environ.get('JAX_COORDINATOR_PORT') or KUBERNETES_PORT}"

    return _Launcher("Kubernetes", None, index, address)


def _share(launcher: _Launcher) -> tuple[int, ...] | None:
    """The accelerators of one of several processes on a host; ``None`` for all that it sees."""
    if launcher.num_local == 1:
        return None
    visible = _num_visible()
    if visible <= 1:  # none to share, or one that the launcher chose for this process
        return None
    if visible % launcher.num_local:
        raise ParameterError(DEVICES, None, f"the device numbers of each process: {visible} GPUs cannot be shared "
                             f"equally by the {launcher.num_local} processes on {socket.gethostname()}")
    each = visible // launcher.num_local
    return tuple(range(launcher.local_id * each, (launcher.local_id + 1) * each))


def _num_visible() -> int:
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if listed is not None:
        return len([name for name in listed.split(",") if name.strip()])
    return sum(1 for path in Path("/dev").glob("nvidia*") if re.fullmatch(r"nvidia\d+", path.name))
