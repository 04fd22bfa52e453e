"""What the two logs have in common: FileLog keeps a load in a file, DatabaseLog in a table.

A log is a list of entries in JSON, in the order of what happened:

- ``{"load": ..}`` is the load's head: its state, and what its source is.
- ``{"redo": ..}`` says what a batch is; it is durable before the batch is touched.
- ``{"redo_ended": true}``: there are no more batches.
- ``{"batch": .., "mark": ..}`` is the undo log: what became of a batch. The last one counts.

Its states, and which call leads from which state to which: :data:`TRANSITIONS` is the diagram of
``docs/bulk.md``; a test compares the two. ``killed`` is not a call: it leads to the state in which
a load is found once its process is gone.
"""

from __future__ import annotations

import json
import os
import time
from abc import ABC, abstractmethod
from array import array
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO
from zlib import crc32

from sqlalchemy import (
    Column,
    Connection,
    Engine,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    delete,
    insert,
    inspect,
    select,
)
from sqlalchemy.dialects import mysql

from ..errors import (
    ArgumentError,
    BrokenLog,
    InvalidState,
    LockLost,
    LockNotHeld,
    LockTimeout,
    UnsupportedDatabase,
)
from ..model.keys import table_in
from ..owners.named_lock import NamedLock, named_lock
from ..sessions.transactions import transaction

#: The marks of a batch. The two in doubt are written before the batch's transaction
#: commits: after a crash nobody knows whether it did. All other marks are certain.
NOTHING, INSERT_IN_DOUBT, INSERTED, REMOVAL_IN_DOUBT, REMOVED = range(5)

#: How each mark is written.
_MARKS = ("nothing", "inserting", "inserted", "removing", "removed")

#: The mark that is written before the commit that leads to INSERTED or REMOVED.
IN_DOUBT = {INSERTED: INSERT_IN_DOUBT, REMOVED: REMOVAL_IN_DOUBT}

#: The format of both logs.
VERSION = 1


@dataclass(frozen=True, kw_only=True)
class Head:
    """What a log knows about its load as a whole.

    Attributes:
        id: unique for each load.
        state: as it is stored.
        metadata: what the source's `metadata()` returned, as JSON.
    """

    id: str
    state: LoadState
    metadata: Mapping[str, Any]


