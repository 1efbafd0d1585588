"""What besides the program itself decides what an executable is, as text to be hashed."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import os
import platform
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jaxlib

import jaxllm
import pallas_kernels
from pallas_kernels import registry

_ENVIRONMENT_PREFIXES = ("XLA_", "TF_XLA_", "LIBTPU_", "PALLAS_KERNELS_")
_WITHOUT_EFFECT = ("compilation_cache", "persistent_cache", "jax_log_", "jax_logging_", "jax_dump_")
"""Parts of the names of JAX's settings that change where programs are kept and what is told, but not programs."""


def digest(*parts: object) -> str:
    """A name for some values by their text, which must say all about them."""
    joined = hashlib.sha256()
    for part in parts:
        text = str(part).encode("utf-8", "surrogatepass")
        # Lengths, so that what is in one part cannot move to the next unseen.
        joined.update(b"%d " % len(text) + text)
    return joined.hexdigest()


def of_machine() -> str:
    """What compiled code depends on: versions, device, processor, threads and settings of JAX and XLA."""
    return digest(_unchanging(), _settings(), _environment())


def of_sources() -> str:
    """What tracing depends on beside that: the source files of both packages, Flax, and the kernels there are to choose
    from.

    The latter loads native libraries, whose functions executables call by name.
    """
    kernels = {operation: registry.implementations(operation) for operation in registry.operations()}
    return digest(_source_files(), _version("flax"), kernels)


def of_description(*description: object) -> str:
    """A name for what comes of these values' text, the sources and the machine."""
    return digest("described", of_machine(), of_sources(), *description)


def types_of(tree: jax.tree_util.PyTreeDef) -> list[str]:
    """Where the classes of a tree are defined, which is what a kept executable knows them by."""
    node = tree.node_data()
    if node is None:
        return []
    kind: type = node[0]
    return [f"{kind.__module__}.{kind.__qualname__}", *(name for child in tree.children() for name in types_of(child))]


@functools.cache
def _unchanging() -> str:
    device = jax.local_devices()[0]
    threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return digest(jax.__version__, jaxlib.__version__, sys.version_info[:2], device.client.platform_version,
                  device.device_kind, device.id, jax.device_count(), platform.machine(), _processor(), threads)


@functools.cache
def _version(package: str) -> str:
    """Without importing it."""
    return importlib.metadata.version(package)


def _processor() -> list[str]:
    """The processor's name and what it can do: folders are shared between machines, code for one may fail on others."""
    wanted = ("model name", "flags", "CPU implementer", "CPU part", "Features")
    try:
        lines = Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
    except OSError:
        return [platform.processor()]
    return [line for line in lines if line.startswith(wanted)]


def _settings() -> list[tuple[str, Any]]:
    return [(name, value) for name, value in sorted(jax.config.values.items())
            if not any(part in name for part in _WITHOUT_EFFECT)]


def _environment() -> list[tuple[str, str]]:
    return sorted((name, value) for name, value in os.environ.items() if name.startswith(_ENVIRONMENT_PREFIXES))


@functools.cache
def _source_files() -> str:
    return digest(*(part for package in (jaxllm, pallas_kernels) for folder in package.__path__
                    for part in _texts(Path(folder))))


def _texts(folder: Path) -> Iterator[str]:
    for parent, folders, files in os.walk(folder):
        folders.sort()
        for file in sorted(files):
            if file.endswith(".py"):
                path = Path(parent, file)
                yield str(path.relative_to(folder))
                yield path.read_text("utf-8")
