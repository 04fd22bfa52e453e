"""The statements of :mod:`.per_key`: which jobs their keys allow.

In the index of a key those that were tried stand behind the others, and so the next
job is its last entry if that one was tried, else its first: two entries are read,
however many jobs wait. A job that waits for its retry is looked at too, and being
the next, keeps the others waiting.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from sqlalchemy import (
    ColumnElement,
    FromClause,
    Index,
    Select,
    and_,
    case,
    exists,
    false,
    func,
    literal_column,
    or_,
    select,
    tuple_,
)
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import aliased
from sqlalchemy.sql import operators
from sqlalchemy.sql.util import ClauseAdapter

from ..dialects.serial_key_locks import SerialKeyLocks
from ..model.indexes import key_index
from ..model.keys import columns_are_in
from ..model.status import status_is
from ..sessions.writer import Writer
from .base import LIMIT
from .candidates import Candidates
from .limits import SKIP, KeyLimit

log = logging.getLogger("sa_jobqueue.claim")

_ONE: ColumnElement[int] = literal_column("1")


class KeyStatements(Candidates):
    """What per_key reads. The mark, and the locking read, are those of candidates."""

    @cached_property
    def locks(self) -> SerialKeyLocks:
        """How this database locks keys."""
        locks = self.database.serial_key_locks()
        assert locks is not None  # else the strategy was refused
        return locks

    # -- the head of the queue ------------------------------------------

    @cached_property
    def draw(self) -> Any:
        """The plain read of the next jobs. MySQL walked over done rows without its claim index."""
        if self.spec.served and self.claim_index_hint:
            return self.by_claim_index(self.draw_elsewhere)
        return super().draw

    @cached_property
    def draw_elsewhere(self) -> Any:
        """The plain read of the next jobs, with what stands for their keys."""
        return self.ready(*self._looked_at, plain=True)

    @cached_property
    def rank(self) -> Any:
        """The same of some jobs, by primary key."""
        return (
            select(*self._looked_at).where(self.key_is_in("claim_keys")).order_by(*self.spec.order)
        )

    @cached_property
    def _looked_at(self) -> list[Any]:
        """The primary key, a token for each limit, and whether the job was tried."""
        table = self.mapping.table
        tokens = [self.locks.token(table, limit.columns) for limit in self.spec.limits]
        labelled = [token.label(f"claim_token_{place}") for place, token in enumerate(tokens)]
        tried = self.mapping.attribute("attempts") > 0 if self.mapping.has("attempts") else false()
        return [*self.mapping.key_attributes, *labelled, tried.label("claim_tried")]

    # -- what keys allow ------------------------------------------------

    @cached_property
    def allowed(self) -> Any:
        """The jobs, of some, that are ready and that all their keys allow.

        With the number of claimed jobs of each key, where more than one may be. The
        rows in question are an alias, so that those that the sub-selects find are
        of the class itself: criteria of the session's hooks join those.
        """
        job: Any = aliased(self.mapping.entity, name="job")
        keys = [getattr(job, key.key) for key in self.mapping.key_attributes]
        same = [mine == key for mine, key in zip(self.mapping.key_attributes, keys, strict=True)]
        ready = select(_ONE).where(*same, self.is_ready, *self.due, *self.spec.where)
        counts = [self._count(job, limit) for limit in self.spec.limits]
        free = [self._is_free(job, limit) for limit in self.spec.limits]
        heads = [self._is_head(job, keys, limit) for limit in self.spec.limits if limit.serial]
        return select(*keys, *counts).where(
            columns_are_in(keys, "claim_keys", self.database),
            exists(ready.correlate(job)),
            *free,
            *heads,
        )

    def _count(self, job: Any, limit: KeyLimit) -> ColumnElement[int]:
        if limit.most == 1:
            return literal_column("0")
        return self._claimed(job, limit).scalar_subquery()

    def _is_free(self, job: Any, limit: KeyLimit) -> ColumnElement[bool]:
        if limit.most == 1:
            return ~exists(self._claimed(job, limit).with_only_columns(_ONE))
        return self._count(job, limit) < limit.most

    def _claimed(self, job: Any, limit: KeyLimit) -> Select[Any]:
        """Select the claimed jobs of a job's key, in the whole queue: its criteria may have
        changed since. Those that lead the claim index tell queues of one table apart.
        """
        table = self.mapping.table.alias("claimed")
        adapter = ClauseAdapter(table)
        equalities = [adapter.traverse(one) for one in self.spec.equalities]
        same = [table.c[_column(one).key] == getattr(job, one.key) for one in limit.columns]
        status = table.c[self.mapping.column("status").key]
        found = select(func.count()).select_from(table)
        return found.where(status_is(status, self.spec.during), *equalities, *same).correlate(job)

    def _is_head(self, job: Any, keys: Sequence[Any], limit: KeyLimit) -> ColumnElement[bool]:
        """Compare a job with the next one of its key, if it has one."""
        same = [mine == getattr(job, mine.key) for mine in limit.columns]
        heads = [self._head(mine, limit, same, job) for mine in self.mapping.key_attributes]
        no_key = [getattr(job, one.key).is_(None) for one in _nullable(limit)]
        return or_(*no_key, and_(*(head == key for head, key in zip(heads, keys, strict=True))))

    def _head(self, key: Any, limit: KeyLimit, same: Sequence[Any], of: Any) -> ColumnElement[Any]:
        """Say a column of the primary key of a key's next job."""
        first: ColumnElement[Any]
        first = self._first(key, limit, same).correlate(of).scalar_subquery()
        if not limit.serial or not self.mapping.has("attempts"):
            return first
        tried = self._tried(key, limit, same).correlate(of).scalar_subquery()
        either: ColumnElement[Any] = func.coalesce(tried, first)
        return either

    def _first(self, key: Any, limit: KeyLimit, same: Sequence[Any]) -> Any:
        found = select(key).where(self.is_ready, *self.due, *self.spec.where, *same)
        return self._by_index_of(limit, found.order_by(*self._order_in_key(limit)).limit(_ONE))

    def _tried(self, key: Any, limit: KeyLimit, same: Sequence[Any]) -> Any:
        """Select from the last entry of a key, if it was tried: no others are read to know that.

        Where retries are skipped, those that wait for theirs are passed over.
        """
        attempts = self.mapping.attribute("attempts")
        skipping = [or_(attempts == 0, *self.due)] if self.spec.on_retry == SKIP else []
        found = (
            select(case((attempts > 0, key)))
            .where(self.is_ready, *skipping, *self.spec.where, *same)
            .order_by(*map(_reversed, self._order_in_key(limit)))
            .limit(_ONE)
        )
        return self._by_index_of(limit, found)

    def _order_in_key(self, limit: KeyLimit) -> list[Any]:
        """Order as the index of the key: MySQL needs to be told its leading columns too."""
        mapping = self.mapping
        tried = [mapping.attribute("attempts")] if mapping.has("attempts") else []
        leading = (*mapping.equality, mapping.attribute("status"), *limit.columns)
        return [*leading, *tried, *self.spec.order]

    # -- from key to key ------------------------------------------------

    @property
    def scans(self) -> bool:
        """Whether the keys that have ready jobs can be gone through by their index."""
        served = not self.spec.order_by and len(self.spec.equalities) == len(self.mapping.equality)
        place = self.scanned
        return served and place is not None and self._index_of(self.spec.limits[place]) is not None

    @cached_property
    def scanned(self) -> int | None:
        """The place of the limit whose keys have every job behind their first; None: none has."""
        places = [place for place, limit in enumerate(self.spec.limits) if limit.serial]
        if not places and len(self.spec.limits) == 1:
            return 0
        return places[0] if places else None

    @cached_property
    def heads_of_keys(self) -> Any:
        """The primary key of the next job of every key that has ready jobs."""
        assert self.scanned is not None
        limit = self.spec.limits[self.scanned]
        keys = self._distinct(limit) if self.database.skips_repeats else self._stepping(limit)
        same = [mine == keys.c[_column(mine).key] for mine in limit.columns]
        heads = [self._head(mine, limit, same, keys) for mine in self.mapping.key_attributes]
        there = keys.c[_column(limit.columns[0]).key].is_not(None)  # the last step finds none
        return select(*heads).select_from(keys).where(there)

    def _distinct(self, limit: KeyLimit) -> Any:
        """Select each key once; with the columns before it, or all entries would be read."""
        mapping = self.mapping
        leading = [_column(one) for one in mapping.equality]
        columns = [_column(one) for one in limit.columns]
        statement = (
            select(*leading, mapping.column("status"), *columns)
            .where(*self.spec.equalities, status_is(mapping.column("status"), self.spec.ready))
            .where(*(column.is_not(None) for column in columns))
            .distinct()
        )
        return self._by_index_of(limit, statement).subquery("keys")

    def _stepping(self, limit: KeyLimit) -> Any:
        """Select one key after the other, each by one step into the index."""
        waiting = self.mapping.table.alias("waiting")
        columns = [waiting.c[_column(one).key] for one in limit.columns]
        first = [self._next_key(waiting, columns, one) for one in columns]
        keys = select(*(one.label(c.key) for one, c in zip(first, columns, strict=True))).cte(
            "keys", recursive=True
        )
        behind = _tuple(columns) > _tuple([keys.c[column.key] for column in columns])
        further = [self._next_key(waiting, columns, one, behind) for one in columns]
        return keys.union_all(select(*further).where(keys.c[columns[0].key].is_not(None)))

    def _next_key(
        self, waiting: FromClause, columns: Sequence[Any], what: Any, *behind: ColumnElement[bool]
    ) -> ColumnElement[Any]:
        adapter = ClauseAdapter(waiting)
        leading = [adapter.traverse(one) for one in self.spec.equalities]
        status = waiting.c[self.mapping.column("status").key]
        found = select(what).where(*leading, status_is(status, self.spec.ready), *behind)
        there = [column.is_not(None) for column in columns]
        return found.where(*there).order_by(*columns).limit(_ONE).scalar_subquery()

    @cached_property
    def unkeyed(self) -> Any:
        """The primary keys of ready jobs without a key; None where every job has one."""
        assert self.scanned is not None
        limit = self.spec.limits[self.scanned]
        nullable = _nullable(limit)
        if not nullable:
            return None
        found = (
            select(*self.mapping.key_attributes)
            .where(self.is_ready, *self.due, *self.spec.where)
            .where(or_(*(column.is_(None) for column in nullable)))
            .order_by(*self._order_in_key(limit))
            .limit(LIMIT)
        )
        return self._by_index_of(limit, found)

    # -- the index of a key ---------------------------------------------

    def _by_index_of(self, limit: KeyLimit, statement: Any) -> Any:
        index = self._index_of(limit)
        words = None if index is None else self.database.forced_index(index)
        return statement if words is None else statement.with_hint(self.mapping.table, words)

    def _index_of(self, limit: KeyLimit) -> Index | None:
        return None if self._without_key_index else key_index(self.mapping, limit.columns)

    #: A model's index of a key is not in the database: a statement bound to it has said so.
    _without_key_index = False

    def bound(self, writer: Writer, name: str, parameters: Any = None) -> Sequence[Any]:
        """Run a statement that is bound to the index of a key; without it, if it is missing."""
        try:
            return writer.rows(getattr(self, name), parameters).all()
        except DBAPIError as error:
            missing = error.orig is not None and self.database.is_missing_index(error.orig)
            if not missing or self._without_key_index:
                raise
        log.warning("%s has no index of its keys; claims may read whole keys", self.mapping)
        self._without_key_index = True
        for built in ("allowed", "heads_of_keys", "unkeyed"):
            vars(self).pop(built, None)
        return self.bound(writer, name, parameters)


def _column(attribute: Any) -> Any:
    """Return the table's column of a mapped attribute."""
    return attribute.property.columns[0]


def _nullable(limit: KeyLimit) -> list[Any]:
    return [column for column in limit.columns if _column(column).nullable]


def _reversed(element: Any) -> Any:
    """Order by the same, the other way round."""
    clause = element.__clause_element__() if hasattr(element, "__clause_element__") else element
    if getattr(clause, "modifier", None) is operators.desc_op:
        return clause.element.asc()
    return clause.desc()


def _tuple(columns: Sequence[Any]) -> Any:
    return columns[0] if len(columns) == 1 else tuple_(*columns)
