"""The native library: finding it, loading it, entering its targets with XLA, choosing an instruction set.

Environment:
    PALLAS_KERNELS_CPU_LIBRARY: a library to load in place of the installed one, for example one with sanitizers; one
        that cannot be loaded is an error.
    PALLAS_KERNELS_CPU_INSTRUCTION_SET: the best instruction set to use, one of ``INSTRUCTION_SETS``.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import os
from pathlib import Path

import jax

import pallas_kernels.cpu as package
from pallas_kernels.environment import CPU_INSTRUCTION_SET, CPU_LIBRARY
from pallas_kernels.errors import ChoiceError

logger = logging.getLogger("pallas_kernels")

INSTRUCTION_SETS = ("none", "avx2", "avx512f", "avx512_bf16", "amx_bf16", "neon")
"""Numbered as the library numbers them, those of x86 in ascending order; with the first no kernel runs."""

_FILE = "libpallas_kernels_cpu.so"


class _Target(ctypes.Structure):
    pass


_Target._fields_ = [("name", ctypes.c_char_p), ("handler", ctypes.c_void_p), ("next", ctypes.POINTER(_Target))]


def unavailable() -> str | None:
    """Why there are no native kernels here; ``None`` where there are."""
    library = _load()
    if isinstance(library, str):
        return library
    return None if _available(library) else "this processor has none of AVX2 with FMA and F16C, AVX-512, NEON"


def instruction_set() -> str:
    """The instruction set in use: a name from ``INSTRUCTION_SETS``."""
    library = _load()
    return "none" if isinstance(library, str) else INSTRUCTION_SETS[library.pallas_kernels_cpu_instruction_set()]


def instruction_sets() -> tuple[str, ...]:
    """Those that kernels can use here, in ascending order."""
    library = _load()
    return () if isinstance(library, str) else _available(library)


def use_instruction_set(name: str) -> None:
    """Use this instruction set from now on, in programs compiled already as well.

    Raises ChoiceError where the library or the processor lacks it.
    """
    library = _load()
    if isinstance(library, str):
        raise ChoiceError(f"instruction set {name!r}: there are no native kernels here: {library}")
    _check(name, library, "instruction set")
    library.pallas_kernels_cpu_use_instruction_set(INSTRUCTION_SETS.index(name))


def require(target: str) -> str:
    """The name of a target, for ``jax.ffi.ffi_call``, once the library that brings it is loaded.

    Raises RuntimeError where it is not there.
    """
    reason = unavailable()
    if reason is None and target not in _targets():
        reason = f"the library was built from other sources: it has no {target}; install the package again"
    if reason is not None:
        raise RuntimeError(f"no native kernels: {reason}")
    return target


@functools.cache
def _load() -> ctypes.CDLL | str:
    """The library, its targets entered; or why there is none. Logged once."""
    library = _open()
    if isinstance(library, str):
        logger.info("no native kernels, XLA computes everything: %s", library)
    else:
        number = library.pallas_kernels_cpu_instruction_set()
        logger.info("native kernels: %s", INSTRUCTION_SETS[number])
    return library


def _open() -> ctypes.CDLL | str:
    file = _find()
    if file is None:
        return "the package was installed without them (no C++ compiler, or not Linux on x86-64 or 64-bit Arm)"
    try:
        library = ctypes.CDLL(str(file))
        library.pallas_kernels_cpu_targets.restype = ctypes.POINTER(_Target)
        library.pallas_kernels_cpu_use_instruction_set.argtypes = [ctypes.c_int]
        library.pallas_kernels_cpu_use_instruction_set.restype = None
        library.pallas_kernels_cpu_has_instruction_set.argtypes = [ctypes.c_int]
        library.pallas_kernels_cpu_has_instruction_set.restype = ctypes.c_bool
    except (OSError, AttributeError) as error:  # no library, or another one
        if chosen := os.environ.get(CPU_LIBRARY):
            raise ChoiceError(f"{CPU_LIBRARY}={chosen!r} cannot be loaded: {error}") from error
        return f"the library cannot be loaded: {error}"
    if wanted := os.environ.get(CPU_INSTRUCTION_SET):
        _check(wanted, library, CPU_INSTRUCTION_SET)
        library.pallas_kernels_cpu_use_instruction_set(INSTRUCTION_SETS.index(wanted))
    return _enter(library)


def _find() -> Path | None:
    if chosen := os.environ.get(CPU_LIBRARY):
        return Path(chosen)
    files = (Path(folder, _FILE) for folder in package.__path__)
    return next((file for file in files if file.exists()), None)


def _enter(library: ctypes.CDLL) -> ctypes.CDLL | str:
    """Register every target with XLA now: executables from a persistent cache call them without having been traced."""
    try:
        for name, handler in _walk(library):
            jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(handler), platform="cpu")
    except Exception as error:  # jaxlib raises its own kinds, for example for another version of the FFI
        return f"this jaxlib does not take the library: {error}"
    return library


def _walk(library: ctypes.CDLL) -> list[tuple[str, int]]:
    targets = []
    target = library.pallas_kernels_cpu_targets()
    while target:
        targets.append((target.contents.name.decode(), target.contents.handler))
        target = target.contents.next
    return targets


@functools.cache
def _targets() -> frozenset[str]:
    library = _load()
    return frozenset() if isinstance(library, str) else frozenset(name for name, _ in _walk(library))


def _available(library: ctypes.CDLL) -> tuple[str, ...]:
    has = library.pallas_kernels_cpu_has_instruction_set
    return tuple(name for number, name in enumerate(INSTRUCTION_SETS) if number > 0 and has(number))


def _check(name: str, library: ctypes.CDLL, source: str) -> None:
    allowed = _available(library)
    if name not in allowed:
        raise ChoiceError(f"{source}={name!r}: this machine has {', '.join(allowed) or 'none of them'}")
