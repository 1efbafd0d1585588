"""Many processes that run one script on one mesh: how they start, agree on what must be equal, and end."""

from __future__ import annotations

import atexit
import dataclasses
import itertools
import json
import logging
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Any

import jax

from jaxllm.checks import check_integer
from jaxllm.errors import DistributedError, ParameterError
from jaxllm.parallel.launch import Launch, find_launch
from jaxllm.parallel.lifeline import Lifeline, connect

logger = logging.getLogger("jaxllm")

SHUTDOWN_SECONDS = 86_400
"""How long a process that has ended its script waits for the others, which may still write down what they have."""
WAIT_SECONDS = 60
"""After so long a wait for another process it is told of."""


@dataclasses.dataclass(frozen=True)
class Processes(Launch):
    """The processes of a job, and which of them this one is. hosts: of each."""

    hosts: tuple[str, ...]


@dataclasses.dataclass
class _State:
    """What ``initialize`` made. steps: what is said of this process when its script ends."""

    processes: Processes | None = None
    lifeline: Lifeline | None = None
    steps: Callable[[], Any] | None = None
    lock: threading.Lock = dataclasses.field(default_factory=threading.Lock)
    exchanges: itertools.count[int] = dataclasses.field(default_factory=itertools.count)


_state = _State()


def initialize(coordinator_address: str | None = None, num_processes: int | None = None,
               process_id: int | None = None, local_device_ids: int | Sequence[int] | None = None, *,
               heartbeat_timeout: int = 30, initialization_timeout: int = 300) -> Processes:
    """Join the other processes of the job; to be called by each, before anything that starts a backend of JAX.

    What is not given comes from ``COORDINATOR_ADDRESS``, ``NUM_PROCESSES``, ``PROCESS_ID`` and ``LOCAL_DEVICE_IDS``
    (also with ``JAX_`` in front), else from torchrun, Open MPI, SLURM, or Kubernetes (docs/distributed.md). If none of
    them tells of other processes there is one, and nothing is started. Called again it returns what it did the first
    time. Where ``jax.distributed.initialize`` was called before, that stands.

    coordinator_address: ``host:port``, where process 0 listens. local_device_ids: the accelerators of its host that
    this process may use; by default all, or, with several processes on a host, an equal share for each.
    heartbeat_timeout: seconds without a sign of life after which a process counts as lost. A process that dies is
    mostly noticed at once. initialization_timeout: seconds to wait for the others to start.

    From here on this process ends when another one is lost or raises, with an error that names it and exit code 1
    (134, SIGABRT, where JAX ends it), whatever its main thread does; and SIGTERM ends it, which ``jax.distributed``
    by itself catches. Collectives are NCCL's on GPUs and Gloo's on CPUs.

    Raises ``ParameterError`` for what is missing or wrong; ``DistributedError`` where a backend runs already, or the
    others cannot be reached.
    """
    check_integer("heartbeat_timeout", heartbeat_timeout, 1)
    check_integer("initialization_timeout", initialization_timeout, 1)
    with _state.lock:
        if _state.processes is not None:
            _check_same(_state.processes, coordinator_address=coordinator_address, num_processes=num_processes,
                        process_id=process_id, local_device_ids=local_device_ids)
            return _state.processes
        if jax.distributed.is_initialized():
            launch = _of_jax()
        else:
            launch = find_launch(coordinator_address, num_processes, process_id, local_device_ids)
        if launch.num_processes == 1:
            _state.processes = Processes(**vars(launch), hosts=(socket.gethostname(),))
            return _state.processes
        if not jax.distributed.is_initialized():
            _start(launch, heartbeat_timeout, initialization_timeout)
        _state.processes, _state.lifeline = _join(launch, heartbeat_timeout, initialization_timeout)
        _end_together()
        logger.info("process %d of %d (%s) on host %s; process 0 is on %s", launch.process_id, launch.num_processes,
                    launch.origin, socket.gethostname(), _state.processes.hosts[0])
        return _state.processes


