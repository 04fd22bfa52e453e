"""A load's log in two tables of the database that is loaded.

::

    tables = load_tables(Base.metadata)        # for Alembic to see; or:
    load_tables(MetaData()).create_all(engine)

    BulkLoad(source, DatabaseLog(engine, "emails of may")).run()

A batch's mark commits in the same transaction as its rows. So no batch is ever in doubt,
and none is run twice.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Connection,
    Engine,
    Integer,
    MetaData,
    SmallInteger,
    String,
    Table,
    Text,
    delete,
    insert,
    inspect,
    select,
    update,
)
from sqlalchemy.dialects import mysql

from ..errors import ArgumentError, BrokenLog, LockLost, LockNotHeld
from ..owners.named_lock import NamedLock, named_lock
from ..sessions.transactions import transaction
from .log import NOTHING, VERSION, Head, Log, check_version
from .states import LoadState

_NAME_LENGTH = 100

#: Texts of any length: TEXT on MySQL and MariaDB ends at 64 kB.
_LONG = Text().with_variant(mysql.LONGTEXT(), "mysql", "mariadb")

#: How many batches are read in one query.
_PAGE = 100


@dataclass(frozen=True)
class LoadTables:
    """The two tables of a DatabaseLog.

    Attributes:
        loads: one row for each load.
        batches: one row for each batch of a load.
    """

    loads: Table
    batches: Table

    def create_all(self, engine: Engine) -> None:
        """Create the tables that are missing."""
        self.loads.metadata.create_all(engine, tables=[self.loads, self.batches])


def load_tables(metadata: MetaData, name: str = "bulk_load") -> LoadTables:
    """Add the two tables to a MetaData, or find them there.

    Args:
        name: the first table's name; the second's is the same with ``_batch`` appended.
    """
    schema = "" if metadata.schema is None else f"{metadata.schema}."
    if schema + name in metadata.tables:
        return LoadTables(metadata.tables[schema + name], metadata.tables[f"{schema}{name}_batch"])
    loads = Table(
        name,
        metadata,
        Column("name", String(_NAME_LENGTH), primary_key=True),
        Column("version", Integer, nullable=False),
        Column("id", String(32), nullable=False),
        Column("state", String(16), nullable=False),
        Column("redo_ended", Boolean, nullable=False),
        Column("metadata", Text, nullable=False),
    )
    batches = Table(
        f"{name}_batch",
        metadata,
        Column("load_id", String(32), primary_key=True),
        Column("number", BigInteger, primary_key=True, autoincrement=False),
        Column("mark", SmallInteger, nullable=False),
        Column("redo", _LONG, nullable=False),
        Column("kept", _LONG),
    )
    return LoadTables(loads, batches)


class DatabaseLog(Log):
    """A log in two tables.

    Args:
        engine: an engine of the loaded database.
        name: the load's name, at most 100 characters.
        tables: what :func:`load_tables` returned; by default tables of the usual names.

    Raises:
        ArgumentError: `name` is empty or too long.
    """

    def __init__(
        self, engine: Engine, name: str = "load", *, tables: LoadTables | None = None
    ) -> None:
        if not 0 < len(name) <= _NAME_LENGTH:
            raise ArgumentError(f"a load's name has 1 to {_NAME_LENGTH} characters: {name!r}")
        self.engine = engine
        self.name = name
        self.tables = load_tables(MetaData()) if tables is None else tables
        self._lock: NamedLock | None = None

    def __repr__(self) -> str:
        return f"DatabaseLog({self.engine!r}, {self.name!r})"

    # -- the whole ------------------------------------------------------

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

    def read(self) -> Head | None:
        self._load_id, self.marks, self.redo_ended = "", bytearray(), False
        with self.engine.connect() as connection:
            self._check_tables(connection)
            found = connection.execute(self._of_load(select(self.tables.loads))).first()
            if found is None:
                return None
            if found.name != self.name:
                raise BrokenLog(
                    f"There is a load {found.name!r}, and for this database {self.name!r} is "
                    "the same name: give the new load another name."
                )
            check_version(f"The log {self.name!r}", found.version)
            self._load_id, self.redo_ended = found.id, found.redo_ended
            batches = self.tables.batches.c
            query = select(batches.number, batches.mark).where(batches.load_id == found.id)
            for number, mark in connection.execute(query.order_by(batches.number)):
                if number != len(self.marks):
                    raise BrokenLog(
                        f"{self.tables.batches.name} has no batch {len(self.marks)} of the load "
                        f"{self.name!r}, but it has later batches: restore the missing row."
                    )
                self.marks.append(mark)
        return Head(
            id=found.id,
            state=LoadState(found.state),
            metadata=json.loads(found._mapping["metadata"]),
        )

    def begin(self, head: Head) -> None:
        with self._writing() as connection:
            self._delete(connection)
            connection.execute(
                insert(self.tables.loads).values(
                    name=self.name, version=VERSION, redo_ended=False, **_columns(head)
                )
            )
        self._load_id, self.marks, self.redo_ended = head.id, bytearray(), False

    def store(self, head: Head) -> None:
        self._update_load(**_columns(head))

    def clear(self) -> None:
        with self._writing() as connection:
            self._delete(connection)

    # -- redo -----------------------------------------------------------

    def add_redo(self, batch: Any) -> None:
        with self._writing() as connection:
            connection.execute(
                insert(self.tables.batches).values(
                    load_id=self._load_id,
                    number=len(self.marks),
                    mark=NOTHING,
                    redo=json.dumps(batch),
                )
            )
        self.marks.append(NOTHING)

    def end_redo(self) -> None:
        self._update_load(redo_ended=True)
        self.redo_ended = True

    def redo(self, numbers: Sequence[int]) -> Iterator[tuple[int, Any]]:
        batches = self.tables.batches.c
        for begin in range(0, len(numbers), _PAGE):
            page = numbers[begin : begin + _PAGE]
            query = select(batches.number, batches.redo).where(
                batches.load_id == self._load_id, batches.number.in_(page)
            )
            with self.engine.connect() as connection:
                found = {row.number: row.redo for row in connection.execute(query)}
            for number in page:
                yield number, json.loads(found[number])

    # -- undo -----------------------------------------------------------

    def shares_transactions(self, engine: Engine) -> bool:
        if _schemas(engine) != _schemas(self.engine):
            return False
        in_memory = engine.url.database in (None, "", ":memory:")
        return engine.pool is self.engine.pool or (engine.url == self.engine.url and not in_memory)

    def mark(
        self, number: int, mark: int, *, kept: Any = None, connection: Connection | None = None
    ) -> None:
        values = {"mark": mark} if kept is None else {"mark": mark, "kept": json.dumps(kept)}
        statement = update(self.tables.batches).where(*self._is_batch(number)).values(values)
        if connection is not None:
            connection.execute(statement)
            return
        with self._writing() as own:
            own.execute(statement)

    def kept(self, number: int) -> Any:
        query = select(self.tables.batches.c.kept).where(*self._is_batch(number))
        with self.engine.connect() as connection:
            kept = connection.execute(query).scalar_one()
        return None if kept is None else json.loads(kept)

    # -- statements -----------------------------------------------------

    def _named_lock(self) -> NamedLock:
        return named_lock(self.engine, f"bulk load log {self.tables.loads.fullname} {self.name}")

    def _check_tables(self, connection: Connection) -> None:
        for table in (self.tables.loads, self.tables.batches):
            schema = connection.schema_for_object(table)
            if not inspect(connection).has_table(table.name, schema=schema):
                raise BrokenLog(
                    f"There is no table {table.fullname}. Create it by a migration, with "
                    "load_tables(metadata) in your models, or at once, by "
                    "log.tables.create_all(engine)."
                )

    @contextmanager
    def _writing(self) -> Iterator[Connection]:
        with self.engine.connect() as connection, transaction(connection):
            yield connection

    def _update_load(self, **values: Any) -> None:
        with self._writing() as connection:
            connection.execute(self._of_load(update(self.tables.loads)).values(values))

    def _delete(self, connection: Connection) -> None:
        batches = self.tables.batches
        connection.execute(delete(batches).where(batches.c.load_id == self._load_id))
        connection.execute(self._of_load(delete(self.tables.loads)))

    def _of_load(self, statement: Any) -> Any:
        return statement.where(self.tables.loads.c.name == self.name)

    def _is_batch(self, number: int) -> tuple[Any, Any]:
        batches = self.tables.batches.c
        return batches.load_id == self._load_id, batches.number == number


def _schemas(engine: Engine) -> Any:
    return engine.get_execution_options().get("schema_translate_map") or {}


def _columns(head: Head) -> dict[str, Any]:
    return {
        "id": head.id,
        "state": str(head.state),
        "metadata": json.dumps(dict(head.metadata)),
    }
