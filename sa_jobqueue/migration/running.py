"""How a change is run: away from Alembic's transaction, waiting for locks, but not for long."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import Protocol, TypeVar

from alembic.runtime.migration import MigrationContext
from sqlalchemy import Connection, Executable, MetaData, Table, text
from sqlalchemy.exc import DBAPIError

from ..dialects import Database, database_of, database_of_dialect
from ..errors import ArgumentError, LockTimeout

#: How long a change tries in all to get its lock.
PATIENCE = timedelta(minutes=2)

#: Between two tries, so that all who queued behind the first one have their turn.
_PAUSE = timedelta(seconds=1)

T = TypeVar("T")

log = logging.getLogger("sa_jobqueue.migration")


class Op(Protocol):
    """What of ``alembic.op`` is used; an ``Operations`` object has it too."""

    def get_context(self) -> MigrationContext:
        """Return the context of the migration that runs."""
        ...


class Runner:
    """One migration's connection, or the script that takes its place."""

    def __init__(self, op: Op, *, patience: timedelta = PATIENCE) -> None:
        self.context = op.get_context()
        self.patience = patience

    @property
    def offline(self) -> bool:
        """Whether statements are written to a script, and none is run."""
        return self.context.as_sql

    @property
    def connection(self) -> Connection:
        """The connection of the migration; there is none offline."""
        assert self.context.connection is not None
        return self.context.connection

    @property
    def database(self) -> Database:
        """The database, of the newest version where no server was asked."""
        if self.offline:
            return database_of_dialect(self.context.dialect)
        return database_of(self.connection)

    def partitions_of(self, table: Table) -> list[Table]:
        """Return what a table is divided into where that matters; offline it does not show."""
        if self.offline:
            return []
        return [
            table.to_metadata(MetaData(), schema=schema, name=name)
            for schema, name in self.database.partitions(self.connection, table)
        ]

    def run(self, statement: Executable | str) -> None:
        """Run one statement, or write it to the script."""
        self.context.execute(text(statement) if isinstance(statement, str) else statement)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Leave Alembic's transaction: what runs inside commits by itself.

        Else a lock of the table would be kept until the migration ends, whatever
        comes behind us in it.
        """
        if not self.offline:
            options = self.connection.get_execution_options()
            if options.get("isolation_level") == "AUTOCOMMIT":  # a block of the caller's
                yield
                return
            # Alembic does not tell in public whose transaction this is, and asserts.
            if self.connection.in_transaction() and self.context._transaction is None:
                raise ArgumentError(
                    "a transaction that is not Alembic's is open, and this change commits by "
                    "itself: call context.configure() with a connection that has none, or "
                    "migrate inside context.begin_transaction()"
                )
        with self.context.autocommit_block():
            yield

    def change(
        self, statements: Sequence[Executable], *, what: str, locked: Table | None = None
    ) -> None:
        """Run statements as one change, which waits for a lock again and again, but briefly.

        To be called inside :meth:`alone`.

        Args:
            locked: the table that nobody may use between the statements.
        """
        lock = None if locked is None else self.database.table_lock(self._named(locked))
        begins, ends = ((), ()) if lock is None else (lock[:1], lock[1:])
        if self.offline:
            database = self.database
            script: list[Executable | str]
            script = [*database.change_begins, *begins, *statements, *ends, *database.change_ends]
            for statement in script:
                self.run(statement)
            return
        # What InnoDB has changed stays so, also where the next statement finds a lock.
        apart = lock is None and not self.database.changes_together
        parts = [[one] for one in statements] if apart else [statements]
        for part in parts:
            self.patiently(partial(self._change, part, begins, ends), what=what)

    def _change(
        self, statements: Sequence[Executable], begins: Sequence[str], ends: Sequence[str]
    ) -> None:
        database = self.database
        for statement in database.change_begins:
            self.run(statement)
        try:
            for statement in begins:
                self.run(statement)
            for each in statements:
                self.run(each)
        except BaseException:
            for statement in (*ends, *database.change_fails):
                self.run(statement)
            raise
        for statement in (*ends, *database.change_ends):
            self.run(statement)

    def _named(self, table: Table) -> str:
        """Return a table's name as it stands in SQL."""
        return self.context.dialect.identifier_preparer.format_table(table)

    def patiently(self, change: Callable[[], T], *, what: str) -> T:
        """Call what may find a lock taken, until it does not, or patience ends.

        Raises:
            LockTimeout: somebody had the lock all the time.
        """
        end = time.monotonic() + self.patience.total_seconds()
        while True:
            try:
                return change()
            except DBAPIError as error:
                if not self._passes(error):
                    raise
                if time.monotonic() > end:
                    raise LockTimeout(
                        f"{what}: another transaction kept its lock for {self.patience}. "
                        "Nothing was changed by this step. Find it among the longest open "
                        "transactions and end it, or wait for it, and run the migration again; "
                        "patience= gives it more time."
                    ) from error
                log.info("%s: the table is locked, tried again in %s", what, _PAUSE)
            time.sleep(_PAUSE.total_seconds())

    def _passes(self, error: DBAPIError) -> bool:
        if error.orig is None:
            return False
        database = self.database
        return database.is_lock_timeout(error.orig) or database.is_transient(error.orig)