def current() -> Processes | None:
    """What ``initialize`` returned; ``None`` before."""
    return _state.processes


def lifeline() -> Lifeline:
    """The connections to the other processes; ``DistributedError`` unless ``initialize`` was called, for several."""
    if _state.lifeline is None:
        raise DistributedError("a mesh of several processes' devices needs jaxllm.parallel.distributed.initialize(), "
                               "which each of them calls first")
    return _state.lifeline


def say_at_end(steps: Callable[[], Any]) -> None:
    """What the others find in ``Lifeline.ended`` once this process's script has ended."""
    _state.steps = steps


def exchange(name: str, value: Any) -> list[Any]:
    """What each of the processes gives, by process: JSON values. All call it, with the same names in the same order.

    It waits for the others as long as they live. A process that asks for something else meanwhile, or has ended its
    script, has another script: the job ends.
    """
    line, processes = lifeline(), _state.processes
    assert processes is not None
    store = _client()
    number = next(_state.exchanges)
    store.key_value_set(f"jaxllm/exchange/{number}/{processes.process_id}", json.dumps([name, value]))
    found: list[Any] = []
    for process in range(processes.num_processes):
        other, theirs = json.loads(_wait(store, f"jaxllm/exchange/{number}/{process}", line, process, name))
        if other != name:
            line.fail(f"asks for {name!r} where {line.name(process)} asks for {other!r}: all processes must do the "
                      "same in the same order")
        found.append(theirs)
    return found


def shared_seed(seed: int | None) -> int:
    """The seed that all processes use: theirs, which must be equal, or what process 0's operating system draws."""
    drawn = secrets.randbits(63)
    found = exchange("seed", [seed, drawn])
    require_equal("seed", [given for given, _ in found])
    return found[0][1] if seed is None else seed


def require_equal(name: str, values: Iterable[Any]) -> None:
    """``DistributedError``, raised by all processes, unless they gave equal values."""
    by_value: dict[str, list[int]] = {}
    for process, value in enumerate(values):
        by_value.setdefault(json.dumps(value, sort_keys=True), []).append(process)
    if len(by_value) > 1:
        parts = [f"{value} in process{'es' if len(who) > 1 else ''} {', '.join(map(str, who))}"
                 for value, who in by_value.items()]
        raise DistributedError(f"{name} must be the same in all processes; it is {'; '.join(parts)}")


def _start(launch: Launch, heartbeat_timeout: int, initialization_timeout: int) -> None:
    from jax._src import xla_bridge

    if xla_bridge.backends_are_initialized():
        raise DistributedError("initialize() must come before anything that starts a backend of JAX: a computation, "
                               "jax.devices(), jax.device_put or an LLM")
    address = launch.coordinator_address
    assert address is not None
    # It would catch SIGTERM, and let nothing come of it.
    jax.config.update("jax_enable_preemption_service", False)
    _wait_for_host(address.rpartition(":")[0].strip("[]"), initialization_timeout)
    try:
        jax.distributed.initialize(
            address, launch.num_processes, launch.process_id, launch.local_device_ids,
            cluster_detection_method="deactivate", initialization_timeout=initialization_timeout,
            heartbeat_timeout_seconds=heartbeat_timeout, shutdown_timeout_seconds=SHUTDOWN_SECONDS)
    except RuntimeError as error:
        raise DistributedError(
            f"process {launch.process_id} of {launch.num_processes} cannot join the others at {address} (from "
            f"{launch.origin}): it must be a host of process 0 and a free port there, which this host can reach, and "
            f"all {launch.num_processes} processes have to start within initialization_timeout="
            f"{initialization_timeout} seconds. JAX says: {error}") from error


