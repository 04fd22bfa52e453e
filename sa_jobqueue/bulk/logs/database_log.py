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
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

from sqlalchemy import (
    Connection,
    Engine,
    MetaData,
    delete,
    insert,
    select,
    update,
)
from sqlalchemy import inspect as sa_inspect

from ...errors import ArgumentError, BrokenLog, LockLost, LockNotHeld, LockTimeout
from ...owners.named_lock import NamedLock, named_lock
from ...sessions.transactions import transaction
from ..log import IN_DOUBT, NOTHING, Head, Log, refuse_format
from ..states import LoadState
from .tables import NAME_LENGTH, LoadTables, load_tables

VERSION = 1

#: How many batches are read in one query.
_PAGE = 100


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
        if not 0 < len(name) <= NAME_LENGTH:
            raise ArgumentError(f"a load's name has 1 to {NAME_LENGTH} characters: {name!r}")
        self.engine = engine
        self.tables = load_tables(MetaData()) if tables is None else tables
        self._name = name
        self._lock: NamedLock | None = None
        super().__init__()

    @property
    def name(self) -> str:
        return self._name

    def __repr__(self) -> str:
        return f"DatabaseLog({self.engine!r}, {self._name!r})"

    # -- the whole ------------------------------------------------------

    def open(self) -> Head | None:
        lock = self._named_lock()
        if not lock.acquire(timedelta(0)):
            raise LockTimeout(
                f"Another manager works with the log {self._name!r}: {lock.holder()}."
            )
        self._lock = lock
        try:
            return self._read()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        lock, self._lock = self._lock, None
        if lock is not None:
            # A lost lock needs no release; whatever ended its connection raises by itself.
            with suppress(LockLost, LockNotHeld):
                lock.release()

    def peek(self) -> tuple[Head | None, bool]:
        # A call that ends or begins while we read counts as under way.
        busy = self._is_locked()
        head = self._read()
        return head, busy or self._is_locked()

    def begin(self, head: Head) -> None:
        self._load_id = head.id
        with self._writing() as connection:
            connection.execute(
                insert(self.tables.loads).values(
                    name=self._name, version=VERSION, redo_ended=False, **_columns(head)
                )
            )

    def store(self, head: Head) -> None:
        with self._writing() as connection:
            connection.execute(self._of_load(update(self.tables.loads)).values(_columns(head)))

    def clear(self) -> None:
        with self._writing() as connection:
            self._delete_batches(connection)
            connection.execute(self._of_load(delete(self.tables.loads)))

    # -- redo -----------------------------------------------------------

    def clear_redo(self) -> None:
        with self._writing() as connection:
            self._delete_batches(connection)
            self._write_redo_ended(connection, False)
        self.redo_count, self.redo_ended = 0, False

    def add_redo(self, number: int, batch: Any) -> None:
        redo = json.dumps(batch)
        row = {"load_id": self._load_id, "number": number, "mark": NOTHING, "redo": redo}
        with self._writing() as connection:
            connection.execute(insert(self.tables.batches), row)
        self.redo_count += 1

    def end_redo(self) -> None:
        with self._writing() as connection:
            self._write_redo_ended(connection, True)
        self.redo_ended = True

    def redo(
        self, wanted: Callable[[int], bool], *, backwards: bool = False
    ) -> Iterator[tuple[int, Any]]:
        numbers = list(filter(wanted, range(self.redo_count)[:: -1 if backwards else 1]))
        batches = self.tables.batches.c
        for begin in range(0, len(numbers), _PAGE):
            page = numbers[begin : begin + _PAGE]
            query = (
                select(batches.number, batches.redo)
                .where(batches.load_id == self._load_id, batches.number.in_(page))
                .order_by(batches.number.desc() if backwards else batches.number)
            )
            with self.engine.connect() as connection:
                rows = connection.execute(query).all()
            for number, redo in rows:
                yield number, json.loads(redo)

    def _delete_batches(self, connection: Connection) -> None:
        batches = self.tables.batches
        connection.execute(delete(batches).where(batches.c.load_id == self._load_id))

    def _write_redo_ended(self, connection: Connection, ended: bool) -> None:
        connection.execute(self._of_load(update(self.tables.loads)).values(redo_ended=ended))

    # -- undo -----------------------------------------------------------

    def shares_transactions(self, engine: Engine) -> bool:
        if engine.pool is self.engine.pool:
            return True
        in_memory = engine.url.database in (None, "", ":memory:")
        return engine.url == self.engine.url and not in_memory

    def before_commit(
        self, number: int, mark: int, connection: Connection | None, kept: Any = None
    ) -> None:
        if connection is not None:
            self._write(connection, number, mark=mark, kept=_json_or_null(kept))
            return
        with self._writing() as own:
            self._write(own, number, mark=IN_DOUBT[mark], kept=_json_or_null(kept))
        self.marks[number] = IN_DOUBT[mark]

    def after_commit(self, number: int, mark: int) -> None:
        if self.marks[number] == IN_DOUBT[mark]:  # not written in the batch's transaction
            with self._writing() as own:
                self._write(own, number, mark=mark)
        self.marks[number] = mark

    def not_committed(self, number: int, before: int) -> None:
        with self._writing() as own:
            self._write(own, number, mark=before)
        self.marks[number] = before

    def kept(self, number: int) -> Any:
        if self.marks[number] == NOTHING:
            return None
        batches = self.tables.batches.c
        query = select(batches.kept).where(
            batches.load_id == self._load_id, batches.number == number
        )
        with self.engine.connect() as connection:
            kept = connection.execute(query).scalar_one()
        return None if kept is None else json.loads(kept)

    def _write(self, connection: Connection, number: int, **values: Any) -> None:
        batches = self.tables.batches
        # The connection may be the source's, whose engine translates schemas otherwise.
        connection.execute(
            update(batches)
            .where(batches.c.load_id == self._load_id, batches.c.number == number)
            .values(values),
            execution_options={"schema_translate_map": self._schemas},
        )

    # -- reading --------------------------------------------------------

    def _read(self) -> Head | None:
        self._reset()
        with self.engine.connect() as connection:
            self._refuse_missing_tables(connection)
            found = connection.execute(self._of_load(select(self.tables.loads))).first()
            if found is None:
                return None
            if found.name != self._name:
                raise BrokenLog(
                    f"There is a load {found.name!r}, and for this database {self._name!r} is "
                    "the same name: give the new load another name."
                )
            if found.version != VERSION:
                refuse_format(f"The log {self._name!r}", found.version, readable=VERSION)
            self._load_id, self.redo_ended = found.id, found.redo_ended
            self._read_marks(connection)
        return Head(
            id=found.id,
            state=LoadState(found.state),
            metadata=json.loads(found._mapping["metadata"]),
            workers=found.workers,
            cleaning=found.cleaning,
        )

    def _read_marks(self, connection: Connection) -> None:
        batches = self.tables.batches.c
        query = select(batches.number, batches.mark).where(batches.load_id == self._load_id)
        for number, mark in connection.execute(query.order_by(batches.number)):
            if number != self.redo_count:
                raise BrokenLog(
                    f"{self.tables.batches.name} has no batch {self.redo_count} of the load "
                    f"{self._name!r}, but it has later batches: restore the missing row."
                )
            self.redo_count += 1
            if mark:
                self.marks[number] = mark

    def _refuse_missing_tables(self, connection: Connection) -> None:
        for table in (self.tables.loads, self.tables.batches):
            schema = connection.schema_for_object(table)
            if not sa_inspect(connection).has_table(table.name, schema=schema):
                name = table.name if schema is None else f"{schema}.{table.name}"
                raise BrokenLog(
                    f"There is no table {name}. Create it by a migration, with "
                    "load_tables(metadata) in your models, or at once, by "
                    "log.tables.create_all(engine)."
                )

    def _named_lock(self) -> NamedLock:
        table = self.tables.loads
        schema = self._schemas.get(table.schema, table.schema)
        table_name = table.name if schema is None else f"{schema}.{table.name}"
        return named_lock(self.engine, f"bulk load log {table_name} {self._name}")

    @property
    def _schemas(self) -> Mapping[str | None, str | None]:
        """The schemas that the engine has in place of those of the tables."""
        return self.engine.get_execution_options().get("schema_translate_map") or {}

    def _is_locked(self) -> bool:
        return self._named_lock().holder() is not None

    def _of_load(self, statement: Any) -> Any:
        return statement.where(self.tables.loads.c.name == self._name)

    @contextmanager
    def _writing(self) -> Iterator[Connection]:
        with self.engine.connect() as connection, transaction(connection):
            yield connection


def _json_or_null(kept: Any) -> str | None:
    return None if kept is None else json.dumps(kept)


def _columns(head: Head) -> dict[str, Any]:
    return {
        "id": head.id,
        "state": str(head.state),
        "workers": head.workers,
        "cleaning": head.cleaning,
        "metadata": json.dumps(dict(head.metadata)),
    }
