"""What the strategies have in common: the ready rows, step by step, and the mark.

A strategy turns a :class:`ClaimSpec` into statements for one database, once,
and runs them for each :class:`Request`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any, ClassVar

from sqlalchemy import (
    ColumnElement,
    Executable,
    FromClause,
    Integer,
    Select,
    Update,
    bindparam,
    select,
    tuple_,
)
from sqlalchemy.orm import RelationshipProperty, selectinload
from sqlalchemy.orm.attributes import instance_dict
from sqlalchemy.sql.util import ClauseAdapter

from ..dialects import Database
from ..dialects.clock import as_utc, utc_now
from ..errors import ArgumentError, UnsupportedDatabase
from ..model.keys import key_is_in
from ..model.mapping import QueueMapping
from ..model.plain_rows import row_columns
from ..model.status import exact_pattern, status_is, word_literal
from ..model.transitions import claimed
from ..sessions.writer import Writer
from .spec import ClaimSpec, Request, Taken

#: How many candidates are drawn for each row wanted. Workers see the same head
#: of the queue: with exactly as many as wanted, four of them lost 60 % of theirs.
OVERDRAW = 4

#: The roles that a claim writes to.
_MARKED = ("status", "owner", "owner_date", "attempts")


class Strategy(ABC):
    """One way to claim, on one database, for one queue.

    Attributes:
        name: by which ``strategy=`` asks for it.
        marks: whether a claim writes status and owner.
        any_class: whether it claims classes without JobMixin too.
    """

    name: ClassVar[str]
    marks: ClassVar[bool] = True
    any_class: ClassVar[bool] = False

    def __init__(self, spec: ClaimSpec, database: Database) -> None:
        refusal = self.refusal(database)
        if refusal is not None:
            raise UnsupportedDatabase(
                f"strategy {self.name!r} cannot run on {database}: {refusal}; use strategy='auto'"
            )
        if self.marks:
            _check_key(spec.mapping)
        self.spec = spec
        self.database = database

    @property
    def mapping(self) -> QueueMapping:
        """The mapping of the queue's entity."""
        return self.spec.mapping

    @staticmethod
    @abstractmethod
    def refusal(database: Database) -> str | None:
        """Say why this database cannot run the strategy; None: it can."""

    @abstractmethod
    def take(self, writer: Writer, request: Request) -> Taken:
        """Claim up to ``request.limit`` jobs."""

    @abstractmethod
    def statements(self) -> list[Executable]:
        """List what :meth:`take` executes, in order, for a claim of entities."""

    # -- the ready rows -------------------------------------------------

    def ready(self, *what: Any, plain: bool = False) -> Any:
        """Select up to ``:claim_limit`` claimable rows in claim order.

        Where the queue claims in steps, those of ``:claim_priority``, say.

        Args:
            plain: the SELECT will lock nothing.
        """
        statement: Any = select(*what).where(self.is_ready, *self.due)
        statement = statement.where(*self._where(plain=plain), *self.in_step)
        if plain:
            statement = statement.where(*self._status_again())
        return statement.order_by(*self.order_in_step).limit(LIMIT)

    @cached_property
    def in_step(self) -> list[ColumnElement[bool]]:
        """The criteria that a row is of the step that is claimed now."""
        return [
            self.mapping.attribute(role) == bindparam(f"claim_{role}", type_=Integer, required=True)
            for role in self.spec.steps
        ]

    @cached_property
    def order_in_step(self) -> tuple[ColumnElement[Any], ...]:
        """The claim order, without what is the same in all rows of a step."""
        stepped: list[Any] = [self.mapping.attribute(role) for role in self.spec.steps]
        return tuple(
            element for element in self.spec.order if all(element is not one for one in stepped)
        )

    def _where(self, *, plain: bool) -> Sequence[ColumnElement[bool]]:
        """Return the caller's predicate; where :meth:`_status_again` says, the round as a range.

        That one bounds the index too, and the planner does not take the few rows that it
        then expects for so few that it may sort them.
        """
        forgets = plain and self.database.forgets_implied and not self.due
        if not forgets or not self.spec.of_round:
            return self.spec.where
        status, round_ = self.mapping.attribute("status"), self.mapping.attribute("round")
        number = self.spec.of_round[0].right
        begins = tuple_(status, round_) >= tuple_(word_literal(self.spec.ready), number)
        return [*self.spec.where_round_ranges, begins]

    def _status_again(self) -> list[ColumnElement[bool]]:
        """Say the status once more, in a way that bounds the claim index.

        PostgreSQL takes out of a SELECT that locks nothing what a partial index
        implies: the status, the leading column of the claim index. What stands
        behind it then bounds nothing, and a million jobs due tomorrow were all
        walked over (9,382 pages, 6 with this). A LIKE without a wildcard is no
        implication to the planner, and a comparison for equality to the index.
        """
        if not self.database.forgets_implied or not self.due:
            return []
        return [self.mapping.attribute("status").like(exact_pattern(self.spec.ready))]

    @cached_property
    def is_ready(self) -> ColumnElement[bool]:
        """The status criterion, with its literal."""
        return self.mapping.has_status(self.spec.ready)

    @cached_property
    def due(self) -> list[ColumnElement[bool]]:
        """The criterion that a job's time has come, for scheduled queues."""
        if not self.mapping.has("run_at"):
            return []
        return [self.mapping.attribute("run_at") <= utc_now()]

    def locked(
        self, statement: Select[Any], *, of: bool = True, waiting: bool = False
    ) -> Select[Any]:
        """Lock the selected rows, passing over those that others have locked.

        Args:
            of: name the table; SQLAlchemy before 2.0.39 cannot inside a LATERAL.
            waiting: wait for those that others have locked instead.
        """
        return statement.with_for_update(
            skip_locked=not waiting,
            key_share=self.database.no_key_update,
            of=self.mapping.table if of and self.database.lock_of else None,
        )

    # -- priority by priority, round by round ----------------------------

    def in_steps(self, writer: Writer, limit: int, take: Callable[..., list[Any]]) -> list[Any]:
        """Call `take` for each step that has ready rows, until `limit` is reached."""
        if not self.spec.steps:
            return take(claim_limit=limit)
        writer.lock_writes(self.mapping.table)
        taken: list[Any] = []
        for step in self.each_step(writer):
            taken += take(claim_limit=limit - len(taken), **step)
            if len(taken) >= limit:
                break
        return taken

    def each_step(self, writer: Writer) -> Iterator[dict[str, Any]]:
        """Look up one step after the other, as parameters, in the order of the roles."""
        roles = self.spec.steps
        found = writer.core(self.first_step).first()
        while found is not None:
            yield {f"claim_{role}": value for role, value in zip(roles, found, strict=True)}
            after = {_after(role): value for role, value in zip(roles, found, strict=True)}
            looks = (writer.core(statement, after).first() for statement in self.next_steps)
            found = next((step for step in looks if step is not None), None)

    @cached_property
    def first_step(self) -> Any:
        """The first step that has ready rows, due or not."""
        return self.first_in(self.mapping.table)

    @cached_property
    def next_steps(self) -> list[Any]:
        """The first step behind another: of several statements the first that finds one."""
        table = self.mapping.table
        after = [bindparam(_after(role), type_=Integer) for role in self.spec.steps]
        return [self.first_in(table).where(*one) for one in self.behind(table, after)]

    def first_in(self, table: FromClause) -> Any:
        """Select the first step in the table, or an alias of it, that has ready rows."""
        stepped, status = self._stepped(table), self._of(table, "status")
        leading = [
            ClauseAdapter(table).traverse(one)
            for one in (*self.spec.equalities, *self.spec.of_round)
        ]
        is_ready = status_is(status, self.spec.ready)
        first: Any = select(*stepped)
        return first.where(*leading, is_ready).order_by(*stepped).limit(1)

    def behind(self, table: FromClause, after: Sequence[Any]) -> list[list[ColumnElement[bool]]]:
        """Compare the table's steps with another, so that the claim index serves.

        With the status in a comparison of rows, where :meth:`_status_again` says
        why; this one the planner trusts also before the first ANALYZE. Where
        other columns lead the index, the rows would not be its beginning.

        Elsewhere such comparisons bound no index: first the next priority of the same
        round, then the next round.
        """
        own, status = self._stepped(table), self._of(table, "status")
        if not self.database.forgets_implied:
            return [
                [
                    *(mine == its for mine, its in zip(own[:n], after, strict=False)),
                    own[n] > after[n],
                ]
                for n in reversed(range(len(own)))
            ]
        if self.mapping.equality or self.spec.of_round:
            behind = own[0] > after[0] if len(own) == 1 else tuple_(*own) > tuple_(*after)
            return [[behind, status.like(exact_pattern(self.spec.ready))]]
        return [[tuple_(status, *own) > tuple_(word_literal(self.spec.ready), *after)]]

    def _stepped(self, table: FromClause) -> list[Any]:
        return [self._of(table, role) for role in self.spec.steps]

    def _of(self, table: FromClause, role: str) -> Any:
        return table.c[self.mapping.column(role).key]

    # -- the mark -------------------------------------------------------

    def marking(self, owner_date: ColumnElement[Any] | None = None) -> dict[Any, Any]:
        """Return the values that a claim writes."""
        mapping = self.mapping
        return claimed(mapping, self.spec.during, utc_now() if owner_date is None else owner_date)

    def key_is_in(self, parameter: str) -> ColumnElement[bool]:
        """Compare the primary key with a list of keys, given as a parameter."""
        return key_is_in(self.mapping, parameter, self.database)

    @cached_property
    def mark(self) -> Update:
        """Mark locked rows as claimed, by primary key."""
        return (
            self.database.update_by_key(self.mapping.table, self.mapping.keys)
            .where(self.key_is_in("claim_keys"))
            .values(
                self.marking(
                    bindparam("claim_owner_date", type_=self.mapping.column("owner_date").type)
                )
            )
        )

    # -- entities and rows ----------------------------------------------

    @cached_property
    def loading(self) -> list[Any]:
        """Options for an entity select that locks: no joins but the entity's own.

        FOR UPDATE is refused on the nullable side of an outer join, and would
        lock the joined rows elsewhere.
        """
        return [
            selectinload(getattr(self.mapping.entity, relationship.key))
            for relationship in self.mapping.mapper.relationships
            if _joins(relationship)
        ]

    def _dated(self, request: Request, jobs: Sequence[Any]) -> Taken:
        """Hand back jobs that were read after the mark, with the dates that they show."""
        if request.rows:
            place = self.mapping.owner_date_ordinal
            return Taken(jobs, [row[place] for row in jobs])
        key = self.mapping.attributes["owner_date"]
        return Taken(jobs, [as_utc(instance_dict(job)[key]) for job in jobs])

    def what(self, *, rows: bool) -> tuple[Any, ...]:
        """Return what a locking read selects: the entity, or the columns of rows."""
        moment = self.database.moment()
        if rows:
            during = self.spec.during if self.marks else None
            return tuple(row_columns(self.mapping, during, moment, orm=True))
        return (self.mapping.entity, moment.label("claim_date"))


def _check_key(mapping: QueueMapping) -> None:
    """Refuse a key that the mark would change: no finish would find its row again."""
    written = [role for role in _MARKED if mapping.has(role)]
    for role in written:
        if mapping.column(role) in mapping.keys:
            raise ArgumentError(
                f"the primary key of {mapping} holds {mapping.column(role).name!r}, which a claim "
                "writes: its finish would not find the row again. Take the column out of the key, "
                "and partition by one that never changes, such as the day of the insert"
            )


def _after(role: str) -> str:
    """Name the parameter for what a step comes behind."""
    return "claim_after" if role == "priority" else f"claim_after_{role}"


def _joins(relationship: RelationshipProperty[Any]) -> bool:
    return relationship.lazy in ("joined", False)


LIMIT = bindparam("claim_limit", type_=Integer, required=True)
