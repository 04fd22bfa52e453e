"""How a change is run: away from Alembic's transaction, waiting for locks, but not for long."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from functools import partial
from typing import Protocol, TypeVar

from alembic.runtime.migration import MigrationContext
from sqlalchemy import Connection, Executable, MetaData, Table, text
from sqlalchemy.exc import DBAPIError

from ..dialects import Database, database_of, database_of_dialect
from ..dialects.schema_changes import SchemaChanges
from ..errors import ArgumentError, LockTimeout

#: How long a change waits in all for locks that others have.
PATIENCE = timedelta(minutes=2)

#: Between two tries, so that all who queued behind the first one have their turn.
_PAUSE = timedelta(seconds=1)

#: How things are when a change has failed.
NOTHING_CHANGED = "Nothing was changed by this step."

T = TypeVar("T")

log = logging.getLogger("sa_jobqueue.migration")


class Op(Protocol):
    """What of ``alembic.op`` is used; an ``Operations`` object has it too."""

    def get_context(self) -> MigrationContext:
        """Return the context of the migration that runs."""
        ...


class Runner:
    """One migration's connection, or the script that takes its place.

    Args:
        partitions: what a table is divided into, for a script, which cannot ask;
            None: it is not divided.
    """

    def __init__(
        self, op: Op, *, patience: timedelta = PATIENCE, partitions: Sequence[str] | None = None
    ) -> None:
        self.context = op.get_context()
        self.patience = patience
        self.partitions = partitions

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

    @property
    def changes(self) -> SchemaChanges:
        """How the database changes a table."""
        return self.database.schema_changes()

    def waiting_briefly(self) -> AbstractContextManager[None]:
        """Wait for locks only as long as a change does; see :meth:`SchemaChanges.waiting_at_most`.

        To be entered outside of any transaction.
        """
        longest = self.changes.longest_wait(self.connection)
        return self.changes.waiting_at_most(self.connection, longest)

    def partitions_of(self, table: Table) -> list[Table] | None:
        """Return what a table is divided into where that matters; None: it is one table.

        Raises:
            ArgumentError: the model is divided, and nobody can be asked into what.
        """
        if not self.changes.partitions_apart:
            return None
        if self.offline:
            return self._partitions_said(table)
        found = self.changes.partitions(self.connection, table)
        if found is None:
            return None
        return [table.to_metadata(MetaData(), schema=schema, name=name) for schema, name in found]

    def _partitions_said(self, table: Table) -> list[Table] | None:
        if self.partitions is not None:
            return [table.to_metadata(MetaData(), name=name) for name in self.partitions]
        if table.kwargs.get("postgresql_partition_by"):
            raise ArgumentError(
                f"without a database nobody knows the partitions of {table.description!r}: name "
                f'them, as in partitions=("{table.name}_1", "{table.name}_2"), or () for none'
            )
        return None

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
        if not statements:
            return
        lock = None if locked is None else self.changes.table_lock(self._named(locked))
        begins, ends = ((), ()) if lock is None else (lock[:1], lock[1:])
        if self.offline:
            self.write_down(partial(self._run_all, [*begins, *statements, *ends]))
            return
        # What InnoDB has changed stays so, also where the next statement finds a lock.
        apart = lock is None and not self.changes.together
        parts = [[one] for one in statements] if apart else [statements]
        for part in parts:
            run = partial(self._run_all, [*begins, *part])
            self.patiently(partial(self.briefly, run, ends=ends), what=what)

    def write_down(self, change: Callable[[], object]) -> None:
        """Write a change to the script, with what makes it wait only briefly."""
        self._run_all(self.changes.begins)
        change()
        self._run_all(self.changes.ends)

    def briefly(self, change: Callable[[], object], *, ends: Sequence[str] = ()) -> None:
        """Call a change of a table, which waits for the table's lock, but only briefly.

        To be called inside :meth:`alone`.

        Args:
            ends: statements that are run after it, also where it fails.
        """
        changes = self.changes
        self._run_all(changes.begins)
        try:
            with changes.limited_table_wait(self.connection):
                change()
        except BaseException:
            self._run_all([*ends, *changes.fails])
            raise
        self._run_all([*ends, *changes.ends])

    def _run_all(self, statements: Sequence[Executable | str]) -> None:
        for statement in statements:
            self.run(statement)

    def _named(self, table: Table) -> str:
        """Return a table's name as it stands in SQL."""
        return self.context.dialect.identifier_preparer.format_table(table)

    def patiently(
        self,
        change: Callable[[], T],
        *,
        what: str,
        at_most: timedelta | None = None,
        leaves: Callable[[], str] = lambda: NOTHING_CHANGED,
    ) -> T:
        """Call what may find a lock taken, until it does not, or patience ends.

        Patience is for waiting only: a try may have worked for hours, at an index
        say, before it met the lock.

        Args:
            at_most: how long one try waits for a lock, before it fails; by default
                as long as a change waits.
            leaves: called when patience has ended; says how things are then.

        Raises:
            LockTimeout: somebody had the lock all the time.
        """
        limit = at_most or self.changes.longest_wait(self.connection)
        waited = timedelta()
        while True:
            began = time.monotonic()
            try:
                return change()
            except DBAPIError as error:
                if not self.passes(error):
                    raise
                if self._waited(error):
                    waited += min(timedelta(seconds=time.monotonic() - began), limit)
                if waited >= self.patience:
                    raise LockTimeout(
                        f"{what}: another transaction kept its lock for {self.patience}. "
                        f"{leaves()} Find it among the longest open transactions and end it, or "
                        "wait for it, and run the migration again; patience= gives it more time."
                    ) from error
                log.info("%s: somebody has locked it, tried again in %s", what, _PAUSE)
            time.sleep(_PAUSE.total_seconds())
            waited += _PAUSE

    def passes(self, error: DBAPIError) -> bool:
        """Tell whether an error goes away when others have let their locks go."""
        return self._waited(error) or (
            error.orig is not None and self.database.is_transient(error.orig)
        )

    def _waited(self, error: DBAPIError) -> bool:
        return error.orig is not None and self.database.is_lock_timeout(error.orig)


def patiently(op: Op, change: Callable[[], object], *, patience: timedelta = PATIENCE) -> None:
    """Run a change of your own as ours are run: it waits for a table's lock, but only briefly.

    ::

        patiently(op, lambda: op.drop_column("orders", "locked_at"))

    All who come later wait behind a change that waits. So it waits for half a second,
    lets go, and tries again, until it has the lock or patience ends. Commits by itself:
    what the migration did before it is committed, too.

    Args:
        change: calls operations of Alembic: one, since InnoDB commits each, and all
            are called again where one has met a lock.
        patience: how long to wait in all for the lock.

    Raises:
        LockTimeout: others kept the table locked.
    """
    runner = Runner(op, patience=patience)
    with runner.alone():
        if runner.offline:
            runner.write_down(change)
        else:
            runner.patiently(partial(runner.briefly, change), what="a change of your own")
