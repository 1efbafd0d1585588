"""Files and folders that appear under their names when they are complete, or not at all."""

from __future__ import annotations

import contextlib
import errno
import fnmatch
import glob
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

from jaxllm.errors import CapacityError, ParameterError

_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, None)  # NumPy's tofile gives no number


def check_target(target: Path, sources: Iterable[Path], *, overwrite: bool, replaceable: Iterable[str] | None = None,
                 name: str = "target") -> None:
    """Raise ``ParameterError`` unless something new can be written there.

    sources: what is read meanwhile, and must stay. replaceable: patterns of the names that a folder may hold in order
    to be overwritten; ``None`` where a file is written. name: what the caller's parameter is called.
    """
    if not target.parent.is_dir():
        raise ParameterError(name, str(target), "a name in a folder that exists")
    if not os.path.lexists(target):
        return
    what = "file" if replaceable is None else "folder"
    if not overwrite:
        raise ParameterError(name, str(target), f"a {what} that is not there yet, or overwrite")
    if target.is_dir() != (replaceable is not None):
        raise ParameterError(name, str(target), f"a {what}, which this is not")
    if any(source.exists() and (target.samefile(source) or target.resolve() in source.resolve().parents)
           for source in sources):
        raise ParameterError(name, str(target), f"another {what} than the model itself")
    others = sorted(entry.name for entry in target.iterdir()
                    if not any(fnmatch.fnmatch(entry.name, pattern) for pattern in replaceable)) if replaceable else []
    if others:
        raise ParameterError(name, str(target), "a folder to overwrite that holds a model and nothing else; it has "
                             + ", ".join(others[:3]))


@contextlib.contextmanager
def written_whole(target: Path, nbytes: int) -> Iterator[Path]:
    """A path beside ``target``, to write a file or a folder at; what is there at the end takes the target's name.

    nbytes: how many that will be, about. Raises ``CapacityError`` where there is no room for them.
    """
    free = shutil.disk_usage(target.parent).free
    if nbytes > free:
        raise CapacityError(f"{target}: {nbytes:,} bytes are needed, and {free:,} are free in {target.parent}")
    _clear_up(target)
    partial = target.with_name(f"{target.name}.{os.getpid()}.part")
    try:
        yield partial
        _sync(partial)
        if partial.is_dir() and target.exists():
            old = target.with_name(f"{target.name}.{os.getpid()}.old")
            os.rename(target, old)
            try:
                os.rename(partial, target)
            except BaseException:
                os.rename(old, target)
                raise
            shutil.rmtree(old)
        else:
            os.replace(partial, target)
    except OSError as error:
        if error.errno not in _NO_SPACE:
            raise
        raise CapacityError(f"{target}: no room for its {nbytes:,} bytes in {target.parent}: "
                            f"{error.strerror or error}") from error
    finally:
        if partial.is_dir():
            shutil.rmtree(partial)
        else:
            partial.unlink(missing_ok=True)


def _clear_up(target: Path) -> None:
    """Remove what processes that were killed have left of their writing to this target; what one had moved away to
    replace it comes back."""
    for path in target.parent.glob(f"{glob.escape(target.name)}.*.*"):
        number, _, kind = path.name[len(target.name) + 1:].partition(".")
        if kind not in ("part", "old") or not number.isdecimal() or _runs(int(number)):
            continue
        if kind == "old" and not os.path.lexists(target):
            os.rename(path, target)
        elif path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def _runs(process: int) -> bool:
    if os.name != "posix":
        return True  # asking would end it
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def _sync(path: Path) -> None:
    """Have the data on the disk before the name is."""
    for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
        if file.is_file():
            with file.open("rb") as opened:
                os.fsync(opened.fileno())
