"""Add the queue's columns to a table that has rows, and drop them again.

Many rows of a table in use are updated by batches: a batch, a commit, the next batch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from operator import gt, le, lt
from typing import Any

from sqlalchemy import (
    Column,
    ColumnElement,
    String,
    Table,
    and_,
    literal,
    literal_column,
    or_,
    select,
    true,
    update,
)
from sqlalchemy import inspect as sa_inspect
from sqlalchemy.schema import CreateTable, DropTable
from sqlalchemy.sql.expression import ColumnClause
from sqlalchemy.sql.visitors import replacement_traverse

from ..databases.clock import LONG_AGO
from ..errors import ArgumentError
from ..model.columns import round_table, same_kind
from ..model.mapping import QueueMapping
from ..model.mixins import QueueColumns
from ..model.status import DONE, UNCLAIMED, status_is
from .changes import add_columns, drop_columns, set_default
from .runner import PATIENCE, AnyTable, Op, Runner, bare_table, log, mapping_for, reflect_table

#: How many rows a batch spans at most.
BATCH = 5_000


def add_job_columns(
    op: Op,
    table: AnyTable,
    *mixins: Any,
    existing_rows: str | ColumnElement[bool] | None,
    schema: str | None = None,
    queue_args: Mapping[str, Any] | None = None,
    batch: int = BATCH,
    pause: timedelta | None = None,
    patience: timedelta = PATIENCE,
) -> None:
    """Make a queue of a table that may have rows, while others go on writing to it.

    RoundMixin also creates the table that remembers the rounds. This commits by itself,
    and with it whatever the migration did before. After an interruption it may be run
    again.

    Args:
        table: a table's name, or a mapped class, which needs no mixins.
        mixins: the model's mixins, such as ``JobMixin`` (the default) and
            ``PriorityMixin``, or ``JobMixin.named(..)``.
        existing_rows: what happens to the rows that are there: ``"done"``,
            ``"unclaimed"``, or a criterion: rows that fit it become jobs, the others
            are done. None where no mixin has a status.
        queue_args: the model's ``__queue_args__``, where it has words of its own for
            the statuses.
        batch, pause: as in :func:`backfill`, for rows that are written batch by batch: with a
            criterion, and on SQLite.
        patience: how long to wait in all for each lock, a second at most at a time.

    Raises:
        ArgumentError: `existing_rows` is missing; the table has columns of the same
            names; there is a criterion, but no database.
        LockTimeout: others kept the table, or some of its rows, locked.
    """
    runner = Runner(op, patience=patience)
    queue = mapping_for(runner, table, mixins, queue_args, schema)
    columns = _columns_of(queue, mixins)
    adoption = _Adoption(runner, queue, columns, existing_rows, batch, pause)
    adoption.check()
    with runner.outside_transaction():
        adoption.run()
        if _include_rounds(queue, columns):
            rounds = round_table(queue)
            runner.change([CreateTable(rounds, if_not_exists=True)], what=rounds.description)


def drop_job_columns(
    op: Op,
    table: AnyTable,
    *mixins: Any,
    schema: str | None = None,
    patience: timedelta = PATIENCE,
) -> None:
    """Drop the queue's columns from a table.

    Drop the indexes of the queue before. The columns of RoundMixin take the table that
    remembers the rounds with them.

    Missing columns are skipped, so after an interruption it may be run again.

    Args:
        table, mixins, schema, patience: as in :func:`add_job_columns`.

    Raises:
        LockTimeout: others kept the table locked.
    """
    runner = Runner(op, patience=patience)
    queue = mapping_for(runner, table, mixins, None, schema)
    columns = _columns_of(queue, mixins)
    with_rounds = _include_rounds(queue, columns)
    with runner.outside_transaction():
        if not runner.offline:
            existing = reflect_table(runner, queue.table).columns
            columns = [column for column in columns if column.name in existing]
        ending = runner.changes.instant(drop=True)
        groups = _together(runner, columns)
        statements = [drop_columns(queue.table, group, ending=ending) for group in groups]
        runner.change(statements, what=f"{queue.table.description}: DROP COLUMN")
        if with_rounds:
            rounds = round_table(queue)
            runner.change([DropTable(rounds, if_exists=True)], what=rounds.description)


def _include_rounds(queue: QueueMapping, columns: list[Column[Any]]) -> bool:
    return queue.has("round") and any(column is queue.column("round") for column in columns)


def _columns_of(queue: QueueMapping, mixins: tuple[type[QueueColumns], ...]) -> list[Column[Any]]:
    """List the columns of the given mixins, or of all the queue's mixins, in table order."""
    roles = {role for mixin in mixins for role in mixin.__queue_attributes__}
    if missing := sorted(role for role in roles if not queue.has(role)):
        raise ArgumentError(f"{queue} has no column for {missing[0]}: add its mixin to the class")
    columns = {queue.column(role) for role in roles or queue.attributes}
    return [column for column in queue.table.columns if column in columns]


