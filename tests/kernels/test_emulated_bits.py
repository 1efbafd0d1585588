"""The kernels for Arm compute the bits of those for x86: both are compiled alone, the former run in an emulator.

Needs a compiler for 64-bit Arm and QEMU (on Debian: g++-aarch64-linux-gnu and qemu-user).
"""

from __future__ import annotations

import platform
import shutil
import subprocess
from pathlib import Path

import pytest

SOURCES = Path(__file__).parents[2] / "pallas_kernels/cpu/src"
OPTIONS = ["-std=c++17", "-O2", "-ffp-contract=off", "-fno-math-errno", f"-I{SOURCES}"]
ARM, EMULATOR, HERE = "aarch64-linux-gnu-g++", "qemu-aarch64", "g++"

pytestmark = [
    pytest.mark.sweep,
    pytest.mark.skipif(platform.machine() != "x86_64" or not all(map(shutil.which, (ARM, EMULATOR, HERE))),
                       reason=f"needs {ARM}, {EMULATOR} and {HERE}"),
]


def build(compiler: str, instruction_set: str, folder: Path, *flags: str) -> str:
    """The program that prints hashes of what the kernels compute."""
    program = str(folder / instruction_set)
    sources = [Path(__file__).with_name("same_bits.cpp"), *sorted(SOURCES.glob("*_each.cpp")),
               SOURCES / "attention_plan.cpp", SOURCES / "instruction_set.cpp"]
    subprocess.run([compiler, *OPTIONS, *flags, f"-DINSTRUCTION_SET={instruction_set}", *sources, "-o", program],
                   check=True)
    return program


def test_kernels_for_arm_compute_the_bits_of_those_for_x86(tmp_path):
    here = build(HERE, "avx2", tmp_path, "-mavx2", "-mfma", "-mf16c")
    there = build(ARM, "neon", tmp_path, "-static")
    expected, found = (subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
                       for command in ([here], [EMULATOR, there]))
    assert len(expected) > 20
    assert found == expected
