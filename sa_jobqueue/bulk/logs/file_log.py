"""A load's log in a folder of its own: ``state.json``, ``redo.jsonl``, ``undo.jsonl``.

::

    BulkLoad(source, FileLog("loads/2024-05-17")).run()

Before a batch commits, the undo log says durably that it may be; afterwards, that it
is. So after a crash at most as many batches are in doubt as there were workers, and
they are asked about in the database. For a folder on this machine's own disk: network
file systems may keep neither the lock nor the order of what is written.
"""

from __future__ import annotations

import json
import os
import time
from array import array
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import Any

from sqlalchemy import Connection

from ...errors import BrokenLog, LockTimeout, UnsupportedDatabase
from ..log import BEFORE, MARKS, Head, Log, Marks
from ..states import LoadState
from .lines import Appender, entry_of, line_of, sync_folder, whole_lines, write_anew

fcntl: ModuleType | None
try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

VERSION = 1

#: Seconds for which somebody who only looks may have the lock, and between two tries.
_LOOK, _AGAIN = 0.1, 0.01

_STATE, _REDO, _UNDO = "state.json", "redo.jsonl", "undo.jsonl"
_OURS = {name + suffix for name in (_STATE, _REDO, _UNDO) for suffix in ("", ".new")}
_LAST = {"end": True}