class Log(ABC):
    """Keep what a load is about to do, and what it has done; a FileLog or a DatabaseLog.

    Between :meth:`open` and :meth:`close` nobody else writes to it.

    Attributes:
        name: the log's folder or name.
        marks: the mark of every batch of the redo log, as :meth:`read` found it or as
            it was changed since.
        redo_ended: whether the last batch is among them.
    """

    name: str
    marks: bytearray
    redo_ended: bool

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    # -- what a subclass provides ---------------------------------------

    @abstractmethod
    def lock(self) -> bool:
        """Lock the log; tell whether nobody else had it."""

    @abstractmethod
    def is_locked(self) -> bool:
        """Tell whether somebody has the log locked."""

    @abstractmethod
    def close(self) -> None:
        """Unlock the log; a log that is not open is left as it is."""

    @abstractmethod
    def entries(self) -> Iterator[tuple[int, Any]]:
        """Read all entries, each with its place; None is a batch, which is long and not read."""

    @abstractmethod
    def entry_at(self, place: int) -> Any:
        """Read one entry."""

    @abstractmethod
    def append(self, entry: Any, *, durable: bool, connection: Connection | None = None) -> int:
        """Write an entry; return its place.

        Args:
            durable: it shall survive a power cut. Otherwise it survives the end of this
                process.
            connection: write in this connection's transaction.
        """

    @abstractmethod
    def clear(self) -> None:
        """Delete the load in one step."""

    def shares_transactions(self, engine: Engine) -> bool:
        """Tell whether a mark can be written in a transaction of this engine."""
        return False

    # -- the whole ------------------------------------------------------

    def open(self) -> Head | None:
        """Lock the log for this manager and read it; None: there is no load in it yet.

        Raises:
            LockTimeout: another manager has it.
            BrokenLog: it cannot be read, or it is not a log.
        """
        if not self.lock():
            raise LockTimeout(f"Another manager works with the log {self.name!r}.")
        try:
            return self.read()
        except BaseException:
            self.close()
            raise

    def peek(self) -> tuple[Head | None, bool]:
        """Read the log without locking it; tell whether a manager has it locked."""
        busy = self.is_locked()  # asked twice: a call that ends or begins meanwhile counts
        head = self.read()
        return head, busy or self.is_locked()

    def read(self) -> Head | None:
        """Read the head, ``marks`` and ``redo_ended``."""
        self._forget()
        head: Head | None = None
        for place, entry in self.entries():
            if entry is None:
                self._add(place)
            elif "load" in entry:
                head = self._head_of(**entry["load"])
                if entry["begins"]:
                    self._forget()
            elif "batch" in entry:
                self.marks[entry["batch"]] = _MARKS.index(entry["mark"])
                if "kept" in entry:
                    self._kept[entry["batch"]] = place
            else:
                self.redo_ended = True
        return head

    def store(self, head: Head, *, begins: bool = False) -> None:
        """Store a head durably; a load that begins forgets its batches."""
        self.append({"load": {"version": VERSION, **asdict(head)}, "begins": begins}, durable=True)
        if begins:
            self._forget()

    def _forget(self) -> None:
        self.marks, self.redo_ended = bytearray(), False
        self._redo, self._kept = array("Q"), dict[int, int]()

    def _add(self, place: int) -> None:
        self._redo.append(place)
        self.marks.append(NOTHING)

    def _head_of(self, *, version: int, state: str, **values: Any) -> Head:
        if version != VERSION:
            raise BrokenLog(
                f"The log {self.name!r} has the format {version}; this release reads {VERSION}. "
                "Go on with the release that began the load."
            )
        return Head(state=LoadState(state), **values)

    # -- redo and undo --------------------------------------------------

    def add_redo(self, batch: Any) -> None:
        """Add a batch durably."""
        self._add(self.append({"redo": batch}, durable=True))

    def end_redo(self) -> None:
        """Note durably that the batch added last is the last of the load."""
        self.append({"redo_ended": True}, durable=True)
        self.redo_ended = True

    def redo(self, number: int) -> Any:
        """Read a batch."""
        return self.entry_at(self._redo[number])["redo"]

    def mark(
        self, number: int, mark: int, *, kept: Any = None, connection: Connection | None = None
    ) -> None:
        """Write a batch's mark; one in doubt is durable when this returns.

        Args:
            kept: what the source needs when it takes the batch back, as JSON; None
                leaves what was kept before.
            connection: write in this connection's transaction.
        """
        entry = {"batch": number, "mark": _MARKS[mark]}
        if kept is not None:
            entry["kept"] = kept
        # A certain mark becomes durable with the next entry that is.
        self.append(entry, durable=mark in IN_DOUBT.values(), connection=connection)

    def kept(self, number: int) -> Any:
        """Return what was kept for a batch when the log was read; None: nothing."""
        return self.entry_at(self._kept[number])["kept"] if number in self._kept else None


@dataclass(frozen=True)
class Entry:
    """The entry of one batch in the undo log.

    Attributes:
        before: the batch's mark when work on it began.
        mark: its mark after the work: INSERTED or REMOVED.
    """

    log: Log
    number: int
    before: int
    mark: int

    @property
    def in_doubt(self) -> bool:
        """Whether nobody knows if a killed process committed this batch."""
        return self.before in IN_DOUBT.values()

    def before_commit(self, connection: Connection | None = None, kept: Any = None) -> None:
        """Note that the batch is about to be committed, in its transaction where possible."""
        if connection is not None and self.log.shares_transactions(connection.engine):
            self.log.mark(self.number, self.mark, kept=kept, connection=connection)
        else:
            self._set(IN_DOUBT[self.mark], kept)

    def after_commit(self) -> None:
        """Note that the batch is committed."""
        if self.log.marks[self.number] == IN_DOUBT[self.mark]:
            self._set(self.mark)
        self.log.marks[self.number] = self.mark

    def not_committed(self) -> None:
        """Note that the batch is as it was when work on it began."""
        if self.log.marks[self.number] != self.before:
            self._set(self.before)

    def _set(self, mark: int, kept: Any = None) -> None:
        self.log.mark(self.number, mark, kept=kept)
        self.log.marks[self.number] = mark


