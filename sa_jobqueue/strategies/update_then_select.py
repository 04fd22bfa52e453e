"""update_then_select: UPDATE .. ORDER BY .. LIMIT marks, then a SELECT reads back.

The oldest way on MySQL and MariaDB, and the one for servers without SKIP LOCKED.
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
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.visitors import InternalTraversal

from ..dialects import Database
from ..dialects.clock import EPOCH, utc_now
from ..model.indexes import claim_index
from ..model.keys import key_values
from ..model.plain_rows import row_columns
from ..sessions.writer import Writer
from .base import LIMIT, OVERDRAW, Strategy
from .spec import Request, Taken

log = logging.getLogger("sa_jobqueue.claim")

#: How often a claim whose rows did not come back as marked is tried again.
TRIES = 10


class UpdateThenSelect(Strategy):
    """Mark in one statement, read back by owner and owner_date."""

    # Where the token lives. A claim must read back its own rows only, also when
    # the same owner holds older batches, or two threads share an owner's name.
    # The token is (owner, owner_date). LAST_INSERT_ID(expr) has the server tell
    # the owner_date that it wrote in its answer to the UPDATE, without another
    # question. Two claims under one name in one microsecond (about 8 a second
    # at 4,000 claims a second) would still share a token: then more rows are
    # read than were marked, and the claim goes back to its savepoint and takes
    # another microsecond. As many rows read as marked: they are this claim's,
    # since those of an uncommitted twin are not visible, and the twin's own
    # check sees ours.

    name = "update_then_select"

    @staticmethod
    def refusal(database: Database) -> str | None:
        return None if database.ordered_update else "it has no UPDATE .. ORDER BY .. LIMIT"

    def take(self, writer: Writer, request: Request) -> Taken:
        with writer.atomically():
            taken = self.in_steps(
                writer,
                request.limit,
                lambda **parameters: self._take(writer, request, parameters),
            )
            return self._dated(request, taken)

    def statements(self) -> list[Executable]:
        steps = [self.first_step] if self.spec.steps else []
        if self.mapping.mapper.inherits is not None:
            return [*steps, _SAVEPOINT, self.pick, self.claim_picked, self.read_entities]
        claim = self.claim if self._indexed is None else self._indexed
        return [*steps, _SAVEPOINT, claim, self.read_entities]

    def _take(self, writer: Writer, request: Request, parameters: dict[str, Any]) -> list[Any]:
        for _ in range(TRIES):
            writer.core(_SAVEPOINT)
            marked = self._mark_some(writer, {**parameters, "claim_owner": request.owner})
            if marked is None or not marked.rowcount:
                return []
            date = EPOCH + timedelta(microseconds=marked.lastrowid)
            jobs = self._read_back(writer, request, date, picked=self._picks(writer))
            if len(jobs) == marked.rowcount:
                return jobs
            log.info("%d rows marked, %d read back; once more", marked.rowcount, len(jobs))
            writer.core(_ROLLBACK)
        return []

    def _mark_some(self, writer: Writer, parameters: dict[str, Any]) -> CursorResult[Any] | None:
        if not self._picks(writer):
            return self._claim_by_index(writer, parameters)
        # In a caller's REPEATABLE READ only a locking read sees what is new.
        pick = self.pick.with_for_update() if writer.keeps_snapshot else self.pick
        drawn = {**parameters, "claim_limit": parameters["claim_limit"] * OVERDRAW}
        keys = [tuple(key) for key in writer.rows(pick, drawn)]
        if not keys:
            return None
        for role in self.spec.steps:
            parameters.pop(f"claim_{role}", None)
        return writer.core(self.claim_picked, {**parameters, "claim_keys": key_values(keys)})

    def _claim_by_index(self, writer: Writer, parameters: dict[str, Any]) -> CursorResult[Any]:
        if self._indexed is not None:
            try:
                return writer.core(self._indexed, parameters)
            except DBAPIError as error:
                if error.orig is None or not self.database.is_missing_index(error.orig):
                    raise
                log.warning(
                    "%s has no claim index; claims may lock more than they take", self.mapping
                )
                self._indexed = None
        return writer.core(self.claim, parameters)

    @cached_property
    def _indexed(self) -> Update | None:
        """The UPDATE bound to the claim index: the reap index was seen to be taken instead."""
        index = claim_index(self.mapping)
        if index is None or self.spec.order_by:
            return None
        return self.claim.with_hint(f"FORCE INDEX ({self.database.index_name(index)})")

    def _read_back(
        self, writer: Writer, request: Request, date: datetime, *, picked: bool
    ) -> list[Any]:
        token = {"claim_owner": request.owner, "claim_owner_date": date}
        if request.rows:
            read = self.read_picked_rows if picked else self.read_rows
            return list(writer.rows(read, token).all())
        read = self.read_picked_entities if picked else self.read_entities
        return list(writer.orm(read, token, populate_existing=True).scalars().all())

    def _picks(self, writer: Writer) -> bool:
        """Tell whether keys are picked by a SELECT first.

        An UPDATE .. LIMIT knows one table and no class: a class of a hierarchy,
        and the criteria of a session's hooks, need the SELECT of the ORM.
        """
        return writer.hooked or self.mapping.mapper.inherits is not None

    @cached_property
    def pick(self) -> Any:
        """Select the keys of the next rows, without locks."""
        return self.ready(*self.mapping.key_attributes)

    @cached_property
    def claim_picked(self) -> Update:
        """The UPDATE that marks those of the picked rows that are still ready."""
        return self._claim([self.key_is_in("claim_keys"), self.is_ready], self.mapping.keys)

    @cached_property
    def claim(self) -> Update:
        """The UPDATE that marks."""
        criteria = [self.is_ready, *self.due, *self.spec.where, *self.in_step]
        return self._claim(criteria, self.order_in_step)

    def _claim(self, criteria: list[ColumnElement[bool]], order: tuple[Any, ...]) -> Update:
        limited = OrderedLimit(and_(*criteria), order, LIMIT)
        return update(self.mapping.table).where(limited).values(self.marking(_told_date()))

    @cached_property
    def read_entities(self) -> Any:
        """The SELECT of the claim's entities."""
        return self._reading(self.mapping.entity).options(*self.loading)

    @cached_property
    def read_rows(self) -> Any:
        """The SELECT of the claim's plain rows."""
        return self._reading(*row_columns(self.mapping, during=None, orm=True))

    # Picked rows are checked again, now that they are locked.

    @cached_property
    def read_picked_entities(self) -> Any:
        """The SELECT of the entities of picked rows."""
        return self.read_entities.where(*self.due, *self.spec.where)

    @cached_property
    def read_picked_rows(self) -> Any:
        """The SELECT of picked rows."""
        return self.read_rows.where(*self.due, *self.spec.where)

    def _reading(self, *what: Any) -> Any:
        mapping = self.mapping
        owner, date = mapping.attribute("owner"), mapping.attribute("owner_date")
        return (
            select(*what)
            .where(
                mapping.has_status(self.spec.during),
                owner == bindparam("claim_owner", type_=owner.type),
                date == bindparam("claim_owner_date", type_=date.type),
            )
            .order_by(*self.spec.order)
        )


_SAVEPOINT = text("SAVEPOINT sa_jobqueue_claim")
_ROLLBACK = text("ROLLBACK TO SAVEPOINT sa_jobqueue_claim")


def _told_date() -> ColumnElement[Any]:
    """The time of the UPDATE, which the server tells as the last insert id."""
    epoch: ColumnElement[Any] = literal_column("'1970-01-01'")
    since = func.timestampdiff(text("MICROSECOND"), epoch, utc_now(), type_=BigInteger)
    told = func.last_insert_id(since, type_=BigInteger)
    return func.timestampadd(text("MICROSECOND"), told, epoch)


class OrderedLimit(ColumnElement[bool]):
    """A WHERE criterion that an ORDER BY and a LIMIT follow.

    SQLAlchemy has no ``UPDATE .. ORDER BY``; the criterion is the last thing
    that its UPDATE says, so the rest can stand behind it.
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
