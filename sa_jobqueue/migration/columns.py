"""The queue's columns: into a table that has rows, and out of it again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from sqlalchemy import (
    Column,
    ColumnElement,
    String,
    Table,
    and_,
    case,
    false,
    literal,
    select,
    update,
)
from sqlalchemy import inspect as sa_inspect
from sqlalchemy.schema import CreateTable, DropTable

from ..dialects.ddl import AddColumns, DropColumns, RenameColumn, SetDefault
from ..errors import ArgumentError
from ..model.mapping import QueueMapping
from ..model.mixins import QueueColumns
from ..model.round_table import round_table
from ..model.status import DONE, UNCLAIMED, status_is
from .filling import BATCH, Batches, Progress, criterion, fill, table_of
from .running import PATIENCE, Op, Runner
from .targets import AnyTable, attach, fresh, queue_of

#: Under this name SQLite's rows get their status, before any claim knows the column.
_HIDDEN = "sa_jobqueue_adopting"


def add_job_columns(
    op: Op,
    table: AnyTable,
    *mixins: Any,
    existing_rows: str | ColumnElement[bool] | None,
    schema: str | None = None,
    queue_args: Mapping[str, Any] | None = None,
    batch: int = BATCH,
    pause: timedelta | None = None,
    progress: Callable[[Progress], object] | None = None,
    patience: timedelta = PATIENCE,
) -> None:
    """Make a queue of a table that may have rows, while others go on writing to it.

    With RoundMixin comes the table that remembers the rounds. Commits by itself: what
    the migration did before it is committed, too. Broken off, it may be run again.

    Args:
        table: its name; or a Table, or a mapped class, which then says the rest.
        mixins: those of the model, such as ``JobMixin`` (the default) and
            ``PriorityMixin``, or ``JobMixin.named(..)``.
        existing_rows: what becomes of the rows that are there: ``"done"``,
            ``"unclaimed"``, or a criterion for those that become jobs, while the
            others are done. None where no mixin has a status.
        queue_args: the model's ``__queue_args__``, if it has words of its own for
            the statuses.
        batch, pause, progress: of the rows that get their status one by one, for a
            criterion and on SQLite: as in :func:`backfill`.
        patience: how long to wait in all for each lock, a second at most at a time.

    Raises:
        ArgumentError: no word about the existing rows; columns that are in the way;
            a criterion without a database to ask; batches of no row.
        LockTimeout: others kept the table, or rows of it, locked.
    """
    runner = Runner(op, patience=patience)
    batches = Batches(size=batch, pause=pause, progress=progress)
    queue = queue_of(runner, table, mixins, queue_args=queue_args, schema=schema)
    adoption = _Adoption(runner, queue, _only(queue, mixins), existing_rows, batches)
    adoption.check()
    with runner.alone():
        adoption.run()
        if _are_of_rounds(queue, adoption.columns):
            rounds = round_table(queue)
            runner.change([CreateTable(rounds, if_not_exists=True)], what=rounds.description)


def drop_job_columns(
    op: Op,
    table: AnyTable,
    *mixins: Any,
    schema: str | None = None,
    patience: timedelta = PATIENCE,
) -> None:
    """Take the queue's columns out of a table; its indexes are dropped before.

    With those of RoundMixin goes the table that remembers the rounds.

    Columns that are not there are passed over: broken off, it may be run again.

    Args:
        table, mixins, schema, patience: as in :func:`add_job_columns`.

    Raises:
        LockTimeout: others kept the table locked.
    """
    runner = Runner(op, patience=patience)
    queue = queue_of(runner, table, mixins, queue_args=None, schema=schema)
    columns = _only(queue, mixins)
    of_rounds = _are_of_rounds(queue, columns)
    with runner.alone():
        if not runner.offline:
            there = _columns_there(runner, queue.table)
            columns = [column for column in columns if column.name in there]
        _drop(runner, queue.table, columns)
        if of_rounds:
            rounds = round_table(queue)
            runner.change([DropTable(rounds, if_exists=True)], what=rounds.description)


def _are_of_rounds(queue: QueueMapping, columns: list[Column[Any]]) -> bool:
    return queue.has("round") and any(column is queue.column("round") for column in columns)


def _drop(runner: Runner, table: Table, columns: list[Column[Any]]) -> None:
    ending = runner.changes.instant(drop=True)
    runner.change(
        [DropColumns(table, part, ending=ending) for part in _altered_together(runner, columns)],
        what=f"{table.description}: DROP COLUMN",
    )


def _altered_together(runner: Runner, columns: list[Column[Any]]) -> list[list[Column[Any]]]:
    """Divide columns by the ALTER TABLE that they are part of."""
    if runner.changes.alters_many:
        return [columns] if columns else []
    return [[column] for column in columns]


def _columns_there(runner: Runner, table: Table) -> dict[str, Any]:
    """Return the columns that a table has, by name."""
    found = sa_inspect(runner.connection).get_columns(table.name, table.schema)
    return {column["name"]: column for column in found}


def _only(queue: QueueMapping, mixins: tuple[type[QueueColumns], ...]) -> list[Column[Any]]:
    """List the columns of the mixins that were named, or all of them, in their order."""
    roles = {role for mixin in mixins for role in mixin.__queue_attributes__}
    if missing := sorted(role for role in roles if not queue.has(role)):
        raise ArgumentError(f"{queue} has no column for {missing[0]}: add its mixin to the class")
    columns = {queue.column(role) for role in roles or queue.attributes}
    return [column for column in queue.table.columns if column in columns]


@dataclass(frozen=True)
class _Adoption:
    """One table on its way to be a queue."""

    runner: Runner
    queue: QueueMapping
    columns: list[Column[Any]]
    existing_rows: str | ColumnElement[bool] | None
    batches: Batches

    def check(self) -> None:
        """Refuse what cannot work, before anything was changed."""
        if self.adds_status and self.existing_rows is None:
            raise ArgumentError(
                "existing_rows=None is for mixins without a status; say what becomes of the rows "
                'that are there: "done", "unclaimed", or a criterion for those that become jobs'
            )
        if self.has_criterion:
            self._check_criterion()
        elif self.runner.offline and not self._at_once:
            raise ArgumentError(
                f"{self.runner.database} marks existing rows as done batch by batch, which "
                "--sql cannot write down: run the migration with a database"
            )

    def _check_criterion(self) -> None:
        if self.runner.offline:
            raise ArgumentError(
                "a criterion for existing_rows is applied batch by batch, which --sql cannot "
                'write down: run the migration with a database, or say existing_rows="done" and '
                "let a later step turn rows into jobs"
            )
        # A slip of the pen shows here, and not behind the first change.
        real = self._read()
        self.runner.connection.execute(
            select(literal(1)).select_from(real).where(self._jobs(real)).limit(0)
        )

    def _read(self) -> Table:
        return table_of(self.runner, self.queue.table.name, self.queue.table.schema)

    @property
    def adds_status(self) -> bool:
        """Whether the status is among the columns."""
        return self.queue.is_queue and any(column is self.status for column in self.columns)

    @property
    def status(self) -> Column[Any]:
        """The status column."""
        return self.queue.column("status")

    @property
    def has_criterion(self) -> bool:
        """Whether some of the existing rows become jobs, and others do not."""
        words: tuple[Any, ...] = (None, UNCLAIMED, DONE)
        given = self.existing_rows
        return self.adds_status and not (isinstance(given, str | None) and given in words)

    def _jobs(self, real: Table) -> ColumnElement[bool]:
        """Return which existing rows become jobs, for a statement about the real table."""
        given = self.existing_rows
        if not self.has_criterion or given is None:
            return false()
        return criterion(given, real)

    @property
    def _all_unclaimed(self) -> bool:
        return isinstance(self.existing_rows, str) and self.existing_rows == UNCLAIMED

    @property
    def _at_once(self) -> bool:
        """Whether the columns come with what the existing rows should have."""
        keeps = self.runner.changes.keeps_added_default
        return keeps or self._all_unclaimed or not self.adds_status

    @property
    def _done(self) -> str:
        return self.queue.word(DONE)

    @property
    def _unclaimed(self) -> str:
        return self.queue.word(UNCLAIMED)

    def run(self) -> None:
        """Add what is missing, and give the existing rows their status."""
        added = not self.runner.offline and self._are_there()
        if not self._at_once:
            if not added:
                self._add_hidden()
            return
        self._add(added=added)
        if self.has_criterion:
            self._enqueue()

    def _add(self, *, added: bool) -> None:
        """Add the columns; the status as done for those that are there, then as it is for new ones.

        InnoDB commits in between, and nobody may insert a row there: it would be
        done, and not a job. So the table is locked over both.
        """
        ending = self.runner.changes.instant()
        then_unclaimed = self.adds_status and not self._all_unclaimed
        scratch = fresh(self.queue.table)
        columns = [
            attach(scratch, self._as_done(column) if then_unclaimed else _copy(column))
            for column in self.columns
        ]
        statements: list[Any] = []
        if not added:
            parts = _altered_together(self.runner, columns)
            statements += [AddColumns(scratch, part, ending=ending) for part in parts]
        if then_unclaimed:
            statements.append(SetDefault(self.status, ending=ending))
        self.runner.change(
            statements, what=f"{scratch.description}: ADD COLUMN", locked=self.queue.table
        )

    def _as_done(self, column: Column[Any]) -> Column[Any]:
        return _copy(column, default=self._done if column is self.status else None)

    def _enqueue(self) -> None:
        """Turn those of the adopted rows into jobs that the criterion is about.

        A finished job has an owner_date, an adopted row has none: so this may be
        run again, also when workers are at it already.
        """
        real = self._read()
        adopted = status_is(real.c[self.status.name], self._done)
        untouched = real.c[self.queue.column("owner_date").name].is_(None)
        fill(
            self.runner,
            real,
            and_(adopted, untouched, self._jobs(real)),
            values={self.status.name: self._unclaimed},
            batches=self.batches,
        )

    def _add_hidden(self) -> None:
        """Give SQLite's rows their status in a column that no claim knows, then rename it.

        A row from before ADD COLUMN reads the default that the schema names now: so
        each is written, which takes a while, batch by batch. What writers insert
        meanwhile is done by the last step, too.
        """
        table = self.queue.table
        name = table.name
        scratch = fresh(table)
        hidden = attach(scratch, _copy(self.status, name=_HIDDEN))
        if _HIDDEN not in _columns_there(self.runner, table):
            self.runner.change([AddColumns(scratch, [hidden])], what=f"{name}: ADD COLUMN")
        real = self._read()
        where = self._not_a_job(real)
        values = {_HIDDEN: self._done}
        fill(self.runner, real, where, values=values, batches=self.batches)
        others = [
            attach(scratch, _copy(column)) for column in self.columns if column is not self.status
        ]
        self.runner.change(
            [
                update(real).where(where).values(values),
                RenameColumn(hidden, self.status.name),
                *(AddColumns(scratch, [column]) for column in others),
            ],
            what=f"{name}: RENAME COLUMN",
        )

    def _not_a_job(self, real: Table) -> ColumnElement[bool]:
        waiting = status_is(real.c[_HIDDEN], self._unclaimed)
        # Not NOT: where the criterion is NULL, the row is no job either.
        return and_(waiting, case((self._jobs(real), 0), else_=1) == 1)

    def _are_there(self) -> bool:
        """Tell whether a run that was broken off has added the columns.

        Raises:
            ArgumentError: the table has columns of its own by these names.
        """
        table = self.queue.table
        there = _columns_there(self.runner, table)
        ours = [
            column
            for column in self.columns
            if column.name in there and _alike(column, there[column.name])
        ]
        if len(ours) == len(self.columns):
            return True
        if in_the_way := [column.name for column in self.columns if column.name in there]:
            raise ArgumentError(
                f"{table.description!r} has a column {in_the_way[0]!r} of its own: give ours "
                f"another name, in the model and here, as in JobMixin.named"
                f'({in_the_way[0]}="job_{in_the_way[0]}")'
            )
        return False


def _copy(
    column: Column[Any], *, name: str | None = None, default: str | None = None
) -> Column[Any]:
    return Column(
        name or column.name,
        column.type,
        nullable=column.nullable,
        server_default=column.server_default.arg  # type: ignore[attr-defined]  # one of ours has text
        if default is None and column.server_default is not None
        else default,
    )


def _alike(column: Column[Any], found: Any) -> bool:
    """Tell whether a column of the database may be one that we have added."""
    same_length = not isinstance(column.type, String) or column.type.length == getattr(
        found["type"], "length", None
    )
    same_type = column.type._type_affinity is found["type"]._type_affinity
    return same_type and same_length and column.nullable == found["nullable"]