class LoadState(StrEnum):
    """The state of a load.

    STARTING: there is no log yet; this state is never stored.
    PREPARING: the redo log is being written, or is complete; no row is in the table.
    INSERTING: some batches may be in the table.
    UNPREPARED: the process ended while it wrote the redo log; no row is in the table.
    BLOCKED: the process ended while INSERTING, or during a rollback.
    CANCELLED: the rollback is done: none of the load's rows is in the table.
    CLEANING: all rows are in the table; the logs are kept.
    FINISHED: the logs are deleted; this state is never stored.
    """

    STARTING = "STARTING"
    PREPARING = "PREPARING"
    INSERTING = "INSERTING"
    UNPREPARED = "UNPREPARED"
    BLOCKED = "BLOCKED"
    CANCELLED = "CANCELLED"
    CLEANING = "CLEANING"
    FINISHED = "FINISHED"


(STARTING, PREPARING, INSERTING, UNPREPARED, BLOCKED, CANCELLED, CLEANING, FINISHED) = LoadState

TRANSITIONS: Mapping[str, Mapping[LoadState, LoadState]] = {
    "prepare": {STARTING: PREPARING, UNPREPARED: PREPARING},
    "insert": {PREPARING: INSERTING, INSERTING: CLEANING},
    "restore": {UNPREPARED: INSERTING, BLOCKED: INSERTING, INSERTING: CLEANING},
    "run": {
        STARTING: INSERTING,
        PREPARING: INSERTING,
        UNPREPARED: INSERTING,
        BLOCKED: INSERTING,
        INSERTING: CLEANING,
    },
    "rollback": {
        STARTING: CANCELLED,
        PREPARING: CANCELLED,
        UNPREPARED: CANCELLED,
        CLEANING: BLOCKED,
        BLOCKED: CANCELLED,
    },
    "clean": {CLEANING: FINISHED, CANCELLED: FINISHED},
    "killed": {PREPARING: UNPREPARED, INSERTING: BLOCKED},
}

#: The states in which a call has nothing to do, and does nothing.
NOTHING_TO_DO: Mapping[str, frozenset[LoadState]] = {
    "restore": frozenset({STARTING, PREPARING, CANCELLED, CLEANING, FINISHED}),
    "rollback": frozenset({CANCELLED}),
    "run": frozenset({CLEANING}),
}


def check_call(verb: str, state: LoadState) -> None:
    """Refuse a call that does not fit the state.

    Raises:
        InvalidState: names the calls that fit.
    """
    calls = [call for call, changes in TRANSITIONS.items() if state in changes and call != "killed"]
    if verb not in calls and state not in NOTHING_TO_DO.get(verb, ()):
        raise InvalidState(verb, state, sorted(calls))


# -- in a table of the database that is loaded -----------------------------------
#
#     load_table(Base.metadata)                  # for Alembic to see; or:
#     load_table(MetaData()).create(engine)
#
#     BulkLoad(source, DatabaseLog(engine, "emails of may")).run()
#
# A batch's mark commits in the same transaction as its rows. So no batch is ever in doubt,
# and none is run twice.


_NAME_LENGTH = 100

#: Names that are the same only if they are equal.
_NAME = String(_NAME_LENGTH).with_variant(
    mysql.VARCHAR(_NAME_LENGTH, charset="utf8mb4", collation="utf8mb4_bin"), "mysql", "mariadb"
)

#: Texts of any length: TEXT on MySQL and MariaDB ends at 64 kB.
_LONG = Text().with_variant(mysql.LONGTEXT(), "mysql", "mariadb")