def _wait_for_host(host: str, timeout: float) -> None:
    """Until its name is known; names of pods are only once they run."""
    deadline = time.monotonic() + timeout
    while True:
        try:
            socket.getaddrinfo(host, None)
        except socket.gaierror as error:
            if time.monotonic() > deadline:
                raise DistributedError(f"the coordinator's host {host!r} is not known here: {error}") from None
            time.sleep(1)
        else:
            return


def _join(launch: Launch, heartbeat_timeout: int, timeout: float) -> tuple[Processes, Lifeline]:
    hosts, connections = _connected(launch, "lifeline", timeout)
    line = Lifeline(launch.process_id, hosts, connections, silence=max(heartbeat_timeout / 2, 2))
    return Processes(**vars(launch), hosts=tuple(hosts)), line


def connections(name: str) -> dict[int, socket.socket]:
    """New ones: process 0's to all others, the others' to process 0. All call it, once for each name."""
    processes = _state.processes
    assert processes is not None
    return _connected(processes, name, 10 * WAIT_SECONDS)[1]


def _connected(launch: Launch, name: str, timeout: float) -> tuple[list[str], dict[int, socket.socket]]:
    store, key = _client(), f"jaxllm/{name}"
    assert launch.coordinator_address is not None

    def share(value: str | None) -> str:
        if value is None:
            return store.blocking_key_value_get(key, int(1000 * timeout))
        store.key_value_set(key, value)
        return value

    try:
        return connect(launch.process_id, launch.num_processes, launch.coordinator_address.rpartition(":")[0], share,
                       timeout=timeout)
    except (OSError, ValueError, RuntimeError) as error:
        raise DistributedError(f"process {launch.process_id} of {launch.num_processes} cannot connect with process 0 "
                               f"beside its coordinator at {launch.coordinator_address}, on any port: {error}"
                               ) from error


def _of_jax() -> Launch:
    from jax._src import distributed

    state = distributed.global_state
    return Launch(state.coordinator_address, state.num_processes, state.process_id, None, "jax.distributed.initialize")


def _client() -> Any:
    from jax._src import distributed

    return distributed.global_state.client


def _wait(store: Any, key: str, line: Lifeline, process: int, name: str) -> str:
    waited = 0
    while True:
        try:
            return store.blocking_key_value_get(key, 1000)
        except jax.errors.JaxRuntimeError as error:
            if "DEADLINE_EXCEEDED" not in str(error):
                raise
        if process in line.ended:
            line.fail(f"waits for {name!r} of {line.name(process)}, whose script has ended: all processes must do the "
                      "same")
        waited += 1
        if waited == WAIT_SECONDS:
            logger.warning("waiting for %s, which has not come to %r", line.name(process), name)


def _check_same(processes: Processes, **given: Any) -> None:
    for name, value in given.items():
        now = getattr(processes, name)
        wanted = tuple([value] if isinstance(value, int) else value) if name == "local_device_ids" and (
            value is not None) else value
        if wanted is not None and wanted != now:
            raise ParameterError(name, value, f"{now!r}, with which this process was initialized")


def _end_together() -> None:
    """End the others when this process raises; tell them when its script ends."""
    before = sys.excepthook

    def failed(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        before(kind, error, trace)
        if isinstance(error, jax.errors.JaxRuntimeError):
            time.sleep(2)  # it may be the consequence of a loss, which ends the process in a better way
        first = str(error).strip().splitlines()[0] if str(error).strip() else ""
        lifeline().fail(f"failed with {kind.__name__}{': ' * bool(first)}{first[:500]}", said=True)

    def ended() -> None:
        line = lifeline()
        at = None if _state.steps is None else _state.steps()
        line.ended[line.process] = at
        line.send({"kind": "ended", "process": line.process, "at": at})

    sys.excepthook = failed
    atexit.register(ended)


__all__ = ["DistributedError", "Processes", "connections", "current", "exchange", "initialize", "lifeline",
           "require_equal", "shared_seed"]
