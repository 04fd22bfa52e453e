"""A load's log in a folder of its own: ``state.json``, ``redo.jsonl``, ``undo.jsonl``.

::

    BulkLoad(source, FileLog("loads/2024-05-17")).run()

The undo log notes durably that a batch may be committed before its commit, and that it
is committed afterwards. So after a crash at most one batch of each worker is in doubt,
and the database is asked about it. The folder has to be on a disk of this machine:
network file systems may keep neither the lock nor the order of writes.
"""

from __future__ import annotations

import json
import os
from array import array
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sqlalchemy import Connection

from ...errors import BrokenLog, LockTimeout
from ..log import IN_DOUBT, MARKS, Head, Log, refuse_format
from ..states import LoadState
from .folder_lock import is_locked, lock_folder
from .json_lines import Appender, entry_of, line_of, replace_file, sync_folder, whole_lines

VERSION = 1

#: Seconds to wait for the lock, which a process that only peeks has for a moment.
_PEEKING = 0.1

_KIND = "sa_jobqueue bulk load"
_STATE, _REDO, _UNDO = "state.json", "redo.jsonl", "undo.jsonl"
_FILES = {name + suffix for name in (_STATE, _REDO, _UNDO) for suffix in ("", ".new")}
_END = {"end": True}


class FileLog(Log):
    """A log in a folder, which is created where it is missing; an empty folder is a new load.

    Args:
        folder: for this load alone.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self._lock: int | None = None
        self._redo: Appender | None = None
        self._undo: Appender | None = None
        super().__init__()

    def _reset(self) -> None:
        super()._reset()
        self._kept_offsets: dict[int, int] = {}
        self._sizes = {_REDO: 0, _UNDO: 0}

    @property
    def name(self) -> str:
        return str(self.folder)

    def __repr__(self) -> str:
        return f"FileLog({self.name!r})"

    # -- the whole ------------------------------------------------------

    def open(self) -> Head | None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock = lock_folder(self.folder, seconds=_PEEKING)
        if self._lock is None:
            raise LockTimeout(f"Another manager works with the log in {self.folder}.")
        try:
            head = self._read()
            if head is not None and not head.cleaning:
                self._open_files()
        except BaseException:
            self.close()
            raise
        return head

    def close(self) -> None:
        self._close_files()
        descriptor, self._lock = self._lock, None
        if descriptor is not None:
            os.close(descriptor)

    def peek(self) -> tuple[Head | None, bool]:
        if not self.folder.exists():
            return None, False
        # Not locked while we read: a manager that opens the log meanwhile would be refused.
        busy = is_locked(self.folder)
        head = self._read()
        return head, busy or is_locked(self.folder)

    def begin(self, head: Head) -> None:
        # The state comes last: redo and undo without a state belong to a load that
        # has done nothing yet.
        for name in (_REDO, _UNDO):
            replace_file(self._path(name), self._first_line(name, head.id))
        self.store(head)
        self._read()
        self._open_files()

    def store(self, head: Head) -> None:
        if self._undo is not None:
            self._undo.sync()  # when the state says that all is inserted, no batch may be in doubt
        content = {"log": _KIND, "version": VERSION, **asdict(head)}
        replace_file(self._path(_STATE), json.dumps(content, indent=1).encode() + b"\n")
        self._load_id = head.id

    def clear(self) -> None:
        self._close_files()
        self._reset()
        # The state comes last: it says that the other files may be missing.
        for name in (_UNDO, _REDO, *sorted(_FILES - {_UNDO, _REDO, _STATE}), _STATE):
            self._path(name).unlink(missing_ok=True)
            sync_folder(self.folder)

    # -- redo -----------------------------------------------------------

    def clear_redo(self) -> None:
        assert self._redo is not None
        self._redo.close()
        path = self._path(_REDO)
        replace_file(path, self._first_line(_REDO, self._load_id))
        self.redo_count, self.redo_ended = 0, False
        self._redo = Appender(path, path.stat().st_size)

    def add_redo(self, number: int, batch: Any) -> None:
        assert self._redo is not None
        assert number == self.redo_count
        self._redo.append({"batch": number, "is": batch}, durable=True)
        self.redo_count += 1

    def end_redo(self) -> None:
        assert self._redo is not None
        self._redo.append(_END, durable=True)
        self.redo_ended = True

    def redo(
        self, wanted: Callable[[int], bool], *, backwards: bool = False
    ) -> Iterator[tuple[int, Any]]:
        lines = whole_lines(self._path(_REDO))
        next(lines)
        batches = zip(range(self.redo_count), lines, strict=False)
        if not backwards:
            for number, (_, line) in batches:
                if wanted(number):
                    yield number, entry_of(line)["is"]
            return
        numbers, offsets = array("Q"), array("Q")
        for number, (offset, _) in batches:
            if wanted(number):
                numbers.append(number)
                offsets.append(offset)
        with self._path(_REDO).open("rb") as file:
            for number, offset in zip(reversed(numbers), reversed(offsets), strict=True):
                file.seek(offset)
                yield number, entry_of(file.readline())["is"]

    # -- undo -----------------------------------------------------------

    def before_commit(
        self, number: int, mark: int, connection: Connection | None, kept: Any = None
    ) -> None:
        self._mark(number, IN_DOUBT[mark], kept=kept, durable=True)

    def after_commit(self, number: int, mark: int) -> None:
        self._mark(number, mark)

    def not_committed(self, number: int, before: int) -> None:
        self._mark(number, before, kept=self.kept(number))

    def kept(self, number: int) -> Any:
        offset = self._kept_offsets.get(number)
        if offset is None:
            return None
        with self._path(_UNDO).open("rb") as file:
            file.seek(offset)
            return entry_of(file.readline())["kept"]

    def _mark(self, number: int, mark: int, *, kept: Any = None, durable: bool = False) -> None:
        assert self._undo is not None
        entry = {"batch": number, "mark": MARKS[mark], **({} if kept is None else {"kept": kept})}
        offset = self._undo.append(entry, durable=durable)
        self._remember(number, mark, offset, kept=kept)

    def _remember(self, number: int, mark: int, offset: int, *, kept: Any) -> None:
        self.marks[number] = mark
        if kept is not None:
            self._kept_offsets[number] = offset
        elif mark in IN_DOUBT.values():
            self._kept_offsets.pop(number, None)

    # -- reading --------------------------------------------------------

    def _read(self) -> Head | None:
        self._reset()
        self._refuse_foreign_files()
        head = self._read_state()
        if head is None or head.cleaning:
            return head
        self._load_id = head.id
        # Undo first: a manager at work writes redo first, so every mark that we read
        # has its batch.
        self._read_undo()
        self._read_redo()
        self._refuse_missing_redo()
        return head

    def _refuse_foreign_files(self) -> None:
        foreign = sorted(path.name for path in self.folder.iterdir() if path.name not in _FILES)
        if foreign:
            raise BrokenLog(
                f"{self.folder / foreign[0]} is no part of a log: give the log a folder of its own."
            )

    def _read_state(self) -> Head | None:
        path = self._path(_STATE)
        if not path.exists():
            self._refuse_missing_state()
            return None
        try:
            content = json.loads(path.read_bytes())
            kind, version = content.pop("log"), content.pop("version")
            if kind == _KIND and version != VERSION:
                refuse_format(str(path), version, readable=VERSION)
            head = Head(**{**content, "state": LoadState(content["state"])})
        except (ValueError, KeyError, AttributeError, TypeError):
            kind, head = None, None
        if kind != _KIND or head is None:
            raise BrokenLog(f"{path} is not the state of a bulk load, or it is damaged.")
        return head

    def _refuse_missing_state(self) -> None:
        for name in (_REDO, _UNDO):
            path = self._path(name)
            if path.exists() and len(list(zip(range(2), whole_lines(path), strict=False))) > 1:
                raise BrokenLog(
                    f"{self._path(_STATE)} is missing, and {path.name} is of a load that has "
                    "begun. Put the file back, or empty the folder to begin a new load."
                )

    def _read_redo(self) -> None:
        line = b""
        for offset, line in self._lines(_REDO):
            self._sizes[_REDO] = offset + len(line)
            self.redo_count += 1
        if self.redo_count and entry_of(line) == _END:
            self.redo_count -= 1
            self.redo_ended = True

    def _read_undo(self) -> None:
        for offset, line in self._lines(_UNDO):
            entry = entry_of(line)
            self._sizes[_UNDO] = offset + len(line)
            self._remember(
                entry["batch"], MARKS.index(entry["mark"]), offset, kept=entry.get("kept")
            )

    def _refuse_missing_redo(self) -> None:
        if len(self.marks) > self.redo_count:
            raise BrokenLog(
                f"{self._path(_UNDO)} has batch {len(self.marks) - 1}, and "
                f"{self._path(_REDO)} has {self.redo_count} batches: part of it is missing. Put "
                "the file back."
            )

    def _lines(self, name: str) -> Iterator[tuple[int, bytes]]:
        """Yield the lines after the first, which names the load."""
        path, lines = self._path(name), whole_lines(self._path(name))
        _, first = next(lines, (0, b""))
        if first != self._first_line(name, self._load_id):
            raise BrokenLog(f"{path} is not of the load that is in {_STATE} beside it.")
        self._sizes[name] = len(first)
        return lines

    def _first_line(self, name: str, load_id: str) -> bytes:
        return line_of(
            {"log": f"sa_jobqueue {Path(name).stem}", "version": VERSION, "load": load_id}
        )

    def _open_files(self) -> None:
        self._redo = Appender(self._path(_REDO), self._sizes[_REDO])
        self._undo = Appender(self._path(_UNDO), self._sizes[_UNDO])

    def _close_files(self) -> None:
        for file in (self._redo, self._undo):
            if file is not None:
                file.close()
        self._redo = self._undo = None

    def _path(self, name: str) -> Path:
        return self.folder / name
