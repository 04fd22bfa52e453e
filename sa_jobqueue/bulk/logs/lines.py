"""Files of JSON lines that survive a crash at any byte.

Every line carries a checksum of its entry. A line without its end is one that was
being written when the process or the machine went down; it is dropped. A damaged line
before the last is refused with its number, and so is a whole one at the end.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from zlib import crc32

from ...errors import BrokenLog

_BEGIN, _MIDDLE, _END = b'{"crc":"', b'","entry":', b"}\n"
_HEAD = len(_BEGIN) + 8 + len(_MIDDLE)

_synced = getattr(os, "fdatasync", os.fsync)


def line_of(entry: Any) -> bytes:
    """Write an entry as a line."""
    body = json.dumps(entry, separators=(",", ":"), ensure_ascii=False).encode()
    return b"%s%08x%s%s%s" % (_BEGIN, crc32(body), _MIDDLE, body, _END)


def entry_of(line: bytes) -> Any:
    """Read an entry."""
    return json.loads(line[_HEAD : -len(_END)])


def is_whole(line: bytes) -> bool:
    """Tell whether a line is as it was written."""
    body = line[_HEAD : -len(_END)]
    return line[:_HEAD] == b"%s%08x%s" % (_BEGIN, crc32(body), _MIDDLE) and line.endswith(_END)


def whole_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield the lines of a file with the places where they begin; a torn last one is left out.

    Raises:
        BrokenLog: the file is missing, or a line that is not torn is damaged.
    """
    place = 0
    try:
        file = path.open("rb")
    except FileNotFoundError:
        raise BrokenLog(
            f"{path} is missing: without it nobody knows what was inserted. Put it back, or "
            "empty the folder to begin anew."
        ) from None
    with file:
        for number, line in enumerate(file, 1):
            if not is_whole(line):
                if _is_torn(line) and not file.readline():
                    return
                raise BrokenLog(
                    f"{path}, line {number}: damaged. A crash damages the end of a file only; "
                    "put the file back from a copy."
                )
            yield place, line
            place += len(line)


def _is_torn(line: bytes) -> bool:
    # After a power cut, blocks that were not written yet may read as zeros.
    return not line.endswith(b"\n") or b"\0" in line


class Appender:
    """Append entries to a file, from several threads at once.

    Args:
        end: where the file ends; what is behind, a torn line, is cut off.
    """

    def __init__(self, path: Path, end: int) -> None:
        self._number = os.open(path, os.O_WRONLY)
        os.ftruncate(self._number, end)
        os.fsync(self._number)
        self._end = self._durable = end
        self._writing, self._syncing = threading.Lock(), threading.Lock()

    def append(self, entry: Any, *, durable: bool) -> int:
        """Write an entry, and return where it begins.

        Args:
            durable: return when it would survive a power cut; else it survives
                the end of this process, and is durable with the next that is.
        """
        line = line_of(entry)
        with self._writing:
            begin = self._end
            _write(self._number, line, begin)
            self._end += len(line)
        if durable:
            self._sync(begin + len(line))
        return begin

    def sync(self) -> None:
        """Make all of it durable."""
        self._sync(self._end)

    def close(self) -> None:
        """Make all of it durable, and close the file."""
        try:
            self.sync()
        finally:
            os.close(self._number)

    def _sync(self, end: int) -> None:
        # Who waits here meanwhile is served by the one fsync of the next.
        with self._syncing:
            if self._durable < end:
                reached = self._end
                _synced(self._number)
                self._durable = reached


def _write(number: int, data: bytes, place: int) -> None:
    while data:
        done = os.pwrite(number, data, place)
        data, place = data[done:], place + done


def write_anew(path: Path, content: bytes) -> None:
    """Replace a file at once, durably: after a crash it is the old one or the new one."""
    beside = path.with_name(path.name + ".new")
    with beside.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make durable which files a folder has."""
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
