"""A load's log in a table of the database that is loaded.

::

    load_table(Base.metadata)                  # for Alembic to see; or:
    load_table(MetaData()).create(engine)

    BulkLoad(source, DatabaseLog(engine, "emails of may")).run()

A batch's mark commits in the same transaction as its rows. So no batch is ever in doubt,
and none is run twice.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from typing import Any

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

from ..errors import ArgumentError, BrokenLog, LockLost, LockNotHeld
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

    def __repr__(self) -> str:
        return f"DatabaseLog({self.engine!r}, {self.name!r})"

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