def _together(runner: Runner, columns: list[Column[Any]]) -> list[list[Column[Any]]]:
    """Group columns by the ALTER TABLE that adds or drops them."""
    if not runner.changes.alters_many:
        return [[column] for column in columns]
    return [columns] if columns else []


@dataclass(frozen=True)
class _Adoption:
    """A table that becomes a queue.

    The columns come with constant defaults, which no row has to be written for: the existing rows
    are done, and due since long ago. Then the defaults become the model's.
    """

    runner: Runner
    queue: QueueMapping
    columns: list[Column[Any]]
    existing_rows: Any
    batch: int
    pause: timedelta | None

    def check(self) -> None:
        """Refuse what cannot work, before anything is changed."""
        runner, given = self.runner, self.existing_rows
        if given is ... or (given is None and self._status is not None):
            raise ArgumentError(  # the dots are autogenerate's; type checkers refuse them, too
                "the migration does not say yet what becomes of the rows that "
                f"{self.queue.table.description!r} has: replace the dots of existing_rows=... by "
                '"done", so that none becomes a job, by "unclaimed", so that each does, or by a '
                'criterion for those that do, as in existing_rows="shipped_at IS NULL"; '
                "existing_rows=None is for mixins without a status"
            )
        by_default = runner.changes.sets_defaults or not self._constants
        if runner.offline and not (by_default and self._criterion is None):
            raise ArgumentError(
                "existing rows are written batch by batch, on SQLite and for a criterion, which a "
                "--sql script cannot do: run the migration with a database"
            )
        if self._criterion is not None:
            # A typing mistake in the criterion fails here, and not after the first change.
            real = reflect_table(runner, self.queue.table)
            found = select(literal(1)).select_from(real)
            jobs = bind_criterion(self._criterion, real)
            runner.connection.execute(found.where(jobs).limit(0))

    def _own(self, role: str) -> Column[Any] | None:
        """Return the queue's column of a role, if it is among the columns."""
        column = self.queue.column(role) if self.queue.has(role) else None
        return next((own for own in self.columns if own is column), None)

    @cached_property
    def _status(self) -> Column[Any] | None:
        return self._own("status")

    @cached_property
    def _criterion(self) -> Any:
        """What says which of the existing rows become jobs; None: all do, or none does."""
        given = self.existing_rows
        by_word = isinstance(given, str) and given in (DONE, UNCLAIMED)
        return None if self._status is None or given is None or by_word else given

    @cached_property
    def _constants(self) -> dict[Column[Any], str]:
        """The columns whose first default is not the model's, with that default.

        The clock would be refused as a default by SQLite, and InnoDB would copy the table.
        """
        constants = {}
        all_unclaimed = isinstance(self.existing_rows, str) and self.existing_rows == UNCLAIMED
        if self._status is not None and not all_unclaimed:
            constants[self._status] = self.queue.word(DONE)
        if (run_at := self._own("run_at")) is not None:
            constants[run_at] = LONG_AGO
        return constants

    def run(self) -> None:
        """Add the columns that are missing, and give the existing rows their status.

        A row inserted between two statements would be done, and InnoDB commits between them. So
        the table is locked during all of them.
        """
        changes, table = self.runner.changes, self.queue.table
        ending = changes.instant()
        groups = _together(self.runner, [self._first(each) for each in self._missing()])
        statements: list[Any] = [add_columns(table, group, ending=ending) for group in groups]
        if changes.sets_defaults:
            statements += [set_default(table, column, ending=ending) for column in self._constants]
        self.runner.change(statements, what=f"{table.description}: ADD COLUMN", locked=table)
        if not changes.sets_defaults:
            self._edit_defaults()
        if self._criterion is not None:
            self._enqueue()

    def _first(self, column: Column[Any]) -> Column[Any]:
        """Copy a column, as it is added, to a Table of its own."""
        own: Any = column.server_default
        first = Column(
            column.name,
            column.type,
            nullable=column.nullable,
            server_default=self._constants.get(column, None if own is None else own.arg),
        )
        bare_table(self.queue.table.name, self.queue.table.schema).append_column(first)
        return first

    def _edit_defaults(self) -> None:
        """Make the model's defaults those of SQLite, which has no statement for it.

        A row from before ADD COLUMN stores no value, and would read the new default: so all rows
        are written once.
        """
        connection, changes = self.runner.connection, self.runner.changes
        left = [
            (first, column)
            for column in self._constants
            if changes.declares(connection, first := self._first(column))
        ]
        if not left:
            return
        real = reflect_table(self.runner, self.queue.table)
        log.info("%s: all rows are written once, for the defaults of new columns", real.name)
        values = {column.name: real.c[column.name] for _, column in left}
        update_rows(self.runner, real, true(), values, self.batch, self.pause)

        def edit() -> None:
            for first, column in left:
                changes.replace_column(connection, first, column)

        self.runner.briefly(edit, what=f"{real.description}: SET DEFAULT")

    def _enqueue(self) -> None:
        """Turn the existing rows that fit the criterion into jobs.

        A finished job has an owner_date, an adopted row has none. So this may be run
        again, also when workers have begun already.
        """
        assert self._status is not None
        real = reflect_table(self.runner, self.queue.table)
        status, owner_date = real.c[self._status.name], self.queue.column("owner_date").name
        adopted = and_(status_is(status, self.queue.word(DONE)), real.c[owner_date].is_(None))
        where = and_(adopted, bind_criterion(self._criterion, real))
        values = {status.name: self.queue.word(UNCLAIMED)}
        update_rows(self.runner, real, where, values, self.batch, self.pause)

    def _missing(self) -> list[Column[Any]]:
        """List the columns that no earlier, interrupted run has added.

        RetryMixin leaves the run_at of a queue alone that has had ScheduleMixin before.

        Raises:
            ArgumentError: the table has columns of its own with these names.
        """
        if self.runner.offline:
            return self.columns
        table = self.queue.table
        existing = reflect_table(self.runner, table).columns
        same_name = [column for column in self.columns if column.name in existing]
        alike = [column for column in same_name if _is_alike(column, existing[column.name])]
        if len(alike) == len(self.columns):
            return []
        run_at = self._own("run_at") if self._status is None else None
        shared = [column for column in alike if column is run_at]
        if own := [column for column in same_name if not any(column is each for each in shared)]:
            name = own[0].name
            raise ArgumentError(
                f"{table.description!r} has a column {name!r} of its own. If it is to serve as the "
                "queue's, declare it in the model, and add the other columns with op.add_column. "
                "Else give the queue's column another name, in the model and here, as in "
                f'JobMixin.named({name}="job_{name}")'
            )
        return [column for column in self.columns if column.name not in existing]


