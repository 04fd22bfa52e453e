"""Turn a table with rows into a queue: add the columns, give the existing rows a status."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
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
    true,
    update,
)

from ..dialects.clock import LONG_AGO
from ..dialects.ddl import AddColumns, RenameColumn, SetDefault
from ..errors import ArgumentError
from ..model.mapping import QueueMapping
from ..model.status import DONE, UNCLAIMED, status_is
from ..model.types import same_kind
from .backfill_rows import Batches, bind_criterion, update_rows
from .runner import Runner, log
from .tables import add_column, bare_table, existing_columns, reflect_table

#: The name of SQLite's status column until all rows have a status: no claim knows it.
_HIDDEN = "sa_jobqueue_adopting"


@dataclass(frozen=True)
class Adoption:
    """A table that becomes a queue.

    Attributes:
        columns: the queue's columns, which are added.
        existing_rows: as in `add_job_columns`.
        batches: how rows are written that get their status batch by batch.
    """

    runner: Runner
    queue: QueueMapping
    columns: list[Column[Any]]
    existing_rows: str | ColumnElement[bool] | None
    batches: Batches

    def check(self) -> None:
        """Refuse what cannot work, before anything is changed."""
        given: object = self.existing_rows
        if given is ...:  # as autogenerate writes it; type checkers refuse it, too
            raise ArgumentError(
                "the migration does not say yet what becomes of the rows that "
                f"{self.queue.table.description!r} has: replace the dots of existing_rows=... by "
                '"done", so that none becomes a job, by "unclaimed", so that each does, or by a '
                'criterion for those that do, as in existing_rows="shipped_at IS NULL"'
            )
        if self.adds_status and self.existing_rows is None:
            raise ArgumentError(
                "existing_rows=None is for mixins without a status; say what happens to the rows "
                'that are there: "done", "unclaimed", or a criterion for the rows that become jobs'
            )
        if self.has_criterion:
            self._check_criterion()
        elif self.runner.offline and not (self._by_default and self._sets_clock):
            raise ArgumentError(
                f"on {self.runner.database} existing rows are written batch by batch, which a "
                "--sql script cannot do: run the migration with a database"
            )

    def _check_criterion(self) -> None:
        if self.runner.offline:
            raise ArgumentError(
                "a criterion for existing_rows is applied batch by batch, which a --sql script "
                'cannot do: run the migration with a database, or give existing_rows="done" and '
                "let a later step turn rows into jobs"
            )
        # A typing mistake in the criterion fails here, and not after the first change.
        real = self._reflected()
        self.runner.connection.execute(
            select(literal(1)).select_from(real).where(self._jobs(real)).limit(0)
        )

    def _reflected(self) -> Table:
        return reflect_table(self.runner, self.queue.table.name, self.queue.table.schema)

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
        """Whether a criterion says which of the existing rows become jobs."""
        words: tuple[Any, ...] = (None, UNCLAIMED, DONE)
        given = self.existing_rows
        return self.adds_status and not (isinstance(given, str | None) and given in words)

    def _jobs(self, real: Table) -> ColumnElement[bool]:
        """Return the criterion of existing rows that become jobs, on the reflected table."""
        given = self.existing_rows
        if not self.has_criterion or given is None:
            return false()
        return bind_criterion(given, real)

    @property
    def _all_unclaimed(self) -> bool:
        return isinstance(self.existing_rows, str) and self.existing_rows == UNCLAIMED

    @property
    def _by_default(self) -> bool:
        """Whether ADD COLUMN gives the existing rows their status, by its default."""
        keeps = self.runner.changes.keeps_added_default
        return keeps or self._all_unclaimed or not self.adds_status

    @property
    def _done(self) -> str:
        return self.queue.word(DONE)

    @property
    def _unclaimed(self) -> str:
        return self.queue.word(UNCLAIMED)

    def run(self) -> None:
        """Add the columns that are missing, and give the existing rows their status."""
        missing = self.columns if self.runner.offline else self._missing()
        if self._by_default:
            self._add(missing)
        elif missing:
            self._add_hidden()
        if self._by_default and self.has_criterion:
            self._enqueue()
        if not self._sets_clock:
            self._replace_constant()

    def _add(self, missing: list[Column[Any]]) -> None:
        """Add the columns: the default of the status is done first, then the model's.

        So existing rows are done, and new rows are jobs. A row inserted between the two
        statements would be done, and InnoDB commits between them. So the table is locked
        during both.
        """
        ending = self.runner.changes.instant()
        then_unclaimed = self.adds_status and not self._all_unclaimed
        scratch = bare_table(self.queue.table)
        copied = self._with_done if then_unclaimed else self._with_constant
        columns = [add_column(scratch, copied(column)) for column in missing]
        groups = self.runner.altered_together(columns)
        statements: list[Any] = [AddColumns(scratch, group, ending=ending) for group in groups]
        if then_unclaimed:
            statements.append(SetDefault(self.status, ending=ending))
        if self._sets_clock and self._run_at is not None:
            statements.append(SetDefault(self._run_at, ending=ending))
        self.runner.change(
            statements, what=f"{scratch.description}: ADD COLUMN", locked=self.queue.table
        )

    def _with_done(self, column: Column[Any]) -> Column[Any]:
        if column is self.status:
            return _copy(column, default=self._done)
        return self._with_constant(column)

    # -- run_at, whose default is the database's clock ------------------------

    @property
    def _run_at(self) -> Column[Any] | None:
        """The run_at column, if it is among the columns."""
        column = self.queue.column("run_at") if self.queue.has("run_at") else None
        return next((own for own in self.columns if own is column), None)

    @property
    def _sets_clock(self) -> bool:
        """Whether ALTER TABLE makes the clock the default of run_at, if that is to be done."""
        return self._run_at is None or self.runner.changes.sets_defaults

    def _with_constant(self, column: Column[Any]) -> Column[Any]:
        """Copy a column; one with the clock for a default would be refused, or copy the table."""
        return _copy(column, default=LONG_AGO if column is self._run_at else None)

    def _replace_constant(self) -> None:
        """Make the clock the default of SQLite's run_at.

        A row from before ADD COLUMN stores no run_at, and would have none: so all rows are
        written once.
        """
        assert self._run_at is not None
        constant = add_column(bare_table(self.queue.table), self._with_constant(self._run_at))
        connection, changes = self.runner.connection, self.runner.changes
        if not changes.declares(connection, constant):
            return
        real = self._reflected()
        own = real.c[self._run_at.name]
        log.info("%s: all rows are written once, for the default of %s", real.name, own.name)
        batches = replace(self.batches, progress=lambda state: None)
        update_rows(self.runner, real, true(), values={own.name: own}, batches=batches)
        edit = partial(changes.replace_column, connection, constant, self._run_at)
        self.runner.retry_while_locked(
            partial(self.runner.try_briefly, edit), what=f"{real.description}: SET DEFAULT"
        )

    # -- existing rows --------------------------------------------------------

    def _enqueue(self) -> None:
        """Turn the existing rows that fit the criterion into jobs.

        A finished job has an owner_date, an adopted row has none. So this may be run
        again, also when workers have begun already.
        """
        real = self._reflected()
        adopted = status_is(real.c[self.status.name], self._done)
        untouched = real.c[self.queue.column("owner_date").name].is_(None)
        update_rows(
            self.runner,
            real,
            and_(adopted, untouched, self._jobs(real)),
            values={self.status.name: self._unclaimed},
            batches=self.batches,
        )

    def _add_hidden(self) -> None:
        """Give SQLite's rows their status in a column that no claim knows, then rename it.

        In SQLite a row from before ADD COLUMN has whatever default the schema has now.
        So each row is written, batch by batch, which takes a while. The last step also
        writes the rows that were inserted meanwhile.
        """
        table = self.queue.table
        name = table.name
        scratch = bare_table(table)
        hidden = add_column(scratch, _copy(self.status, name=_HIDDEN))
        if _HIDDEN not in existing_columns(self.runner, table):
            self.runner.change([AddColumns(scratch, [hidden])], what=f"{name}: ADD COLUMN")
        real = self._reflected()
        where = self._no_job(real)
        values = {_HIDDEN: self._done}
        update_rows(self.runner, real, where, values=values, batches=self.batches)
        others = [
            add_column(scratch, self._with_constant(column))
            for column in self.columns
            if column is not self.status
        ]
        self.runner.change(
            [
                update(real).where(where).values(values),
                RenameColumn(hidden, self.status.name),
                *(AddColumns(scratch, [column]) for column in others),
            ],
            what=f"{name}: RENAME COLUMN",
        )

    def _no_job(self, real: Table) -> ColumnElement[bool]:
        unclaimed = status_is(real.c[_HIDDEN], self._unclaimed)
        # CASE, because NOT would miss rows where the criterion is NULL.
        return and_(unclaimed, case((self._jobs(real), 0), else_=1) == 1)

    def _missing(self) -> list[Column[Any]]:
        """List the columns that no earlier, interrupted run has added.

        RetryMixin leaves the run_at of a queue alone that has had ScheduleMixin before.

        Raises:
            ArgumentError: the table has columns of its own with these names.
        """
        table = self.queue.table
        existing = existing_columns(self.runner, table)
        same_name = [column for column in self.columns if column.name in existing]
        alike = [column for column in same_name if _is_alike(column, existing[column.name])]
        if len(alike) == len(self.columns):
            return []
        shared = [] if self.adds_status else [column for column in alike if column is self._run_at]
        if own := [column for column in same_name if not any(column is each for each in shared)]:
            name = own[0].name
            raise ArgumentError(
                f"{table.description!r} has a column {name!r} of its own. If it is to serve as the "
                "queue's, declare it in the model, and add the other columns with op.add_column. "
                "Else give the queue's column another name, in the model and here, as in "
                f'JobMixin.named({name}="job_{name}")'
            )
        return [column for column in self.columns if column.name not in existing]


def _copy(
    column: Column[Any], *, name: str | None = None, default: str | None = None
) -> Column[Any]:
    return Column(
        name or column.name,
        column.type,
        nullable=column.nullable,
        server_default=column.server_default.arg  # type: ignore[attr-defined]  # the mixins' defaults are texts, or the clock
        if default is None and column.server_default is not None
        else default,
    )


def _is_alike(column: Column[Any], found: Any) -> bool:
    """Tell whether a column of the database may be one that an earlier run has added."""
    same_length = not isinstance(column.type, String) or column.type.length == getattr(
        found["type"], "length", None
    )
    same_type = same_kind(column.type, found["type"])
    return same_type and same_length and column.nullable == found["nullable"]
