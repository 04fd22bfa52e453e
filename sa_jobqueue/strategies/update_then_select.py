"""update_then_select: UPDATE .. ORDER BY .. LIMIT marks, then a SELECT reads back.

The oldest way on MySQL and MariaDB, and the only way on servers without SKIP LOCKED.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Executable,
    Update,
    and_,
    bindparam,
    func,
    literal_column,
    select,
    text,
    update,
)
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.visitors import InternalTraversal

from ..databases import Database
from ..databases.clock import EPOCH, utc_now
from ..fence.token import distinct
from ..model.indexes import claim_index
from ..model.transitions import OWNER
from ..sessions.writer import Writer
from .ready_rows import LIMIT
from .spec import Request, Taken
from .strategy import Strategy, kept

log = logging.getLogger("sa_jobqueue.claim")

#: How often a claim tries again after it read back other rows than it marked.
TRIES = 10


class UpdateThenSelect(Strategy):
    """Mark in one statement, read back by owner and owner_date."""

    # How a claim knows its own rows. It must read back its own rows only, also when the
    # same owner holds older batches, or when two threads share an owner's name. Owner
    # and owner_date together tell them apart. LAST_INSERT_ID(expr) makes the server
    # return the owner_date that it wrote in its answer to the UPDATE, without another
    # question.
    #
    # Two claims under one name in one microsecond (about 8 a second at 4,000 claims a
    # second) would still share both values. Then more rows are read than were marked,
    # and the claim goes back to its savepoint and takes another microsecond. If as many
    # rows are read as were marked, they are this claim's: the rows of an uncommitted
    # twin are not visible, and the twin's own check sees ours. A twin that was rolled back
    # left no rows, but perhaps a fence with this time: this process remembers it.

    name = "update_then_select"

    @staticmethod
    def refusal(database: Database) -> str | None:
        return None if database.ordered_update else "it has no UPDATE .. ORDER BY .. LIMIT"

    def take(self, writer: Writer, request: Request) -> Taken:
        if writer.hooked or self._spans_classes:
            return self.lock_and_mark(writer, request)
        with writer.atomically():
            jobs = self.ready.collect(
                writer,
                request.limit,
                lambda **parameters: self._take(writer, request, parameters),
            )
            return Taken(jobs, self.dates(request, jobs))

    def statements(self, *, from_head: bool = False) -> list[Executable]:
        levels = self.ready.level_statements
        if self._spans_classes:
            return [*levels, self.lock_next(), self.mark_by_keys()]
        return [*levels, _SAVEPOINT, self.mark_next(), self.read_back()]

    @property
    def _spans_classes(self) -> bool:
        """Whether the class is of a hierarchy. An UPDATE .. LIMIT knows one table and no class.

        Such a class, and the criteria of a session's hooks, need a SELECT by the ORM.
        """
        return self.mapping.mapper.inherits is not None

    def _take(self, writer: Writer, request: Request, parameters: dict[str, Any]) -> Sequence[Any]:
        later, free = 0, EPOCH  # what a further try adds to its time, and what it should get
        for _ in range(TRIES):
            writer.core(_SAVEPOINT)
            written = {OWNER: request.owner, "sa_jobqueue_later": later}
            marked = writer.core(self.mark_next(), {**parameters, **written})
            if not marked.rowcount:
                return []
            date = EPOCH + timedelta(microseconds=marked.lastrowid)
            if date != free:
                free = distinct(request.owner, date)
            own = {OWNER: request.owner, "sa_jobqueue_owner_date": date}
            read = self.read_back(request.rows)
            found = self.read(writer, request, read, own) if date == free else []
            if len(found) == marked.rowcount:
                return found
            log.info("another claim of %s has this time; trying again", request.owner)
            writer.core(_ROLLBACK)
            later += max(1, (free - date) // timedelta(microseconds=1))
        return []

    @kept
    def mark_next(self) -> Update:
        """Mark the next rows, by the claim index: it was seen to take the reap index instead."""
        index = claim_index(self.mapping)
        criteria = and_(*self.ready.criteria, *self.ready.of_level)
        limited = OrderedLimit(criteria, self.ready.order, LIMIT)
        marked = update(self.mapping.table).where(limited)
        marked = marked.values(self.mark_values(_told_date()))
        if index is None or self.spec.order_by or not self.indexed:
            return marked
        return marked.with_hint(f"FORCE INDEX ({self.database.index_name(index)})")

    @kept
    def read_back(self, rows: bool = False) -> Any:
        """Select the rows of one owner and owner_date, in claim order."""
        mapping = self.mapping
        owner, date = mapping.attribute("owner"), mapping.attribute("owner_date")
        read = self.select_jobs(select, rows=rows).where(
            mapping.has_status(self.spec.during),
            owner == bindparam(OWNER, type_=owner.type),
            date == bindparam("sa_jobqueue_owner_date", type_=date.type),
        )
        return read.order_by(*self.spec.order)


_SAVEPOINT = text("SAVEPOINT sa_jobqueue_claim")
_ROLLBACK = text("ROLLBACK TO SAVEPOINT sa_jobqueue_claim")


def _told_date() -> ColumnElement[Any]:
    """Return the time of the UPDATE, which the server returns as the last insert id.

    A second try takes a later one, by the parameter ``:sa_jobqueue_later``.
    """
    epoch: ColumnElement[Any] = literal_column("'1970-01-01'")
    now = utc_now(bindparam("sa_jobqueue_later", 0, type_=BigInteger))
    since = func.timestampdiff(text("MICROSECOND"), epoch, now, type_=BigInteger)
    told = func.last_insert_id(since, type_=BigInteger)
    return func.timestampadd(text("MICROSECOND"), told, epoch)


class OrderedLimit(ColumnElement[bool]):
    """A WHERE criterion with an ORDER BY and a LIMIT behind it.

    SQLAlchemy has no ``UPDATE .. ORDER BY``. It writes the criterion at the end of
    an UPDATE, so the rest can stand behind it.
    """

    __visit_name__ = "sa_jobqueue_ordered_limit"
    _traverse_internals = [  # noqa: RUF012 - SQLAlchemy's own protocol, for the statement cache
        ("criterion", InternalTraversal.dp_clauseelement),
        ("order", InternalTraversal.dp_clauseelement_tuple),
        ("limit", InternalTraversal.dp_clauseelement),
    ]
    inherit_cache = True

    def __init__(
        self,
        criterion: ColumnElement[bool],
        order: tuple[ColumnElement[Any], ...],
        limit: ColumnElement[int],
    ) -> None:
        self.criterion = criterion
        self.order = order
        self.limit = limit


@compiles(OrderedLimit)
def _ordered_limit(element: OrderedLimit, compiler: Any, **kw: Any) -> str:
    order = ", ".join(compiler.process(column, **kw) for column in element.order)
    criterion = compiler.process(element.criterion, **kw)
    return f"{criterion} ORDER BY {order} LIMIT {compiler.process(element.limit, **kw)}"
