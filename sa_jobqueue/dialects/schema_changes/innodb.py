"""MySQL and MariaDB: each change commits by itself, and lets others write where it can.

``lock_wait_timeout`` counts whole seconds, and everybody who comes later waits behind a
statement that waits for a table's lock: with one second, the shortest, inserts were seen to
take 1.0004. So ``limited_table_wait()`` has a second connection look at the first, and
interrupt its statement (``KILL QUERY``, which every user may do to connections of their own)
while the server says that it waits for that lock. Nothing else is interrupted, however long
it takes, such as an index that is being built.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from typing import Any, ClassVar

from sqlalchemy import Connection, Engine, Index, Table, inspect, text
from sqlalchemy.exc import OperationalError, SQLAlchemyError
from sqlalchemy.schema import ExecutableDDLElement

from ..capabilities import Version
from ..connections import call_for, dedicated_connection, driver_errors
from ..innodb import PROCESS_LIST, waiting_at_most
from . import SchemaChanges, Statement, drop_index_by_alter

log = logging.getLogger("sa_jobqueue.migration")

_ONLINE = ", ALGORITHM=INPLACE, LOCK=NONE"

#: How long a statement may wait for the lock of a table's definition.
_INTERRUPT_AFTER = timedelta(milliseconds=400)

_LOOK_EVERY = timedelta(milliseconds=50)

_INTERRUPTED = 1317
_WAITED_TOO_LONG = 1205

_IS_WAITING = (
    f"SELECT COUNT(*) FROM {PROCESS_LIST} WHERE id = :number AND db = DATABASE() "
    "AND state = 'Waiting for table metadata lock'"
)


class InnoDBSchemaChanges(SchemaChanges):
    """What MySQL and MariaDB have in common.

    Attributes:
        instant_since: the versions since which a column is added, and dropped, without
            a rebuild of the table.
    """

    instant_since: ClassVar[tuple[Version, Version]]

    together: ClassVar[bool] = False
    create_online: ClassVar[str] = " ALGORITHM=INPLACE LOCK=NONE"

    # lock_wait_timeout limits the wait for the lock of the table's definition, which every
    # open transaction that used the table shares. One second is MySQL's shortest setting;
    # limited_table_wait() halves it.
    begins: ClassVar[tuple[str, ...]] = (
        "SET @sa_jobqueue_lock_wait = @@lock_wait_timeout, lock_wait_timeout = 1",
    )
    ends: ClassVar[tuple[str, ...]] = ("SET lock_wait_timeout = @sa_jobqueue_lock_wait",)
    fails: ClassVar[tuple[str, ...]] = ends

    def instant(self, *, drop: bool = False) -> str:
        if self.database.at_least(*self.instant_since[drop]):
            return ", ALGORITHM=INSTANT"
        return _ONLINE

    def drop_index(self, index: Index, connection: Connection | None) -> ExecutableDDLElement:
        # MariaDB's DROP INDEX has no clause that lets others write.
        return drop_index_by_alter(index, _for_references(index, connection), ending=_ONLINE)

    def swap(
        self, index: Index, built: Index, connection: Connection | None
    ) -> list[ExecutableDDLElement]:
        added = _for_references(index, connection)
        return [drop_index_by_alter(index, added, built=built, ending=_ONLINE)]

    def table_lock(self, table: Table) -> tuple[ExecutableDDLElement, str] | None:
        # Each change commits. A transaction that reads the table in between blocks the next change.
        lock = Statement(lambda to: f"LOCK TABLES {to.preparer.format_table(table)} WRITE")
        return lock, "UNLOCK TABLES"

    def longest_wait(self, connection: Connection) -> timedelta:
        return timedelta(seconds=1)

    def waiting_at_most(
        self, connection: Connection, time: timedelta
    ) -> AbstractContextManager[None]:
        return waiting_at_most(connection, time)

    @contextmanager
    def limited_table_wait(self, connection: Connection) -> Iterator[None]:
        number = self.database.backend(connection)
        assert number is not None
        watch = _Watch(connection.engine, number)
        watch.start()
        try:
            yield
        except Exception as error:  # a handle_error listener may raise what it likes
            codes = [cause.args[:1] for cause in driver_errors(error)]
            if watch.interrupted and (_INTERRUPTED,) in codes:
                # The same error as that of the server's own limit.
                ended = TimeoutError(
                    _WAITED_TOO_LONG, "the wait for the table's lock took too long"
                )
                statement = getattr(error, "statement", None)
                raise OperationalError(statement, getattr(error, "params", None), ended) from error
            raise
        finally:
            watch.stop()


class MySQLSchemaChanges(InnoDBSchemaChanges):
    """How MySQL changes tables."""

    instant_since: ClassVar[tuple[Version, Version]] = ((8, 0, 12), (8, 0, 29))


class MariaDBSchemaChanges(InnoDBSchemaChanges):
    """How MariaDB changes tables."""

    instant_since: ClassVar[tuple[Version, Version]] = ((10, 3, 2), (10, 4))


def _for_references(index: Index, connection: Connection | None) -> dict[str, list[str]]:
    """Return the indexes that foreign keys need when another index is dropped.

    InnoDB makes an index for each foreign key. It drops that index as soon as another index begins
    with the same columns, and then refuses to drop the other one. The new index has the name of the
    foreign key, as InnoDB's own has, so that Alembic does not take it for a change.
    """
    if connection is None or index.table is None:
        return {}
    name, schema = index.table.name, connection.schema_for_object(index.table)
    inspector: Any = inspect(connection)
    columns = {
        found["name"]: found["column_names"] for found in inspector.get_indexes(name, schema=schema)
    }
    preparer = connection.dialect.identifier_preparer
    dropped = columns.pop(preparer.format_index(index).strip("`"), [])
    key = inspector.get_pk_constraint(name, schema=schema)["constrained_columns"]
    others = [*columns.values(), key]
    needed: dict[str, list[str]] = {}
    for reference in inspector.get_foreign_keys(name, schema=schema):
        own = reference["constrained_columns"]
        if dropped[: len(own)] == own and not any(each[: len(own)] == own for each in others):
            needed[str(reference["name"])] = own
            others.append(own)
    return needed


class _Watch(threading.Thread):
    """Looks again and again whether a connection waits for a table's lock.

    Attributes:
        interrupted: whether a statement has waited too long, and was interrupted.
    """

    def __init__(self, engine: Engine, number: int) -> None:
        super().__init__(name="sa_jobqueue lock wait", daemon=True)
        self.interrupted = False
        self._engine = engine
        self._number = number
        self._is_waiting = text(_IS_WAITING).bindparams(number=number)
        self._over = threading.Event()

    def stop(self) -> None:
        """Stop looking: the next statement is not interrupted."""
        self._over.set()
        self.join()

    def run(self) -> None:
        """Look until stop() is called."""
        try:
            call_for(self._engine, self._watch)
        except SQLAlchemyError as error:
            log.info("no second connection: waits for a table's lock last a second: %s", error)

    def _watch(self) -> None:
        with dedicated_connection(self._engine) as connection:
            since: float | None = None
            while not self._over.wait(_LOOK_EVERY.total_seconds()):
                now = time.monotonic()
                if not connection.scalar(self._is_waiting):
                    since = None
                elif since is None:
                    since = now
                elif now - since >= _INTERRUPT_AFTER.total_seconds():
                    self.interrupted = True
                    connection.exec_driver_sql(f"KILL QUERY {self._number}")
                    since = None