def _is_alike(column: Column[Any], found: Column[Any]) -> bool:
    """Tell whether a column of the database may be one that an earlier run has added."""
    same_length = not isinstance(column.type, String) or column.type.length == getattr(
        found.type, "length", None
    )
    same_type = same_kind(column.type, found.type)
    return same_type and same_length and column.nullable == found.nullable


def backfill(
    op: Op,
    table: AnyTable,
    where: str | ColumnElement[bool],
    *,
    values: Mapping[str, Any],
    batch: int = BATCH,
    pause: timedelta | None = None,
    schema: str | None = None,
    patience: timedelta = PATIENCE,
) -> int:
    """Change the rows of a criterion in batches by the primary key; commit each batch.

    This commits by itself, and with it whatever the migration did before. After an
    interruption it may be run again: let the criterion leave out rows that are written
    already. The progress is logged.

    Args:
        where: which rows, as SQL or as an expression.
        values: the new values, by column.
        batch: how many rows one transaction spans.
        pause: the time between two batches. By default there is none, except on
            SQLite, where nobody else can write during a batch: as long as the batch
            took.
        patience: how long each batch waits in all for rows that others have locked.

    Returns:
        how many rows were changed.

    Raises:
        ArgumentError: there is no database, or the table has no primary key.
        LockTimeout: others kept rows locked; the batches before are committed.
    """
    runner = Runner(op, patience=patience)
    bare = bare_table(table, schema)
    if runner.offline:
        raise ArgumentError(
            f"backfill of {bare.name!r} goes batch by batch, which a --sql script cannot do: run "
            "the migration with a database"
        )
    with runner.outside_transaction():
        real = reflect_table(runner, bare)
        return update_rows(runner, real, bind_criterion(where, real), values, batch, pause)


