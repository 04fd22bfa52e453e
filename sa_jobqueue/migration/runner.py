"""Run a change outside of Alembic's transaction, and again while others hold its lock."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from functools import partial
from typing import Protocol, TypeVar

from alembic.runtime.migration import MigrationContext
from sqlalchemy import Connection, Executable, MetaData, Table, text

from ..ages import duration_text
from ..dialects import Database, database_of, database_of_dialect, is_lock_timeout, is_transient
from ..dialects.schema_changes import SchemaChanges
from ..errors import ArgumentError, LockTimeout

#: How long a change waits in all for locks that others hold.
PATIENCE = timedelta(minutes=2)

#: The time between two tries, so that everybody who queued behind the first has a turn.
_PAUSE = timedelta(seconds=1)

T = TypeVar("T")

log = logging.getLogger("sa_jobqueue.migration")


class Op(Protocol):
    """The part of ``alembic.op`` that is used; an ``Operations`` object has it too."""

    def get_context(self) -> MigrationContext:
        """Return the context of the migration that runs."""
        ...


class Runner:
    """Runs statements on a migration's connection, or writes them to its --sql script.

    Args:
        patience: how long a change waits in all for locks that others hold.
    """

    def __init__(self, op: Op, *, patience: timedelta = PATIENCE) -> None:
        self.context = op.get_context()
        self.patience = patience
        # What is begun from now on is begun by our own reads, so we may end it.
        self._found_unused = not self.offline and not self.connection.in_transaction()

    @property
    def offline(self) -> bool:
        """Whether statements are written to a script instead of run."""
        return self.context.as_sql

    @property
    def connection(self) -> Connection:
        """The connection of the migration; there is none offline."""
        assert self.context.connection is not None
        return self.context.connection

    @property
    def database(self) -> Database:
        """The database; offline, its newest version."""
        if self.offline:
            return database_of_dialect(self.context.dialect)
        return database_of(self.connection)

    @property
    def changes(self) -> SchemaChanges:
        """How the database changes a table."""
        return self.database.schema_changes()

    def partitions_of(self, table: Table) -> list[Table] | None:
        """Return a table's partitions where they need changes of their own; None: it has none."""
        if self.offline or not self.changes.partitions_apart:
            return None
        found = self.changes.partitions(self.connection, table)
        if found is None:
            return None
        return [table.to_metadata(MetaData(), schema=schema, name=name) for schema, name in found]

    def run(self, statement: Executable | str) -> None:
        """Run one statement, or write it to the script."""
        self.context.execute(text(statement) if isinstance(statement, str) else statement)

    def _run_all(self, statements: Sequence[Executable | str]) -> None:
        for statement in statements:
            self.run(statement)

    # -- transactions -----------------------------------------------------

    @contextmanager
    def outside_transaction(self) -> Iterator[None]:
        """Leave Alembic's transaction: everything inside commits by itself.

        Otherwise a lock of the table would be kept until the whole migration ends.
        """
        with ExitStack() as entered:
            if self.offline:
                entered.enter_context(self.context.autocommit_block())
            else:
                options = self.connection.get_execution_options()
                if options.get("isolation_level") != "AUTOCOMMIT":  # the caller has not left it
                    self._leave_transaction_to_alembic()
                    entered.enter_context(self.context.autocommit_block())
                entered.enter_context(self.changes.without_transaction(self.connection))
            yield

    def _leave_transaction_to_alembic(self) -> None:
        """Have Alembic's own transaction open, or none, as its ``autocommit_block()`` wants it.

        It fails with a bare assertion where another one is open, and with InvalidRequestError after
        the migration's ``op.get_bind().commit()``.

        Raises:
            ArgumentError: a transaction of the caller's is open.
        """
        # A private attribute, since no public attribute of Alembic tells whose transaction this is.
        alembics = self.context._transaction
        if alembics is not None and alembics.is_active:
            return
        if self.connection.in_transaction():
            if alembics is None and not self._found_unused:
                raise ArgumentError(
                    "a transaction that is not Alembic's is open, and this change commits by "
                    "itself. Where env.py has used the connection before context.configure(), for "
                    "a SET or a SELECT, let it commit that, or call op.get_bind().commit() in the "
                    "migration, before this. Inside engine.begin() take a connection of its own "
                    "for this, or op.create_index for an index"
                )
            self.connection.commit()  # what our reads have begun
        if alembics is not None:
            self.context._transaction = self.connection.begin()

    # -- locks ------------------------------------------------------------

    def change(
        self, statements: Sequence[Executable], *, what: str, locked: Table | None = None
    ) -> None:
        """Run statements as one change; wait for a lock briefly, again and again.

        Call it inside :meth:`outside_transaction`.

        Args:
            what: names the change in messages.
            locked: the table that nobody else may use between the statements.
        """
        lock = None if locked is None else self.changes.table_lock(locked)
        begins, ends = ((), ()) if lock is None else (lock[:1], lock[1:])
        # InnoDB commits each statement, also where the next one finds a lock: so each is
        # repeated alone.
        apart = lock is None and not self.changes.together and not self.offline
        for part in [[each] for each in statements] if apart else [statements]:
            if part:
                self.briefly(partial(self._run_all, [*begins, *part]), what=what, ends=ends)

    def briefly(self, change: Callable[[], object], *, what: str, ends: Sequence[str] = ()) -> None:
        """Call a change that waits only briefly for the table's lock, until it has the lock.

        Args:
            ends: statements that are run after the change, also where it fails.
        """
        changes = self.changes

        def attempt() -> None:
            self._run_all(changes.begins)
            try:
                with changes.limited_table_wait(self.connection):
                    change()
            except BaseException:
                self._run_all([*ends, *changes.fails])
                raise
            self._run_all([*ends, *changes.ends])

        if self.offline:
            self._run_all(changes.begins)
            change()
            self._run_all([*ends, *changes.ends])
        else:
            self.retry_while_locked(attempt, what=what)

    def retry_while_locked(
        self,
        change: Callable[[], T],
        *,
        what: str,
        at_most: timedelta | None = None,
        leaves: str = "Nothing was changed by this step.",
    ) -> T:
        """Call a change until it finds no lock of others, or until patience ends.

        Only waiting counts: a try may have worked for hours, for instance at an index,
        before it met the lock.

        Args:
            what: names the change in messages.
            at_most: how long one try waits for a lock before it fails; by default as
                long as a change waits.
            leaves: what the change has left when patience has ended.

        Raises:
            LockTimeout: others held the lock all the time.
        """
        limit = at_most or self.changes.longest_wait(self.connection)
        waited = timedelta()
        while True:
            began = time.monotonic()
            try:
                return change()
            except Exception as error:  # a handle_error listener may raise what it likes
                if not is_lock_timeout(error) and not is_transient(error):
                    raise
                if is_lock_timeout(error):
                    waited += min(timedelta(seconds=time.monotonic() - began), limit)
                if waited >= self.patience:
                    raise LockTimeout(
                        f"{what}: another transaction kept its lock for "
                        f"{duration_text(self.patience)}. {leaves} Find that transaction among "
                        "the longest open ones, and end it or wait for it; then run the "
                        "migration again. patience= gives it more time."
                    ) from error
            pause = duration_text(_PAUSE)
            log.info("%s: another transaction has it locked; next try in %s", what, pause)
            time.sleep(_PAUSE.total_seconds())
            waited += _PAUSE


def patiently(op: Op, change: Callable[[], object], *, patience: timedelta = PATIENCE) -> None:
    """Run a change of your own like ours: it waits only briefly for a table's lock.

    ::

        patiently(op, lambda: op.drop_column("orders", "locked_at"))

    Everybody who comes later waits behind a change that waits. Therefore the change waits for
    half a second, gives up, and tries again, until it has the lock or patience ends. It commits
    by itself, and with it whatever the migration did before.

    Args:
        change: calls one operation of Alembic. InnoDB commits each operation, and all
            are called again where one has met a lock.
        patience: how long to wait in all for the lock.

    Raises:
        LockTimeout: others kept the table locked.
    """
    runner = Runner(op, patience=patience)
    with runner.outside_transaction():
        runner.briefly(change, what="a change of your own")
