"""A load's log, in a table of the database that is loaded, or in a file.

::

    load_table(Base.metadata)                  # for Alembic to see; or:
    load_table(MetaData()).create(engine)

    BulkLoad(source, DatabaseLog(engine, "emails of may")).run()

A batch's mark commits in the same transaction as its rows. So no batch is ever in doubt,
and none is run twice.

A FileLog is ``load.jsonl`` in a folder of its own::

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
from contextlib import suppress
from datetime import timedelta
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

from ..errors import ArgumentError, BrokenLog, LockLost, LockNotHeld, UnsupportedDatabase
from ..owners.named_lock import NamedLock, named_lock
from ..sessions.transactions import transaction
from .log import Log

_NAME_LENGTH = 100

#: Names that are the same only if they are equal.
_NAME = String(_NAME_LENGTH).with_variant(
    mysql.VARCHAR(_NAME_LENGTH, charset="utf8mb4", collation="utf8mb4_bin"), "mysql", "mariadb"
)

#: Texts of any length: TEXT on MySQL and MariaDB ends at 64 kB.
_LONG = Text().with_variant(mysql.LONGTEXT(), "mysql", "mariadb")


def load_table(metadata: MetaData, name: str = "bulk_load") -> Table:
    """Add the table of a DatabaseLog to a MetaData, or find it there."""
    key = name if metadata.schema is None else f"{metadata.schema}.{name}"
    if key in metadata.tables:
        return metadata.tables[key]
    return Table(
        name,
        metadata,
        Column("id", Integer, primary_key=True),
        Column("name", _NAME, nullable=False, index=True),
        Column("entry", _LONG),
        Column("batch", _LONG),
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
