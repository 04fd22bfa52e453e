"""A load's log in a file, ``load.jsonl`` in a folder of its own.

::

    BulkLoad(source, FileLog("loads/2024-05-17")).run()

The file is only ever appended to: heads, redo entries and marks, in the order in which they
happened. A mark in doubt is durable before its commit, so after a crash at most one batch is
in doubt, and the database is asked about it. Every line carries a checksum. A last line
without its end was being written when the process or the machine went down, and is dropped;
every other damaged line is refused with its number.

The folder has to be on a disk of this machine: network file systems may keep neither the lock
nor the order of writes.
"""

from __future__ import annotations

import json
import os
import time
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO
from zlib import crc32

from sqlalchemy import Connection

from ..errors import BrokenLog, UnsupportedDatabase
from .log import IN_DOUBT, NOTHING, VERSION, Head, Log, check_version
from .states import LoadState

fcntl: ModuleType | None
try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

#: How each mark is written.
_MARKS = ("nothing", "inserting", "inserted", "removing", "removed")

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
        self._lock: int | None = None
        self._file: BinaryIO | None = None

    def __repr__(self) -> str:
        return f"FileLog({self.name!r})"

    # -- the whole ------------------------------------------------------

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
        file, self._file = self._file, None
        descriptor, self._lock = self._lock, None
        try:
            if file is not None:
                file.close()
        finally:
            if descriptor is not None:
                os.close(descriptor)

    def read(self) -> Head | None:
        self._begin()
        head: Head | None = None
        for offset, line in _whole_lines(self._path):
            if line.startswith(b'{"redo":', _HEAD):  # long, and not needed yet
                self._offsets.append(offset)
                self.marks.append(NOTHING)
            elif "load" in (entry := _entry_of(line)):
                head = self._head_of(entry["load"])
                if entry.get("begins"):
                    self._begin()
            elif "batch" in entry:
                self._remember(entry, offset)
            else:
                self.redo_ended = True
            self._size = offset + len(line)
        return head

    def begin(self, head: Head) -> None:
        self._append({"load": self._written(head), "begins": True}, durable=True)
        _sync_folder(self.folder)
        self._begin()

    def store(self, head: Head) -> None:
        self._append({"load": self._written(head)}, durable=True)

    def clear(self) -> None:
        self._path.unlink()
        _sync_folder(self.folder)

    # -- redo -----------------------------------------------------------

    def add_redo(self, batch: Any) -> None:
        self._offsets.append(self._append({"redo": batch}, durable=True))
        self.marks.append(NOTHING)

    def end_redo(self) -> None:
        self._append({"redo_ended": True}, durable=True)
        self.redo_ended = True

    def redo(self, numbers: Sequence[int]) -> Iterator[tuple[int, Any]]:
        with self._path.open("rb") as file:
            for number in numbers:
                file.seek(self._offsets[number])
                yield number, _entry_of(file.readline())["redo"]

    # -- undo -----------------------------------------------------------

    def mark(
        self, number: int, mark: int, *, kept: Any = None, connection: Connection | None = None
    ) -> None:
        entry = {"batch": number, "mark": _MARKS[mark]}
        if kept is not None:
            entry["kept"] = kept
        # A certain mark becomes durable with the next entry that is.
        self._remember(entry, self._append(entry, durable=mark in IN_DOUBT.values()))

    def kept(self, number: int) -> Any:
        if number not in self._kept_offsets:
            return None
        with self._path.open("rb") as file:
            file.seek(self._kept_offsets[number])
            return _entry_of(file.readline())["kept"]

    # -- entries --------------------------------------------------------

    def _begin(self) -> None:
        self.marks, self.redo_ended = bytearray(), False
        self._offsets, self._kept_offsets = array("Q"), dict[int, int]()
        self._size = 0

    def _written(self, head: Head) -> dict[str, Any]:
        return {"log": "sa_jobqueue bulk load", "version": VERSION, **asdict(head)}

    def _head_of(self, written: dict[str, Any]) -> Head:
        check_version(str(self._path), written["version"])
        return Head(
            id=written["id"], state=LoadState(written["state"]), metadata=written["metadata"]
        )

    def _remember(self, entry: dict[str, Any], offset: int) -> None:
        self.marks[entry["batch"]] = _MARKS.index(entry["mark"])
        if "kept" in entry:
            self._kept_offsets[entry["batch"]] = offset

    def _append(self, entry: Any, *, durable: bool) -> int:
        """Write an entry; return its byte offset.

        Args:
            durable: it shall survive a power cut. Otherwise it survives the end of this
                process.
        """
        assert self._lock is not None
        if self._file is None:
            self._file = self._open_for_writing()
        offset = self._file.tell()
        self._file.write(_line_of(entry))
        self._file.flush()
        if durable:
            _sync_data(self._file.fileno())
        return offset

    def _open_for_writing(self) -> BinaryIO:
        file = self._path.open("ab")
        file.truncate(self._size)  # without a torn last line
        file.seek(self._size)
        return file


# -- lines --------------------------------------------------------------


def _line_of(entry: Any) -> bytes:
    body = json.dumps(entry, separators=(",", ":"), ensure_ascii=False).encode()
    return b"%s%08x%s%s%s" % (_BEGIN, crc32(body), _MIDDLE, body, _END)


def _entry_of(line: bytes) -> Any:
    return json.loads(line[_HEAD : -len(_END)])


def _whole_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield the lines of a file, each with its byte offset; leave a torn last line out."""
    if not path.exists():
        return
    offset = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not _is_whole(line):
                # After a power cut, blocks that were not written yet may read as zeros.
                if (b"\0" in line or not line.endswith(b"\n")) and not file.readline():
                    return
                raise BrokenLog(
                    f"{path}, line {number}: damaged. A crash damages only the end of a file; "
                    "restore the file from a copy."
                )
            yield offset, line
            offset += len(line)


def _is_whole(line: bytes) -> bool:
    body = line[_HEAD : -len(_END)]
    return line == b"%s%08x%s%s%s" % (_BEGIN, crc32(body), _MIDDLE, body, _END)


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
