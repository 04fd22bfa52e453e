"""update_then_select: UPDATE .. ORDER BY .. LIMIT marks, then a SELECT reads back.

The oldest way on MySQL and MariaDB, and the only way on servers without SKIP LOCKED.
"""

from __future__ import annotations

import logging
from datetime import datetime, timedelta
from functools import cached_property
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
from sqlalchemy.engine import CursorResult
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.visitors import InternalTraversal

from ..dialects import Database, is_missing_index
from ..dialects.clock import EPOCH, utc_now
from ..fence.token import distinct
from ..model.indexes import claim_index
from ..model.keys import key_values
from ..sessions.writer import Writer
from .reads import OVERDRAW, ReadBack
from .ready_rows import LIMIT
from .spec import ClaimSpec, Request, Taken
from .strategy import Mark, Strategy

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

    def __init__(self, spec: ClaimSpec, database: Database) -> None:
        super().__init__(spec, database)
        self._mark = Mark(spec, database)
        self._read = ReadBack(self.mapping, self._select_claimed)
        self._read_picked = ReadBack(self.mapping, self._select_picked)

    @staticmethod
    def refusal(database: Database) -> str | None:
        return None if database.ordered_update else "it has no UPDATE .. ORDER BY .. LIMIT"

    def take(self, writer: Writer, request: Request) -> Taken:
        with writer.atomically():
            taken = self.ready.levels.collect(
                writer,
                request.limit,
                lambda **parameters: self._take(writer, request, parameters),
            )
            return self._mark.taken(request, taken)

    def statements(self) -> list[Executable]:
        levels = self.ready.levels.statements()
        if self.mapping.mapper.inherits is not None:
            return [*levels, _SAVEPOINT, self.pick, self.claim_picked, self._read.entities]
        claim = self.claim if self._claim_by_index is None else self._claim_by_index
        return [*levels, _SAVEPOINT, claim, self._read.entities]

    def _take(self, writer: Writer, request: Request, parameters: dict[str, Any]) -> list[Any]:
        later, free = 0, EPOCH  # what a further try adds to its time, and what it should get
        for _ in range(TRIES):
            writer.core(_SAVEPOINT)
            written = {"sa_jobqueue_owner": request.owner, "sa_jobqueue_later": later}
            marked = self._mark_some(writer, {**parameters, **written})
            if marked is None or not marked.rowcount:
                return []
            date = EPOCH + timedelta(microseconds=marked.lastrowid)
            if date != free:
                free = distinct(request.owner, date)
            jobs = self._read_back(writer, request, date) if date == free else []
            if len(jobs) == marked.rowcount:
                return jobs
            log.info("another claim of %s has this time; trying again", request.owner)
            writer.core(_ROLLBACK)
            later += max(1, (free - date) // timedelta(microseconds=1))
        return []

    def _read_back(self, writer: Writer, request: Request, date: datetime) -> list[Any]:
        read = self._read_picked if self._picks(writer) else self._read
        return read.run(
            writer, request, {"sa_jobqueue_owner": request.owner, "sa_jobqueue_owner_date": date}
        )

    # -- the mark -------------------------------------------------------

    def _mark_some(self, writer: Writer, parameters: dict[str, Any]) -> CursorResult[Any] | None:
        if not self._picks(writer):
            return self._mark_next(writer, parameters)
        # In a caller's REPEATABLE READ only a locking read sees new rows.
        pick = self.pick.with_for_update() if writer.keeps_snapshot else self.pick
        drawn = {**parameters, "sa_jobqueue_limit": parameters["sa_jobqueue_limit"] * OVERDRAW}
        keys = [tuple(key) for key in writer.rows(pick, drawn)]
        if not keys:
            return None
        for role in self.spec.levels:
            parameters.pop(f"sa_jobqueue_{role}", None)
        return writer.core(self.claim_picked, {**parameters, "sa_jobqueue_keys": key_values(keys)})

    def _mark_next(self, writer: Writer, parameters: dict[str, Any]) -> CursorResult[Any]:
        """Mark the next rows, by the claim index if the table has it."""
        if self._claim_by_index is not None:
            try:
                return writer.core(self._claim_by_index, parameters)
            except Exception as error:  # a handle_error listener may raise what it likes
                if not is_missing_index(error):
                    raise
                log.warning(
                    "%s has no claim index; claims may lock more than they take", self.mapping
                )
                self._claim_by_index = None
        return writer.core(self.claim, parameters)

    def _picks(self, writer: Writer) -> bool:
        """Tell whether a SELECT picks keys first.

        An UPDATE .. LIMIT knows one table and no class: a class of a hierarchy,
        and the criteria of a session's hooks, need the SELECT of the ORM.
        """
        return writer.hooked or self.mapping.mapper.inherits is not None

    @cached_property
    def pick(self) -> Any:
        """Select the keys of the next rows, without locks."""
        return self.ready.select(*self.mapping.key_attributes)

    @cached_property
    def claim_picked(self) -> Update:
        """Mark the picked rows that are still ready."""
        criteria = [self.ready.key_is_in("sa_jobqueue_keys"), self.ready.has_status]
        return self._update(criteria, self.mapping.keys)

    @cached_property
    def claim(self) -> Update:
        """Mark the next rows."""
        levels = self.ready.levels
        return self._update([*self.ready.criteria, *levels.criteria], levels.order)

    @cached_property
    def _claim_by_index(self) -> Update | None:
        """The UPDATE bound to the claim index: it was seen to take the reap index instead."""
        index = claim_index(self.mapping)
        if index is None or self.spec.order_by:
            return None
        return self.claim.with_hint(f"FORCE INDEX ({self.database.index_name(index)})")

    def _update(self, criteria: list[ColumnElement[bool]], order: tuple[Any, ...]) -> Update:
        limited = OrderedLimit(and_(*criteria), order, LIMIT)
        return update(self.mapping.table).where(limited).values(self._mark.values(_told_date()))

    # -- reading back ---------------------------------------------------

    def _select_claimed(self, *columns: Any) -> Any:
        """Select the rows of one owner and owner_date, in claim order."""
        mapping = self.mapping
        owner, date = mapping.attribute("owner"), mapping.attribute("owner_date")
        return (
            select(*columns)
            .where(
                mapping.has_status(self.spec.during),
                owner == bindparam("sa_jobqueue_owner", type_=owner.type),
                date == bindparam("sa_jobqueue_owner_date", type_=date.type),
            )
            .order_by(*self.spec.order)
        )

    def _select_picked(self, *columns: Any) -> Any:
        """Check picked rows again, now that they are locked."""
        return self._select_claimed(*columns).where(*self.ready.due, *self.spec.where)


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
