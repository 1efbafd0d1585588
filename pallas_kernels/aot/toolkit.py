"""Where NVIDIA's assembler is."""

from __future__ import annotations

import functools
import importlib.util
from pathlib import Path


@functools.cache
def find_cuda_dir() -> Path | None:
    """The folder that the wheels of nvidia-cuda-nvcc and nvidia-nvvm fill, with bin/ptxas, or ``None``."""
    spec = importlib.util.find_spec("nvidia")
    for root in (spec.submodule_search_locations or ()) if spec is not None else ():
        if (Path(root) / "cu13" / "bin" / "ptxas").exists():
            return Path(root) / "cu13"
    return None


def cuda_dir() -> Path:
    """The same; raises RuntimeError where it is not installed."""
    found = find_cuda_dir()
    if found is None:
        raise RuntimeError("no ptxas: install the packages nvidia-cuda-nvcc and nvidia-nvvm (the aot extra)")
    return found
