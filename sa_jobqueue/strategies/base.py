"""What the strategies have in common: the ready rows, step by step, and the mark.

A strategy turns a :class:`ClaimSpec` into statements for one database, once,
and runs them for each :class:`Request`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
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

from ..clock import as_utc, utc_now
from ..dialects import Database
from ..errors import ArgumentError, UnsupportedDatabase
from ..keys import key_is_in
from ..mapping import QueueMapping, status_is
from ..rows import claimed_columns, exact_pattern, row_columns, word_literal
from ..sessions import Writer
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

        Where the queue claims priority by priority, those of ``:claim_priority``.

        Args:
            plain: the SELECT will lock nothing.
        """
        order = self.spec.order
        statement: Any = select(*what).where(self.is_ready, *self.due, *self.spec.where)
        if self.spec.steps:
            priority, *order_in_priority = order
            statement = statement.where(
                priority == bindparam("claim_priority", type_=priority.type, required=True)
            )
            order = tuple(order_in_priority)
        if plain:
            statement = statement.where(*self._status_again())
        return statement.order_by(*order).limit(LIMIT)

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

    # -- priority by priority -------------------------------------------

    def in_steps(self, writer: Writer, limit: int, take: Callable[..., list[Any]]) -> list[Any]:
        """Call `take` for each priority that has ready rows, until `limit` is reached."""
        if not self.spec.steps:
            return take(claim_limit=limit)
        writer.lock_writes(self.mapping.table)
        taken: list[Any] = []
        priority = writer.core(self.first_step).scalar()
        while priority is not None:
            taken += take(claim_limit=limit - len(taken), claim_priority=priority)
            if len(taken) >= limit:
                break
            priority = writer.core(self.next_step, {"claim_after": priority}).scalar()
        return taken

    @cached_property
    def first_step(self) -> Select[Any]:
        """The first priority that has ready rows, due or not."""
        return self.first_priority(self.mapping.table)

    @cached_property
    def next_step(self) -> Select[Any]:
        """The first priority behind ``:claim_after``."""
        table, after = self.mapping.table, bindparam("claim_after", type_=Integer)
        return self.first_priority(table).where(*self.behind(table, after))

    def first_priority(self, table: FromClause) -> Select[Any]:
        """Select the first priority in the table, or an alias of it, that has ready rows."""
        priority, status = self._of(table, "priority"), self._of(table, "status")
        leading = [ClauseAdapter(table).traverse(one) for one in self.spec.equalities]
        is_ready = status_is(status, self.spec.ready)
        return select(priority).where(*leading, is_ready).order_by(priority).limit(1)

    def behind(self, table: FromClause, priority: Any) -> list[ColumnElement[bool]]:
        """Compare the table's priority with another, so that the claim index serves.

        With the status in a comparison of rows, where :meth:`_status_again` says
        why; this one the planner trusts also before the first ANALYZE. Where
        other columns lead the index, the rows would not be its beginning.
        """
        own, status = self._of(table, "priority"), self._of(table, "status")
        if not self.database.forgets_implied:
            return [own > priority]
        if self.mapping.equality:
            return [own > priority, status.like(exact_pattern(self.spec.ready))]
        return [tuple_(status, own) > tuple_(word_literal(self.spec.ready), priority)]

    def _of(self, table: FromClause, role: str) -> Any:
        return table.c[self.mapping.column(role).key]

    # -- the mark -------------------------------------------------------

    def marking(self, owner_date: ColumnElement[Any] | None = None) -> dict[Any, Any]:
        """Return the values that a claim writes."""
        mapping = self.mapping
        return claimed_columns(
            mapping, self.spec.during, utc_now() if owner_date is None else owner_date
        )

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
            place = self.mapping.owner_date_place
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


def _joins(relationship: RelationshipProperty[Any]) -> bool:
    return relationship.lazy in ("joined", False)


LIMIT = bindparam("claim_limit", type_=Integer, required=True)
