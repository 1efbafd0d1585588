"""``ExecutableCache``: executables kept on disk, found again by what they compute or by what they were made from."""

from __future__ import annotations

import collections
import functools
import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax

from jaxllm.program_cache import fingerprint, relocation
from jaxllm.program_cache.entries import Entries
from jaxllm.program_cache.folder import folder_of_jax, open_entries
from jaxllm.program_cache.trust import sources_are_trusted

logger = logging.getLogger("jaxllm")

SLOW_SECONDS = 2.0
"""A compilation that takes longer is told of."""
FOUND_EVENT = "/jaxllm/program_cache/found"
"""What ``jax.monitoring`` is told of each executable that needed no compilation."""


class ExecutableCache:
    """Compiles programs, or takes what an earlier process compiled.

    entries: where executables are kept; ``None`` compiles everything. JAX has a persistent cache too, but that is
    configured for a whole process, which belongs to others, keeps damaged files, and finds nothing without tracing.

    num_compiled, num_loaded: executables that were compiled here, and that were found.
    """

    def __init__(self, entries: Entries | None) -> None:
        self._entries = entries
        self.num_compiled = 0
        self.num_loaded = 0

    def get(self, title: str, lower: Callable[[], jax.stages.Lowered], description: tuple[object, ...] | None,
            devices: Sequence[jax.Device] = ()) -> Any:
        """The executable (``jax.stages.Compiled``) that ``lower()`` compiles to.

        It is found by the lowered program's text. Where the sources are trusted (``trust_sources``), it is found
        before that, with ``lower`` not called, by description: values whose text says everything that ``lower``
        depends on, beside the sources of jaxllm and the machine. ``None`` for what cannot be described. title: what a
        user is told when compiling takes long. devices: those it is for, which the text does not say, where it is not
        the default one alone; what several processes run together is compiled by each.

        ``lower`` runs in a thread of its own, where no context manager of the caller, such as
        ``jax.default_matmul_precision``, changes what it traces.
        """
        entries = self._entries
        if entries is None or any(device.process_index != jax.process_index() for device in devices):
            return self._compiled(title, _in_plain_thread(lower))
        described = None
        if description is not None and sources_are_trusted():
            described = fingerprint.of_description("program", *description)
            name = entries.get(described)
            found = None if name is None else self._found(entries, name.decode(), devices)
            if found is not None:
                return found
        lowered = _in_plain_thread(lower)
        text = lowered.as_text()
        if "callback" in text:
            # It holds the address of a Python function of this process.
            return self._compiled(title, lowered)
        trees = lowered.in_tree, lowered.out_tree
        # The text has no arguments that the program does not use, but the executable is called with all of them.
        given = [(like.shape, like.dtype.name, like.donated) for like in jax.tree.leaves(lowered.args_info)]
        name_of_text = fingerprint.digest("lowered for any devices", fingerprint.of_machine(), text, *trees,
                                          *map(fingerprint.types_of, trees), given,
                                          sorted({device.device_kind for device in _or_default(devices)}))
        with _lock_of(name_of_text):  # a replica that needs the same waits for it
            found = self._found(entries, name_of_text, devices)
            if found is None:
                with _JaxHits() as hits:
                    found = self._compiled(title, lowered)
                if hits.count or folder_of_jax() is not None:
                    return found
                taken = entries.has(name_of_text)  # by one that cannot be moved to these devices
                _keep(entries, _of_devices(name_of_text, devices) if taken else name_of_text, found, devices)
        if described is not None:
            entries.put(described, name_of_text.encode())
        return found

    def must_compile(self, description: tuple[object, ...] | None) -> bool:
        """Whether ``get`` is known to find nothing by this description, so that it traces and mostly compiles."""
        if self._entries is None or description is None or not sources_are_trusted():
            return False
        return not self._entries.has(fingerprint.of_description("program", *description))

    def _compiled(self, title: str, lowered: jax.stages.Lowered) -> jax.stages.Compiled:
        # A warning is seen where logging is not set up, as in most notebooks.
        watch = threading.Timer(SLOW_SECONDS, logger.warning, ("compiling %s ...", title))
        watch.daemon = True
        watch.start()
        started = time.perf_counter()
        try:
            compiled = lowered.compile()
        finally:
            watch.cancel()
        logger.debug("compiled %s in %.2f s", title, time.perf_counter() - started)
        self.num_compiled += 1
        return compiled

    def _found(self, entries: Entries, name: str, devices: Sequence[jax.Device]) -> jax.stages.Compiled | None:
        """What was compiled for these devices, where that was necessary, or else for others."""
        own = self._loaded(entries, _of_devices(name, devices), devices)
        return self._loaded(entries, name, devices) if own is None else own

    def _loaded(self, entries: Entries, name: str, devices: Sequence[jax.Device]) -> jax.stages.Compiled | None:
        content = entries.get(name)
        if content is None:
            return None
        try:
            executable = relocation.loaded(content, _or_default(devices))
        except relocation.NotMovedError as error:
            logger.debug("a compiled program cannot be moved to other devices and is compiled for them: %s", error)
            return None
        except Exception as error:
            # Whole, and yet of no use: whatever it is, compiling again is the remedy.
            logger.warning("a compiled program cannot be loaded and is compiled again: %s", error)
            entries.delete(name)
            return None
        self.num_loaded += 1
        jax.monitoring.record_event(FOUND_EVENT)
        return executable


class _JaxHits:
    """Counts what this thread finds in JAX's persistent cache.

    On CPUs an executable that came from there says that it can be serialized, and loses its functions in it.
    """

    _counts = threading.local()

    def __enter__(self) -> _JaxHits:
        _listen()
        self._before = getattr(self._counts, "hits", 0)
        self.count = 0
        return self

    def __exit__(self, *error: object) -> None:
        self.count = getattr(self._counts, "hits", 0) - self._before

    @classmethod
    def add(cls) -> None:
        """Count one."""
        cls._counts.hits = getattr(cls._counts, "hits", 0) + 1


@functools.cache
def _listen() -> None:
    def heard(event: str, **_: object) -> None:
        if event == "/jax/compilation_cache/cache_hits":
            _JaxHits.add()

    jax.monitoring.register_event_listener(heard)


def _keep(entries: Entries, name: str, compiled: jax.stages.Compiled, devices: Sequence[jax.Device]) -> None:
    try:
        content = relocation.dumped(compiled, _or_default(devices))
    except Exception as error:
        logger.debug("a compiled program cannot be kept: %s", error)
        return
    entries.put(name, content)


def _or_default(devices: Sequence[jax.Device]) -> list[jax.Device]:
    return list(devices) or jax.local_devices()[:1]


def _of_devices(name: str, devices: Sequence[jax.Device]) -> str:
    return fingerprint.digest(name, [device.id for device in _or_default(devices)])


_locks: collections.defaultdict[str, threading.Lock] = collections.defaultdict(threading.Lock)
_locks_lock = threading.Lock()


def _lock_of(name: str) -> threading.Lock:
    with _locks_lock:
        return _locks[name]


def open_cache() -> ExecutableCache:
    """The cache in the folder of this process (``cache_folder``)."""
    return ExecutableCache(open_entries())


def _in_plain_thread(function: Callable[[], jax.stages.Lowered]) -> jax.stages.Lowered:
    with ThreadPoolExecutor(1, "trace") as pool:
        return pool.submit(function).result()
