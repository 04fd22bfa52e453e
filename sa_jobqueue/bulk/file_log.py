"""A load's log in a file, ``load.jsonl`` in a folder of its own.

::

    BulkLoad(source, FileLog("loads/2024-05-17")).run()

The file is only ever appended to. A mark in doubt is durable before its commit, so after a
crash at most one batch is in doubt, and the database is asked about it. Every line carries a
checksum. A last line without its end was being written when the process or the machine went
down, and is dropped; every other damaged line is refused with its number.

The folder has to be on a disk of this machine: network file systems may keep neither the lock
nor the order of writes.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO
from zlib import crc32

from sqlalchemy import Connection

from ..errors import BrokenLog, UnsupportedDatabase
from .log import Log

fcntl: ModuleType | None
try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

#: Seconds to wait for the lock, which a process that only peeks has for a moment.
_PEEKING = 0.1

_BEGIN, _MIDDLE, _END = b'{"crc":"', b'","entry":', b"}\n"
_HEAD = len(_BEGIN) + 8 + len(_MIDDLE)

_sync_data = getattr(os, "fdatasync", os.fsync)


class FileLog(Log):
    """A log in a folder, which is created where it is missing; an empty folder is a new load.

    Args:
        folder: for this load alone.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self.name = str(self.folder)
        self._path = self.folder / "load.jsonl"
        self._size = 0
        self._lock: int | None = None
        self._file: BinaryIO | None = None

    def __repr__(self) -> str:
        return f"FileLog({self.name!r})"

    def lock(self) -> bool:
        self.folder.mkdir(parents=True, exist_ok=True)
        descriptor = _lock(self.folder, seconds=_PEEKING)
        if descriptor is not None:
            self._lock = descriptor
        return descriptor is not None

    def is_locked(self) -> bool:
        if not self.folder.exists():
            return False
        descriptor = _lock(self.folder)
        if descriptor is not None:
            os.close(descriptor)
        return descriptor is None

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        if self._lock is not None:
            os.close(self._lock)
        self._file = self._lock = None

    def entries(self) -> Iterator[tuple[int, Any]]:
        self._size = 0
        for line in _whole_lines(self._path):
            yield self._size, None if line.startswith(b'{"redo":', _HEAD) else _entry_of(line)
            self._size += len(line)

    def entry_at(self, place: int) -> Any:
        with self._path.open("rb") as file:
            file.seek(place)
            return _entry_of(file.readline())

    def append(self, entry: Any, *, durable: bool, connection: Connection | None = None) -> int:
        if self._file is None:
            self._file = self._path.open("ab")
            self._file.truncate(self._size)  # without a torn last line
            self._file.seek(self._size)
            _sync_folder(self.folder)
        place = self._file.tell()
        self._file.write(_line_of(entry))
        self._file.flush()
        if durable:
            _sync_data(self._file.fileno())
        return place

    def clear(self) -> None:
        self._path.unlink()
        _sync_folder(self.folder)


# -- lines --------------------------------------------------------------


def _line_of(entry: Any) -> bytes:
    return _with_checksum(json.dumps(entry, separators=(",", ":"), ensure_ascii=False).encode())


def _with_checksum(body: bytes) -> bytes:
    return b"%s%08x%s%s%s" % (_BEGIN, crc32(body), _MIDDLE, body, _END)


def _entry_of(line: bytes) -> Any:
    return json.loads(line[_HEAD : -len(_END)])


def _whole_lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a file, without a torn last line."""
    if not path.exists():
        return
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if line != _with_checksum(line[_HEAD : -len(_END)]):
                # After a power cut, blocks that were not written yet may read as zeros.
                if (b"\0" in line or not line.endswith(b"\n")) and not file.readline():
                    return
                raise BrokenLog(
                    f"{path}, line {number}: damaged. A crash damages only the end of a file; "
                    "restore the file from a copy."
                )
            yield line


# -- folders ------------------------------------------------------------


def _lock(folder: Path, seconds: float = 0) -> int | None:
    """Lock a folder and return the descriptor to close; None: others kept it locked so long."""
    if fcntl is None:
        raise UnsupportedDatabase(
            "FileLog needs flock(), which this platform's Python does not have (the module "
            "fcntl): use DatabaseLog."
        )
    descriptor, until = os.open(folder, os.O_RDONLY), time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until:
                os.close(descriptor)
                return None
            time.sleep(0.01)
        else:
            return descriptor


def _sync_folder(folder: Path) -> None:
    """Make durable which files a folder has."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
