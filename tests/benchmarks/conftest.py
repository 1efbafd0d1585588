from __future__ import annotations

import sys
from pathlib import Path

# The benchmarks are scripts, which import each other as neighbours; so do these tests.
sys.path[:0] = [str(Path(__file__).parents[2] / "benchmarks"), str(Path(__file__).parent)]
