"""The rule of ``mosaic_gpu/wgmma.py``: every product of a warpgroup goes through it, and is waited for."""

from __future__ import annotations

import re
from pathlib import Path

import pallas_kernels

PACKAGE = Path(pallas_kernels.__file__).parent


def test_no_other_file_multiplies_by_warpgroups():
    callers = {path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py")
               if re.search(r"\bplgpu\.(wgmma|ACC|WGMMAAccumulatorRef)", path.read_text())}
    assert callers == {"mosaic_gpu/wgmma.py"}
