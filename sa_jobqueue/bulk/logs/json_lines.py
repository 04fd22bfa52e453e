"""Files of JSON lines that survive a crash at any byte.

Every line carries a checksum of its entry. A last line without its end was being
written when the process or the machine went down, and is dropped. Every other damaged
line is refused with its number, a last line that has its end too.
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

_sync_data = getattr(os, "fdatasync", os.fsync)


def line_of(entry: Any) -> bytes:
    """Return an entry as a line."""
    body = json.dumps(entry, separators=(",", ":"), ensure_ascii=False).encode()
    return b"%s%08x%s%s%s" % (_BEGIN, crc32(body), _MIDDLE, body, _END)


def entry_of(line: bytes) -> Any:
    """Return the entry of a line."""
    return json.loads(line[_HEAD : -len(_END)])


def is_whole(line: bytes) -> bool:
    """Tell whether a line is as it was written, by its checksum."""
    body = line[_HEAD : -len(_END)]
    return line[:_HEAD] == b"%s%08x%s" % (_BEGIN, crc32(body), _MIDDLE) and line.endswith(_END)


def whole_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield the lines of a file, each with its byte offset; leave a torn last line out.

    Raises:
        BrokenLog: the file is missing, or a line is damaged that is not a torn last one.
    """
    offset = 0
    try:
        file = path.open("rb")
    except FileNotFoundError:
        raise BrokenLog(
            f"{path} is missing, and only this file says what was inserted. Restore it, or empty "
            "the folder to begin a new load."
        ) from None
    with file:
        for number, line in enumerate(file, 1):
            if not is_whole(line):
                if _is_torn(line) and not file.readline():
                    return
                raise BrokenLog(
                    f"{path}, line {number}: damaged. A crash damages only the end of a file; "
                    "restore the file from a copy."
                )
            yield offset, line
            offset += len(line)


def _is_torn(line: bytes) -> bool:
    # After a power cut, blocks that were not written yet may read as zeros.
    return not line.endswith(b"\n") or b"\0" in line


class Appender:
    """Append entries to a file, from several threads at once.

    Args:
        size: bytes of the file to keep; a torn line after them is cut off.
    """

    def __init__(self, path: Path, size: int) -> None:
        self._descriptor = os.open(path, os.O_WRONLY)
        os.ftruncate(self._descriptor, size)
        os.fsync(self._descriptor)
        self._written = self._durable = size
        self._writing, self._syncing = threading.Lock(), threading.Lock()

    def append(self, entry: Any, *, durable: bool) -> int:
        """Write an entry, and return its byte offset.

        Args:
            durable: return when the entry would survive a power cut. Otherwise it
                survives the end of this process, and becomes durable with the next
                durable entry.
        """
        line = line_of(entry)
        with self._writing:
            offset = self._written
            _write(self._descriptor, line, offset)
            self._written += len(line)
        if durable:
            self._sync(offset + len(line))
        return offset

    def sync(self) -> None:
        """Make everything durable."""
        self._sync(self._written)

    def close(self) -> None:
        """Make everything durable, and close the file."""
        try:
            self.sync()
        finally:
            os.close(self._descriptor)

    def _sync(self, size: int) -> None:
        # Threads that wait here meanwhile share the next fsync.
        with self._syncing:
            if self._durable < size:
                written = self._written
                _sync_data(self._descriptor)
                self._durable = written


def _write(descriptor: int, data: bytes, offset: int) -> None:
    while data:
        done = os.pwrite(descriptor, data, offset)
        data, offset = data[done:], offset + done


def replace_file(path: Path, content: bytes) -> None:
    """Replace a file atomically and durably: after a crash it is the old or the new one."""
    new = path.with_name(path.name + ".new")
    with new.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make durable which files a folder has."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
