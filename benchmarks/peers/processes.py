"""What a process and its descendants take, read from Linux's ``/proc``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path


def tree(root: int) -> list[int]:
    """A process and all its living descendants."""
    children: dict[int, list[int]] = {}
    for process, parent in _parents():
        children.setdefault(parent, []).append(process)
    found = [root]
    for process in found:
        found += children.get(process, [])
    return found


def peak_memory(root: int) -> int:
    """Bytes: the sum of the processes' largest resident sets, less what they share with each other now.

    Of a single process it is exact. Of several it is what they would have if all had their largest sets at once.
    """
    processes = [each for each in map(_memory, tree(root)) if each is not None]
    shared = sum(resident - proportional for _, resident, proportional in processes)
    return sum(peak for peak, _, _ in processes) - (shared if len(processes) > 1 else 0)


def _parents() -> Iterator[tuple[int, int]]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and (fields := stat(int(entry.name))) is not None:
            yield int(entry.name), int(fields[1])


def stat(process: int) -> list[str] | None:
    """The fields of ``/proc/PID/stat`` after the name, from the state on; ``None`` if the process has ended."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None


def _memory(process: int) -> tuple[int, int, int] | None:
    """Bytes: the largest resident set, the present one, and that with shared pages divided by their sharers."""
    try:
        status = Path(f"/proc/{process}/status").read_text()
        rollup = Path(f"/proc/{process}/smaps_rollup").read_text()
    except OSError:
        return None
    return _kilobytes(status, "VmHWM"), _kilobytes(rollup, "Rss"), _kilobytes(rollup, "Pss")


def _kilobytes(text: str, name: str) -> int:
    line = next((line for line in text.splitlines() if line.startswith(name + ":")), f"{name}: 0")
    return int(line.split()[1]) * 1024