def load_table(metadata: MetaData, name: str = "bulk_load") -> Table:
    """Add the table of a DatabaseLog to a MetaData, or find it there."""
    there = table_in(metadata, name)
    return (
        there
        if there is not None
        else Table(
            name,
            metadata,
            Column("id", Integer, primary_key=True),
            Column("name", _NAME, nullable=False, index=True),
            Column("entry", _LONG),
            Column("batch", _LONG),
        )
    )


class DatabaseLog(Log):
    """A log in a table.

    Args:
        engine: an engine of the loaded database.
        name: the load's name, at most 100 characters.
        table: what :func:`load_table` returned; by default a table of the usual name.

    Raises:
        ArgumentError: `name` is empty or too long.
    """

    def __init__(self, engine: Engine, name: str = "load", *, table: Table | None = None) -> None:
        if not 0 < len(name) <= _NAME_LENGTH:
            raise ArgumentError(f"a load's name has 1 to {_NAME_LENGTH} characters: {name!r}")
        self.engine = engine
        self.name = name
        self.table = load_table(MetaData()) if table is None else table
        self._lock: NamedLock | None = None

    def lock(self) -> bool:
        lock = self._named_lock()
        if not lock.acquire(timedelta(0)):
            return False
        self._lock = lock
        return True

    def is_locked(self) -> bool:
        return self._named_lock().holder() is not None

    def close(self) -> None:
        lock, self._lock = self._lock, None
        if lock is not None:
            # A lost lock needs no release; whatever ended its connection raises by itself.
            with suppress(LockLost, LockNotHeld):
                lock.release()

    def entries(self) -> Iterator[tuple[int, Any]]:
        table = self.table
        query = select(table.c.id, table.c.entry).where(table.c.name == self.name)
        with self.engine.connect() as connection:
            schema = connection.schema_for_object(table)
            if not inspect(connection).has_table(table.name, schema=schema):
                raise BrokenLog(
                    f"There is no table {table.fullname}. Create it by a migration, with "
                    "load_table(metadata) in your models, or at once, by log.table.create(engine)."
                )
            found = connection.execute(query.order_by(table.c.id)).all()
        for place, entry in found:
            yield place, entry and json.loads(entry)

    def entry_at(self, place: int) -> Any:
        table = self.table
        with self.engine.connect() as connection:
            query = select(table.c.entry, table.c.batch).where(table.c.id == place)
            entry, batch = connection.execute(query).one()
        return json.loads(entry or batch)

    def append(self, entry: Any, *, durable: bool, connection: Connection | None = None) -> int:
        if connection is None:
            with self.engine.connect() as own, transaction(own):
                return self.append(entry, durable=durable, connection=own)
        column = "batch" if "redo" in entry else "entry"
        values = {"name": self.name, column: json.dumps(entry)}
        place: Any = connection.execute(insert(self.table).values(values)).inserted_primary_key
        return int(place.id)

    def clear(self) -> None:
        with self.engine.connect() as connection, transaction(connection):
            connection.execute(delete(self.table).where(self.table.c.name == self.name))

    def shares_transactions(self, engine: Engine) -> bool:
        ours, theirs = (each.get_execution_options() for each in (self.engine, engine))
        same_schemas = ours.get("schema_translate_map") == theirs.get("schema_translate_map")
        in_memory = engine.url.database in (None, "", ":memory:")
        same_url = engine.url == self.engine.url and not in_memory
        return same_schemas and (engine.pool is self.engine.pool or same_url)

    def _named_lock(self) -> NamedLock:
        return named_lock(self.engine, f"bulk load log {self.table.fullname} {self.name}")


# -- in a file -------------------------------------------------------------------
#
# A FileLog is ``load.jsonl`` in a folder of its own::
#
#     BulkLoad(source, FileLog("loads/2024-05-17")).run()
#
# The file is only ever appended to. A mark in doubt is durable before its commit, so after a
# crash at most one batch is in doubt, and the database is asked about it. Every line carries a
# checksum. A last line without its end was being written when the process or the machine went
# down, and is dropped; every other damaged line is refused with its number.
#
# The folder has to be on a disk of this machine: network file systems may keep neither the lock
# nor the order of writes.

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
