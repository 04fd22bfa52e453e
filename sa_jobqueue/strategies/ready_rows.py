"""The ready rows of a queue: the SELECT of the next jobs, and its claim index.

A level is a round, a priority, or a pair of both; :attr:`ClaimSpec.levels` tells where a
queue has them, and why. A claim looks the first level up by one step into the claim
index, takes its due jobs, and goes on to the next level while it wants more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from sqlalchemy import (
    BindParameter,
    ColumnElement,
    Executable,
    FromClause,
    Integer,
    Select,
    bindparam,
    func,
    select,
    tuple_,
)
from sqlalchemy.sql.visitors import replacement_traverse

from ..databases import Database
from ..databases.clock import utc_now
from ..model.indexes import claim_index
from ..model.keys import key_is_in, not_before
from ..model.status import status_again, status_is, word_literal
from ..sessions.writer import Writer
from .spec import ClaimSpec

#: The parameter for the number of rows wanted.
LIMIT = bindparam("sa_jobqueue_limit", type_=Integer, required=True)

#: The parameters for the place where a claim begins, each with a number behind it.
FROM = "sa_jobqueue_from_"


class ReadyRows:
    """The claimable rows of one queue on one database, as criteria and statements."""

    def __init__(self, spec: ClaimSpec, database: Database) -> None:
        self.spec = spec
        self.mapping = spec.mapping
        self.database = database

    # -- criteria -------------------------------------------------------

    @cached_property
    def has_status(self) -> ColumnElement[bool]:
        """The criterion that a job has the ready status, which is a literal in it."""
        return self.mapping.has_status(self.spec.ready)

    @cached_property
    def due(self) -> list[ColumnElement[bool]]:
        """The criterion that a job's time has come, for scheduled queues."""
        if not self.mapping.has("run_at"):
            return []
        return [self.mapping.attribute("run_at") <= utc_now()]

    @cached_property
    def criteria(self) -> list[ColumnElement[bool]]:
        """All criteria of a claimable job: status, time, and the caller's."""
        if not self.mapping.is_queue:
            return [*self._in_a_round, *self.spec.where]
        return [self.has_status, *self.due, *self.spec.where]

    @property
    def _in_a_round(self) -> list[ColumnElement[bool]]:
        """The criterion that a row's round has not done it, for a class with RoundMixin alone."""
        if not self.mapping.has("round") or self.spec.of_round:
            return []
        return [self.mapping.attribute("round") > 0]

    def key_is_in(self, parameter: str) -> ColumnElement[bool]:
        """Compare the primary key with a list of keys, given as a parameter."""
        return key_is_in(self.mapping, parameter, self.database)

    # -- the next rows --------------------------------------------------

    def select(
        self, *columns: Any, plain: bool = False, due: bool = True, from_place: bool = False
    ) -> Any:
        """Select up to ``:sa_jobqueue_limit`` claimable rows in claim order.

        Where the queue has levels, those of the level ``:sa_jobqueue_round``,
        ``:sa_jobqueue_priority``.

        Args:
            plain: the SELECT will lock nothing.
            due: without rows whose time has not come.
            from_place: begin at the place that the parameters FROM name.
        """
        if not self.mapping.is_queue:
            return self._select_any(*columns)
        statement: Any = select(*columns).where(self.found_by, *(self.due if due else ()))
        statement = statement.where(*self._where(plain=plain), *self.of_level)
        if plain:
            statement = statement.where(*self._status_again())
        if from_place:
            statement = statement.where(not_before(self.order, FROM, self.database))
        return statement.order_by(*self.walked).limit(LIMIT)

    def _select_any(self, *columns: Any) -> Any:
        """Select rows of a class without JobMixin, in claim order if it has one."""
        where = self.spec.where_round_ranges if self.database.forgets_implied else self.spec.where
        ordered = self.mapping.is_ordered or not self.spec.own_order
        found = select(*columns).where(*where, *self._in_a_round)
        return found.order_by(*(self.spec.order if ordered else ())).limit(LIMIT)

    # A claim in the order of the key could walk the primary key, too, whose index is smaller than
    # the claim index. PostgreSQL does so after a load, until it learns that a third of the rows is
    # done, and each claim reads all that were finished before: of 100,000 rows a claim of 100 took
    # 4 ms when 7,000 were done, and 38 ms at the end. With the status first, only the claim index
    # has the order. The planner drops a column from the order that is compared for equality, so
    # the status is compared with a list; a list of one word would become an equality again.

    @cached_property
    def found_by(self) -> ColumnElement[bool]:
        """The criterion of the ready status, by which the claim index is found."""
        if not self._status_leads:
            return self.has_status
        word = self.spec.ready
        return self.mapping.attribute("status").in_([word_literal(word), word_literal(word)])

    @cached_property
    def walked(self) -> tuple[Any, ...]:
        """The claim order within a level, as the claim index has it."""
        if not self._status_leads:
            return self.order
        return (self.mapping.attribute("status"), *self.order)

    @cached_property
    def _status_leads(self) -> bool:
        mapping = self.mapping
        served = mapping.is_queue and self.spec.ready in mapping.ready and not self.spec.order_by
        by_key = len(self.order) == len(mapping.keys)
        indexed = served and by_key and claim_index(mapping) is not None
        return self.database.strays_to_key and indexed

    def _where(self, *, plain: bool) -> Sequence[ColumnElement[bool]]:
        """Return the caller's criteria, the round as a range where PostgreSQL needs it.

        A range bounds the index, and keeps the planner from choosing a sort on a low row
        estimate.
        """
        forgets = plain and self.database.forgets_implied and not self.due
        if not forgets or not self.spec.of_round:
            return self.spec.where
        status, round_ = self.mapping.attribute("status"), self.mapping.attribute("round")
        number = self.spec.of_round[0].right
        begins = tuple_(status, round_) >= tuple_(word_literal(self.spec.ready), number)
        return [*self.spec.where_round_ranges, begins]

    def _status_again(self) -> list[ColumnElement[bool]]:
        """Name the status once more, in a way that bounds the claim index.

        From a SELECT that locks nothing PostgreSQL drops what a partial index
        implies: the status, the leading column of the claim index. The columns
        behind it then bound nothing, and a claim walked over all of a million jobs
        due tomorrow (9,382 pages, 6 with this criterion). To the planner a LIKE
        without a wildcard is no implication; to the index it is a comparison for
        equality.
        """
        if not self.database.forgets_implied or not self.due:
            return []
        return [status_again(self.mapping.attribute("status"), self.spec.ready)]

    @cached_property
    def from_first(self) -> list[ColumnElement[bool]]:
        """The criterion that a row does not stand before the first ready row; or no criterion.

        A claim leaves an entry in the claim index that is marked as deleted, until InnoDB has
        purged it. A locking read asks for the lock of each such entry: behind 10,000 of them
        a claim took 17 ms on MariaDB, and 7.7 ms on MySQL. MIN() locks nothing and reads one
        end of the index: with it such a claim took 0.8 and 0.9 ms.

        MIN() must see all commits, so this is for READ COMMITTED. What commits between MIN()
        and the locks might as well have committed after the claim.
        """
        helps = self.database.locks_what_it_scans and self.mapping.is_queue
        column = self._first_free if helps else None
        fixed = [*self.spec.equalities, *self.spec.of_round]
        # By a comparison with anything but a constant, MIN() would read all ready rows.
        if column is None or not all(isinstance(each.right, BindParameter) for each in fixed):
            return []
        waiting = self.mapping.table.alias("sa_jobqueue_waiting")
        same = [self.has_status, *fixed, *self.of_level]
        first = select(func.min(adapted(column, waiting)))
        first = first.where(*(adapted(criterion, waiting) for criterion in same))
        return [column >= first.scalar_subquery()]

    @property
    def _first_free(self) -> Any:
        """The first column of the claim order that is not the same in all rows of a claim.

        None where MIN() would not help: a priority says little about where its ready jobs
        begin, and an ENUM has another order than MIN().
        """
        spec, mapping = self.spec, self.mapping
        if not (spec.own_order and spec.in_index_order):
            return None
        if mapping.has("run_at"):  # then the criteria of levels fix what comes before
            column: Any = mapping.column("run_at")
        elif len(spec.order) == len(spec.of_round) + 1:
            column = mapping.keys[0]
        else:
            return None
        sorts_alike = self.database.comparable(column) is column
        return column if sorts_alike and not column.nullable else None

    # -- locks and indexes ----------------------------------------------

    def locked(
        self,
        statement: Select[Any],
        *,
        of: bool = True,
        nowait: bool = False,
    ) -> Select[Any]:
        """Lock the selected rows, passing over those that others have locked, where it is possible.

        Args:
            of: name the table; SQLAlchemy before 2.0.39 cannot inside a LATERAL.
            nowait: fail where others have locked one, instead.
        """
        return statement.with_for_update(
            nowait=nowait,
            skip_locked=self.database.skip_locked and not nowait,
            key_share=self.database.no_key_update,
            of=self.mapping.table if of and self.database.lock_of else None,
        )

    def by_claim_index(self, statement: Select[Any]) -> Select[Any]:
        """Bind a SELECT in claim order to the claim index, by a hint where the database has them.

        A hint is void where the table has no claim index.
        """
        if self.claim_index_hint is None or self.spec.order_by:
            return statement
        return statement.prefix_with(self.claim_index_hint)

    @cached_property
    def claim_index_hint(self) -> str | None:
        """The comment that binds a SELECT to the claim index; None where there are none."""
        index = claim_index(self.mapping)
        return None if index is None else self.database.index_hint(index)

    # -- levels ---------------------------------------------------------

    @cached_property
    def of_level(self) -> list[ColumnElement[bool]]:
        """The criteria that a row is of the level that is claimed now."""
        return [
            self.mapping.attribute(role)
            == bindparam(f"sa_jobqueue_{role}", type_=Integer, required=True)
            for role in self.spec.levels
        ]

    @cached_property
    def order(self) -> tuple[ColumnElement[Any], ...]:
        """The claim order, without the columns that are equal in all rows of a level."""
        fixed: list[Any] = [self.mapping.attribute(role) for role in self.spec.levels]
        return tuple(
            element
            for element in self.spec.order
            if all(element is not attribute for attribute in fixed)
        )

    def collect(
        self,
        writer: Writer,
        limit: int,
        take: Callable[..., Sequence[Any]],
        start: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """Call `take` for each level that has ready rows, until there are `limit` rows.

        `take` gets the parameters ``sa_jobqueue_limit``, ``sa_jobqueue_round`` and
        ``sa_jobqueue_priority``, as far as its statement has them.

        Args:
            start: the parameters of a place to begin at, in one level: no other level is visited.
        """
        if start or not self.spec.levels:
            return list(take(sa_jobqueue_limit=limit, **(start or {})))
        writer.lock_writes(self.mapping.table)
        taken: list[Any] = []
        for level in self.each_level(writer):
            taken += take(sa_jobqueue_limit=limit - len(taken), **level)
            if len(taken) >= limit:
                break
        return taken

    def each_level(self, writer: Writer) -> Iterator[dict[str, Any]]:
        """Look up one level after the other, as parameters, in the order of the roles.

        A queue that has no levels has one without parameters.
        """
        roles = self.spec.levels
        if not roles:
            yield {}
            return
        found = writer.core(self.first_level).first()
        while found is not None:
            yield {f"sa_jobqueue_{role}": value for role, value in zip(roles, found, strict=True)}
            after = {_after(role): value for role, value in zip(roles, found, strict=True)}
            looks = (writer.core(statement, after).first() for statement in self._next_level)
            found = next((level for level in looks if level is not None), None)

    @property
    def level_statements(self) -> list[Executable]:
        """What a claim executes to find its first level."""
        return [self.first_level] if self.spec.levels else []

    @cached_property
    def first_level(self) -> Any:
        """Select the first level that has ready rows, due or not."""
        return self.first_level_in(self.mapping.table)

    @cached_property
    def _next_level(self) -> list[Any]:
        """Select the first level behind another: the first statement that finds a row has it."""
        table = self.mapping.table
        after = [bindparam(_after(role), type_=Integer) for role in self.spec.levels]
        first = self.first_level_in(table)
        return [first.where(*criteria) for criteria in self.behind_level(table, after)]

    def first_level_in(self, table: FromClause) -> Any:
        """Select the first level in the table, or in an alias of it, that has ready rows."""
        columns = self._level_in(table)
        leading = (*self.spec.equalities, *self.spec.of_round)
        is_ready = status_is(self._in(table, "status"), self.spec.ready)
        first: Any = select(*columns).where(*(adapted(each, table) for each in leading), is_ready)
        return first.order_by(*columns).limit(1)

    def behind_level(self, table: FromClause, after: Sequence[Any]) -> list[list[Any]]:
        """Compare the table's levels with another level, so that the claim index serves.

        Returns:
            Lists of criteria, each for a statement of its own, to be tried in turn.
        """
        own, status = self._level_in(table), self._in(table, "status")
        if not self.database.forgets_implied:
            # Only PostgreSQL's index is bounded by a comparison of rows. Elsewhere ask for
            # the next priority of the same round first, then for the next round.
            return [
                [
                    *(column == value for column, value in zip(own[:n], after, strict=False)),
                    own[n] > after[n],
                ]
                for n in reversed(range(len(own)))
            ]
        # PostgreSQL forgets the status that a partial index implies: the docstring of
        # _status_again has the story. With the status in the comparison of rows the planner uses
        # the index even before the first ANALYZE. Where other columns lead the index, such rows
        # are not its beginning, and a LIKE names the status.
        if self.mapping.equality or self.spec.of_round:
            behind = own[0] > after[0] if len(own) == 1 else tuple_(*own) > tuple_(*after)
            return [[behind, status_again(status, self.spec.ready)]]
        return [[tuple_(status, *own) > tuple_(word_literal(self.spec.ready), *after)]]

    def _level_in(self, table: FromClause) -> list[Any]:
        return [self._in(table, role) for role in self.spec.levels]

    def _in(self, table: FromClause, role: str) -> Any:
        return table.c[self.mapping.column(role).key]


def _after(role: str) -> str:
    """Name the parameter that holds the level before."""
    return "sa_jobqueue_after" if role == "priority" else f"sa_jobqueue_after_{role}"


def adapted(expression: Any, source: FromClause) -> Any:
    """Return an expression with the columns of `source` in the place of its table's columns."""
    columns: Any = source

    def of_source(element: Any, **kw: Any) -> Any:
        if not isinstance(element, ColumnElement):
            return None
        return columns.corresponding_column(element, require_embedded=True)

    mapped = hasattr(expression, "__clause_element__")
    clause: Any = expression.__clause_element__() if mapped else expression
    return replacement_traverse(clause, {}, of_source)
