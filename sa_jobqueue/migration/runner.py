"""Run a change outside of Alembic's transaction, and again while others hold its lock.

The table that a migration changes, and its queue, come from a class or a name. A migration outlives
the models, so it names the table and the mixins. From these a private class is mapped, which has
the same columns and indexes as the model's.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from functools import cached_property, partial
from typing import Any, Protocol, TypeAlias, TypeVar

from alembic.runtime.migration import MigrationContext
from sqlalchemy import Column, Connection, Executable, MetaData, Table, text
from sqlalchemy.exc import NoSuchTableError
from sqlalchemy.orm import declarative_base
from sqlalchemy.types import NullType

from ..ages import duration_text
from ..databases import Database, database_of, database_of_dialect, is_lock_timeout, is_transient
from ..errors import ArgumentError, LockTimeout
from ..model.mapping import QueueMapping, any_mapping_of, mapping_of
from ..model.mixins import JobMixin, QueueColumns
from .changes import Changes, alter_table, changes_of

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

    @cached_property
    def changes(self) -> Changes:
        """How the database changes a table."""
        return changes_of(self.database)

    @property
    def longest_wait(self) -> timedelta:
        """How long one attempt of a change waits for a lock, at most."""
        return self.changes.longest_wait or self.database.lock_wait(self.connection)

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
                change()
            except BaseException:
                self._run_all([*ends, *changes.fails])
                raise
            self._run_all([*ends, *changes.ends])

        if self.offline:
            attempt()
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
        limit = at_most or self.longest_wait
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
    a second at most, gives up, and tries again, until it has the lock or patience ends. It commits
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


#: A table's name, or a mapped class.
AnyTable: TypeAlias = str | type[Any]

#: A stand-in for the primary key where only the mixins' columns matter.
NO_KEY = ("sa_jobqueue_key",)

#: The options that name columns of the table.
_OF_COLUMNS = ("equality", "order_by", "per_key", "enqueued_at")


def mapping_for(
    runner: Runner,
    table: AnyTable,
    mixins: Sequence[type[QueueColumns]],
    queue_args: Mapping[str, Any] | None,
    schema: str | None,
    key: Sequence[str] = NO_KEY,
) -> QueueMapping:
    """Return the mapping of a class, or of a private class for a table's name.

    Raises:
        ArgumentError: `table` is a class, and `queue_args` or `schema` is given too.
    """
    if not isinstance(table, str):
        if queue_args is not None or schema is not None:
            raise ArgumentError(
                f"{table!r} has its own __queue_args__ and its own schema; to give others, pass "
                "the table's name instead of the class"
            )
        mapping = any_mapping_of(table)
        return mapping if mapping.is_ordered else mapping_of(table)  # raises: it is no queue
    args = dict(queue_args or {})
    mixins = tuple(mixins) or (JobMixin,)
    taken = {name for mixin in mixins for name in mixin.__queue_attributes__.values()}
    others = {*_words(args.get(option) for option in _OF_COLUMNS)} - taken
    body: dict[str, Any] = {column: Column(NullType()) for column in others}
    body |= {column: Column(NullType(), primary_key=True) for column in key}
    body |= {
        "__tablename__": table,
        "__table_args__": {"schema": schema},
        "__queue_args__": args,
    }
    metadata = MetaData(naming_convention=_naming_convention(runner, table, schema))
    base = declarative_base(metadata=metadata)
    return any_mapping_of(type("Adopted", (*mixins, base), body))


def _words(given: Any) -> Iterator[str]:
    """Yield the columns that an option names: ``"a desc"``, ``["a", ("b", "c")]``."""
    if isinstance(given, str):
        yield given.partition(" ")[0]
    else:
        for each in given or ():
            yield from _words(each)


def _naming_convention(runner: Runner, name: str, schema: str | None) -> Any:
    """Return the naming convention of the MetaData that Alembic compares the table with."""
    all_metadata = compared(runner.context)
    key = name if schema is None else f"{schema}.{name}"
    found = [metadata for metadata in all_metadata if key in metadata.tables] or all_metadata
    return found[0].naming_convention if found else None


def compared(context: Any) -> list[MetaData]:
    """List each MetaData that an environment of Alembic compares the database with."""
    given = context.opts.get("target_metadata") or ()
    return [given] if isinstance(given, MetaData) else list(given)


def bare_table(table: AnyTable, schema: str | None = None) -> Table:
    """Return a Table without columns, with the name and the schema of a class."""
    if isinstance(table, str):
        return Table(table, MetaData(), schema=schema)
    real = any_mapping_of(table).table
    return Table(real.name, MetaData(), schema=schema or real.schema)


def reflect_table(runner: Runner, bare: Table) -> Table:
    """Read a table's columns from the database.

    Raises:
        ArgumentError: there is no such table.
    """
    try:
        return Table(
            bare.name,
            MetaData(),
            schema=bare.schema,
            autoload_with=runner.connection,
            resolve_fks=False,
        )
    except NoSuchTableError as error:
        raise ArgumentError(
            f"there is no table {bare.fullname}: correct the name, or give the table's schema="
        ) from error


def tune_storage(
    op: Op,
    table: AnyTable,
    *,
    fillfactor: int = 90,
    dead_rows: int = 10_000,
    schema: str | None = None,
) -> None:
    """Make PostgreSQL vacuum a queue's table in time; other databases are left as they are.

    By default autovacuum waits until a fifth of the table is dead. In a table of ten
    million done rows these are two million dead rows, which claims walk over.

    A partitioned table has no such parameters: call this with each of its partitions.

    Args:
        fillfactor: how full pages are written from now on, in percent. The rest stays free
            for new versions of their rows.
        dead_rows: how many changed rows start autovacuum and autoanalyze.
    """
    runner = Runner(op)
    parameters = runner.changes.storage_of_queue(fillfactor=fillfactor, dead_rows=dead_rows)
    if parameters:
        change = f"SET ({', '.join(f'{name} = {value}' for name, value in parameters.items())})"
        runner.run(alter_table(bare_table(table, schema), lambda _: [change]))