class FileLog(Log):
    """A log in a folder, which is made if it is not there; an empty one is a new load.

    Args:
        folder: this load's alone.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self._lock: int | None = None
        self._redo: Appender | None = None
        self._undo: Appender | None = None
        self._id = ""
        self._forget()

    @property
    def name(self) -> str:
        return str(self.folder)

    def __repr__(self) -> str:
        return f"FileLog({self.name!r})"

    # -- the whole ------------------------------------------------------

    def open(self) -> Head | None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock = _locked(self.folder, patience=_LOOK)
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
        number, self._lock = self._lock, None
        if number is not None:
            os.close(number)

    def peek(self) -> tuple[Head | None, bool]:
        if not self.folder.exists():
            return None, False
        # The lock is not kept: whoever begins meanwhile would be refused.
        busy = _is_locked(self.folder)
        head = self._read()
        return head, busy or _is_locked(self.folder)

    def begin(self, head: Head) -> None:
        # The state comes last: redo and undo without it are those of a load that
        # has done nothing yet.
        for log in ("redo", "undo"):
            write_anew(self._path(f"{log}.jsonl"), self._first_line(log, head.id))
        self.store(head)
        self._forget()
        self._read()
        self._open_files()

    def store(self, head: Head) -> None:
        if self._undo is not None:
            self._undo.sync()  # a state that says all is in knows no batch in doubt
        content = {"log": "sa_jobqueue bulk load", "version": VERSION, **asdict(head)}
        write_anew(self._path(_STATE), json.dumps(content, indent=1).encode() + b"\n")
        self._id = head.id

    def clear(self) -> None:
        self._close_files()
        self._forget()
        # The state comes last: it is what says that the others may be missing.
        for name in (_UNDO, _REDO, *sorted(_OURS - {_UNDO, _REDO, _STATE}), _STATE):
            self._path(name).unlink(missing_ok=True)
            sync_folder(self.folder)

    # -- redo -----------------------------------------------------------

    @property
    def redo_count(self) -> int:
        return self._count

    @property
    def redo_ended(self) -> bool:
        return self._ended

    def forget_redo(self) -> None:
        assert self._redo is not None
        self._redo.close()
        write_anew(self._path(_REDO), self._first_line("redo", self._id))
        self._count = 0
        self._ended = False
        self._redo = Appender(self._path(_REDO), self._path(_REDO).stat().st_size)

    def add_redo(self, number: int, batch: Any) -> None:
        assert self._redo is not None
        assert number == self._count
        self._redo.append({"batch": number, "is": batch}, durable=True)
        self._count += 1

    def end_redo(self) -> None:
        assert self._redo is not None
        self._redo.append(_LAST, durable=True)
        self._ended = True

    def redo(
        self, wanted: Callable[[int], bool], *, backwards: bool = False
    ) -> Iterator[tuple[int, Any]]:
        lines = whole_lines(self._path(_REDO))
        next(lines)
        batches = zip(range(self._count), lines, strict=False)
        if not backwards:
            for number, (_, line) in batches:
                if wanted(number):
                    yield number, entry_of(line)["is"]
            return
        numbers, places = array("Q"), array("Q")
        for number, (place, _) in batches:
            if wanted(number):
                numbers.append(number)
                places.append(place)
        with self._path(_REDO).open("rb") as file:
            for number, place in zip(reversed(numbers), reversed(places), strict=True):
                file.seek(place)
                yield number, entry_of(file.readline())["is"]

    # -- undo -----------------------------------------------------------

    def before_commit(
        self, number: int, mark: int, connection: Connection | None, kept: Any = None
    ) -> None:
        self._mark(number, BEFORE[mark], kept=kept, durable=True)

    def after_commit(self, number: int, mark: int) -> None:
        self._mark(number, mark)

    def not_committed(self, number: int, before: int) -> None:
        if self.marks[number] != before:
            self._mark(number, before, kept=self.kept(number))

    def kept(self, number: int) -> Any:
        place = self._kept.get(number)
        if place is None:
            return None
        with self._path(_UNDO).open("rb") as file:
            file.seek(place)
            return entry_of(file.readline())["kept"]

    def _mark(self, number: int, mark: int, *, kept: Any = None, durable: bool = False) -> None:
        assert self._undo is not None
        entry = {"batch": number, "mark": MARKS[mark], **({} if kept is None else {"kept": kept})}
        place = self._undo.append(entry, durable=durable)
        self._remember(number, mark, place, kept=kept)

    # -- reading --------------------------------------------------------

    def _forget(self) -> None:
        self.marks = Marks()
        self._kept: dict[int, int] = {}
        self._count = 0
        self._ended = False
        self._ends = {_REDO: 0, _UNDO: 0}

    def _read(self) -> Head | None:
        self._forget()
        self._refuse_foreign_files()
        head = self._read_state()
        if head is None or head.cleaning:
            return head
        self._id = head.id
        # In this order: whoever writes meanwhile writes redo first.
        self._read_undo()
        self._read_redo()
        self._refuse_missing_redo()
        return head

    def _refuse_foreign_files(self) -> None:
        foreign = sorted(path.name for path in self.folder.iterdir() if path.name not in _OURS)
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
            told = json.loads(path.read_bytes())
            kind, version = told.pop("log"), told.pop("version")
            head = (
                Head(**{**told, "state": LoadState(told["state"])}) if version == VERSION else None
            )
        except (ValueError, KeyError, AttributeError, TypeError):
            kind, version, head = None, None, None
        if kind != "sa_jobqueue bulk load":
            raise BrokenLog(f"{path} is not the state of a bulk load, or it is damaged.")
        if head is None:
            raise BrokenLog(
                f"{path} has the format {version}; this release reads {VERSION}. Go on with the "
                "release that began the load."
            )
        return head

    def _refuse_missing_state(self) -> None:
        for name in (_REDO, _UNDO):
            path = self._path(name)
            if path.exists() and len(list(zip(range(2), whole_lines(path), strict=False))) > 1:
                raise BrokenLog(
                    f"{self._path(_STATE)} is missing, and {path.name} tells of a load that has "
                    "begun. Put it back, or empty the folder to begin anew."
                )

    def _read_redo(self) -> None:
        line = b""
        for place, line in self._lines(_REDO):
            self._ends[_REDO] = place + len(line)
            self._count += 1
        if self._count and entry_of(line) == _LAST:
            self._count -= 1
            self._ended = True

    def _read_undo(self) -> None:
        for place, line in self._lines(_UNDO):
            entry = entry_of(line)
            self._ends[_UNDO] = place + len(line)
            self._remember(
                entry["batch"], MARKS.index(entry["mark"]), place, kept=entry.get("kept")
            )

    def _refuse_missing_redo(self) -> None:
        if len(self.marks) > self._count:
            raise BrokenLog(
                f"{self._path(_UNDO)} tells of batch {len(self.marks) - 1}, and "
                f"{self._path(_REDO)} has {self._count} batches: part of it is missing. Put the "
                "file back."
            )

    def _remember(self, number: int, mark: int, place: int, *, kept: Any) -> None:
        self.marks[number] = mark
        if kept is not None:
            self._kept[number] = place
        elif mark in BEFORE.values():
            self._kept.pop(number, None)

    def _lines(self, name: str) -> Iterator[tuple[int, bytes]]:
        """Yield the lines behind the first, which says whose they are."""
        path, lines = self._path(name), whole_lines(self._path(name))
        _, first = next(lines, (0, b""))
        if first != self._first_line(path.stem, self._id):
            raise BrokenLog(f"{path} is not of the load that {_STATE} beside it tells of.")
        self._ends[name] = len(first)
        return lines

    def _first_line(self, log: str, load: str) -> bytes:
        return line_of({"log": f"sa_jobqueue {log}", "version": VERSION, "load": load})

    def _open_files(self) -> None:
        self._redo = Appender(self._path(_REDO), self._ends[_REDO])
        self._undo = Appender(self._path(_UNDO), self._ends[_UNDO])

    def _close_files(self) -> None:
        for file in (self._redo, self._undo):
            if file is not None:
                file.close()
        self._redo = self._undo = None

    def _path(self, name: str) -> Path:
        return self.folder / name


def _is_locked(folder: Path) -> bool:
    number = _locked(folder)
    if number is not None:
        os.close(number)
    return number is None


def _locked(folder: Path, patience: float = 0) -> int | None:
    """Lock a folder; None if somebody else has it, for longer than one is patient."""
    if fcntl is None:
        raise UnsupportedDatabase(
            "FileLog needs flock(), which this platform's Python does not have (the module "
            "fcntl): use DatabaseLog."
        )
    number, until = os.open(folder, os.O_RDONLY), time.monotonic() + patience
    while True:
        try:
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until:
                os.close(number)
                return None
            time.sleep(_AGAIN)
        else:
            return number