def bind_criterion(where: str | ColumnElement[bool], table: Table) -> ColumnElement[bool]:
    """Make a criterion refer to `table`: another Table of the same name would be a join."""
    if isinstance(where, str):
        return literal_column(f"({where})")

    def column_of_table(element: Any, **kw: Any) -> Any:
        if isinstance(element, ColumnClause) and element.table is not None:
            same_name = getattr(element.table, "name", None) == table.name
            return table.c.get(element.name) if same_name else None
        return None

    bound: ColumnElement[bool] = replacement_traverse(where, {}, column_of_table)
    return bound


def update_rows(
    runner: Runner,
    table: Table,
    where: ColumnElement[bool],
    values: Mapping[str, Any],
    batch: int,
    pause: timedelta | None,
) -> int:
    """Change the rows of a criterion batch by batch, in :meth:`Runner.outside_transaction`."""
    written = 0
    for number, rows in enumerate(_ranges(runner, table, batch, pause), 1):
        change = update(table).where(where, rows).values(dict(values))
        written += _write(runner, change, what=f"{table.description}: UPDATE")
        log.info("%s: %d rows written, %d batches", table.name, written, number)
    return written


def _ranges(
    runner: Runner, table: Table, batch: int, pause: timedelta | None
) -> Iterator[ColumnElement[bool]]:
    """Walk along the primary key: yield a criterion for each batch."""
    found = sa_inspect(runner.connection).get_pk_constraint(table.name, table.schema)
    keys = [table.c[name] for name in found["constrained_columns"]]
    if not keys:
        raise ArgumentError(
            f"{table.description!r} has no primary key, and rows are written in batches by its "
            "ranges: add a primary key first"
        )
    after: ColumnElement[bool] = true()
    while True:
        began = time.monotonic()
        ends = select(*keys).where(after).order_by(*keys).offset(batch - 1).limit(1)
        end = runner.connection.execute(ends).first()
        if end is None:
            yield after
            return
        yield and_(after, _compared(keys, end, lt, le))
        after = _compared(keys, end, gt, gt)
        took = time.monotonic() - began if runner.database.one_writer else 0.0
        time.sleep(took if pause is None else pause.total_seconds())


def _compared(
    keys: Sequence[Column[Any]],
    values: Sequence[Any],
    compare: Callable[[Any, Any], Any],
    last: Callable[[Any, Any], Any],
) -> ColumnElement[bool]:
    """Compare keys column by column: InnoDB uses no range for (a, b) > (1, 2)."""
    pairs = list(zip(keys, values, strict=True))
    return or_(
        *(
            and_(
                *(before == known for before, known in pairs[:index]),
                (last if index == len(pairs) - 1 else compare)(key, value),
            )
            for index, (key, value) in enumerate(pairs)
        )
    )


def _write(runner: Runner, change: Any, *, what: str) -> int:
    """Write one batch; wait only briefly for a locked row, since others wait for our locks."""
    connection = runner.connection

    def write() -> int:
        with (
            runner.database.waiting_at_most(connection, runner.longest_wait),
            runner.database.transaction_in_autocommit(connection),
        ):
            return connection.execute(change).rowcount

    return runner.retry_while_locked(
        write, what=what, leaves="The batches before this one are committed."
    )
