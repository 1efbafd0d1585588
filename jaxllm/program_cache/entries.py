"""``Entries``: a folder of named byte strings of limited size, shared by processes, that no accident can spoil."""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

logger = logging.getLogger("jaxllm")

_SUFFIX = ".program"
_TEMPORARY = ".tmp"
_MAGIC = b"jaxllm2\n"
_DIGEST = hashlib.sha256().digest_size
_ABANDONED_SECONDS = 3600.0


@dataclass(frozen=True)
class Contents:
    """How many files a folder of entries has, and their bytes."""

    files: int
    bytes: int


class Entries:
    """Entries of a folder, which need not exist, of at most ``limit`` bytes together; the least recently used go first.

    Files appear whole or not at all, and say what they hold: one that is damaged is deleted, and is then simply not
    there. No locks are needed: processes that write the same entry write the same bytes. What goes wrong with the
    folder, such as a full disk or a lack of permission, is logged once and costs the entry only.

    An entry is run as machine code: the folder must belong to someone who is trusted, and is made for its owner alone.
    """

    def __init__(self, folder: Path, limit: int) -> None:
        self.folder = folder
        self.limit = limit
        self._complained = False

    def get(self, name: str) -> bytes | None:
        """The bytes of an entry, or ``None``."""
        path = self._path(name)
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            self._complain("read", error)
            return None
        value = _unpacked(name, content)
        if value is None:
            logger.warning("%s is damaged: it is deleted, and made again", path)
            self.delete(name)
            return None
        self._mark_used(path)
        return value

    def has(self, name: str) -> bool:
        """Whether there is an entry, whole or not."""
        return self._path(name).exists()

    def put(self, name: str, value: bytes) -> None:
        """Write an entry, and delete others as far as there is no room for it."""
        content = _packed(name, value)
        if len(content) > self.limit:
            return
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._make_room(len(content))
            self._write(self._path(name), content)
        except OSError as error:
            self._complain("written to", error)

    def delete(self, name: str) -> None:
        """Delete an entry, if it is there and can be."""
        try:
            self._path(name).unlink(missing_ok=True)
        except OSError as error:
            self._complain("written to", error)

    def contents(self) -> Contents:
        """What the folder holds now."""
        sizes = [status.st_size for _, status in self._files(_SUFFIX)]
        return Contents(len(sizes), sum(sizes))

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}{_SUFFIX}"

    def _write(self, path: Path, content: bytes) -> None:
        descriptor, temporary = tempfile.mkstemp(_TEMPORARY, dir=self.folder)
        try:
            with open(descriptor, "wb") as file:
                file.write(content)
            os.replace(temporary, path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise

    def _mark_used(self, path: Path) -> None:
        try:
            os.utime(path)
        except OSError:
            # A folder that cannot be written to is never made room in, which is all that the time is for.
            logger.debug("the time of %s cannot be set", path)

    def _make_room(self, needed: int) -> None:
        for path, status in self._files(_TEMPORARY):
            if time.time() - status.st_mtime > _ABANDONED_SECONDS:
                path.unlink(missing_ok=True)
        files = sorted(self._files(_SUFFIX), key=lambda file: file[1].st_mtime_ns)
        excess = sum(status.st_size for _, status in files) + needed - self.limit
        for path, status in files:
            if excess <= 0:
                return
            path.unlink(missing_ok=True)
            excess -= status.st_size

    def _files(self, suffix: str) -> Iterator[tuple[Path, os.stat_result]]:
        try:
            found = [entry for entry in os.scandir(self.folder) if entry.name.endswith(suffix)]
        except FileNotFoundError:
            return
        for entry in found:
            try:
                yield Path(entry.path), entry.stat()
            except FileNotFoundError:  # another process deleted it
                continue

    def _complain(self, what: str, error: OSError) -> None:
        if not self._complained:
            self._complained = True
            logger.warning("the compilation cache cannot be %s: %s", what, error)


def _packed(name: str, value: bytes) -> bytes:
    stored = zlib.compress(value, 1)
    return _MAGIC + _digest(name, stored) + stored


def _unpacked(name: str, content: bytes) -> bytes | None:
    """What was packed under this name, or ``None`` if it is not that or not whole."""
    start = len(_MAGIC) + _DIGEST
    stored = content[start:]
    whole = content.startswith(_MAGIC) and _digest(name, stored) == content[len(_MAGIC):start]
    return zlib.decompress(stored) if whole else None


def _digest(name: str, stored: bytes) -> bytes:
    return hashlib.sha256(name.encode() + b"\n" + stored).digest()
