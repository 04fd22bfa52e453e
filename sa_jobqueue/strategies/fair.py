"""fair: take from one key after the other, so that the backlog of none holds up the others.

::

    JobQueue(Email, fair_by=Email.tenant_id)

A claim goes on behind the key that the last claim of this process has served, and after the last
key with the first. It takes the first job of each key, then the second, until it has as many as it
wants. Jobs without a key have their turn together, before the first key.

What the walk reads only proposes jobs: they are locked by their keys, and checked again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, takewhile, zip_longest
from typing import Any, TypeAlias

from sqlalchemy import ColumnElement, Executable, bindparam, select
from sqlalchemy.orm import InstrumentedAttribute

from ..databases import Database
from ..errors import ArgumentError, UnsupportedDatabase
from ..fence.token import Identity
from ..model.indexes import key_index
from ..sessions.writer import Writer
from .candidates import OVERDRAW
from .key_walk import BEFORE, NUMBER_1, KeyWalk, column_of
from .ready_rows import LIMIT
from .spec import ClaimSpec, Request, Taken, key_columns
from .strategy import kept

#: A claim reads several jobs of each key at once, by a statement for each, where it wants more
#: than so many of each; else it walks over the keys once more.
WALKS = 4

#: The parameters for the values of a key, each with a number behind it.
_KEY = "sa_jobqueue_key_"

Key: TypeAlias = "tuple[Any, ...]"

#: A job that may be taken: its key, and its primary key.
Proposed: TypeAlias = "tuple[Key, Identity]"


def checked_fair_by(spec: ClaimSpec, given: Any) -> tuple[Any, ...]:
    """Read the argument of a queue: the attributes of the key that takes turns.

    Raises:
        ArgumentError: it names no columns of the class, or no index serves the walk over its keys.
    """
    mapping = spec.mapping
    columns = key_columns(mapping, "fair_by", given)
    if spec.order_by:
        raise ArgumentError(
            "fair_by= walks an index in the order of the class: leave order_by= out"
        )
    if len(spec.equalities) != len(mapping.equality):
        leading = ", ".join(attribute.key for attribute in mapping.equality)
        raise ArgumentError(f"fair_by= needs criteria that name one value of each of: {leading}")
    if key_index(mapping, columns) is None:
        names = tuple(column.key for column in columns)
        per_key = [names] if len(names) > 1 else [*names]
        raise ArgumentError(
            f'fair_by= needs an index of its key: add __queue_args__ = {{"per_key": {per_key}}} to '
            f"{mapping}, and a migration"
        )
    return columns


class Fair(KeyWalk):
    """Walk from key to key, lock rows by their primary keys, and mark them."""

    name = "fair"

    @property
    def key(self) -> tuple[InstrumentedAttribute[Any], ...]:
        return self.spec.fair_by

    def __init__(self, spec: ClaimSpec, database: Database, *, indexed: bool = True) -> None:
        super().__init__(spec, database, indexed=indexed)
        self._served: Key | None = None  # the key of the last job; None: before the first key

    @classmethod
    def check_database(cls, database: Database) -> None:
        if not (database.skip_locked or database.one_writer):
            raise UnsupportedDatabase(
                f"{database} cannot keep fair_by=: it has no SELECT .. FOR UPDATE SKIP LOCKED "
                "(MySQL 8.0.1, MariaDB 10.6). Upgrade the server, or leave fair_by= out"
            )

    def take(self, writer: Writer, request: Request) -> Taken:
        with writer.atomically():
            writer.lock_writes(self.mapping.table)
            return self.mark(writer, request, self._lock_in_turn(writer, request))

    def statements(self, *, from_head: bool = False) -> list[Executable]:
        return [self.heads(behind=True), self.lock_by_keys(), self.mark_by_keys()]

    # -- in turn --------------------------------------------------------

    def _lock_in_turn(self, writer: Writer, request: Request) -> list[Any]:
        locked: list[Any] = []
        before = 0  # how many jobs of each key were looked at
        while True:
            keys: list[Key] = []
            for jobs in self._walk(writer, request.limit * OVERDRAW, before):
                keys += [key for key, _ in jobs]
                if self._lock(writer, request, locked, jobs):
                    return locked
            if not keys:
                return locked
            before += 1
            each = -(-(request.limit - len(locked)) // len(keys))
            if each >= WALKS:
                by_key = [self._jobs_of(writer, key, each, before) for key in keys]
                in_turn = [job for job in chain(*zip_longest(*by_key)) if job is not None]
                if self._lock(writer, request, locked, in_turn):
                    return locked
                before += each

    def _lock(
        self, writer: Writer, request: Request, locked: list[Any], jobs: Sequence[Proposed]
    ) -> bool:
        """Lock jobs, as many at a time as are still wanted; tell whether there are enough."""
        tried = 0
        while tried < len(jobs) and len(locked) < request.limit:
            some = jobs[tried : tried + request.limit - len(locked)]
            tried += len(some)
            locked += self.lock_keys(writer, request, [identity for _, identity in some])
            self._served = some[-1][0]
        return len(locked) == request.limit

    def _walk(self, writer: Writer, size: int, before: int) -> Iterator[list[Proposed]]:
        """Yield a job of each key, once around, from behind the key that was served last.

        Args:
            size: how many keys to read at a time.
            before: how many jobs of its key come before that job.
        """
        served, seen = self._served, set[Key]()
        if served is not None:
            yield from self._heads(writer, None if None in served else served, size, before, seen)
        if self.nullable:
            yield self._jobs_of(writer, (None,) * len(self.key), 1, before)
        yield from self._heads(writer, None, size, before, seen)

    def _heads(
        self, writer: Writer, after: Key | None, size: int, before: int, seen: set[Key]
    ) -> Iterator[list[Proposed]]:
        """Yield a job of each key behind another, until a key was seen before."""
        width = len(self.key)
        while True:
            parameters = {"sa_jobqueue_limit": size, BEFORE: before, **_values(after or ())}
            rows = writer.rows(self.heads(after is not None), parameters).all()
            keys = [tuple(row[:width]) for row in rows]
            new = list(takewhile(lambda key: key not in seen, keys))
            seen.update(new)
            proposed = [(key, tuple(row[width:])) for key, row in zip(new, rows, strict=False)]
            yield [job for job in proposed if None not in job[1]]  # else none of the key is due
            if len(new) < size:
                return
            after = new[-1]

    def _jobs_of(self, writer: Writer, key: Key, limit: int, before: int) -> list[Proposed]:
        """Read some jobs of one key, or of those without one."""
        has_key = None not in key
        parameters = {"sa_jobqueue_limit": limit, BEFORE: before}
        values = _values(key) if has_key else {}
        rows = writer.rows(self.jobs_of_key(has_key), {**parameters, **values})
        return [(key, tuple(row)) for row in rows]

    # -- statements -----------------------------------------------------

    @kept
    def heads(self, behind: bool) -> Any:
        """Select the next keys that have ready jobs, and of each the primary key of a due job.

        Args:
            behind: those behind a key; False: the first.
        """
        keys = self.each_key(self._given if behind else (), most=LIMIT)
        own = [keys.c[column_of(attribute).key] for attribute in self.key]
        same = [mine == key for mine, key in zip(self.key, own, strict=True)]
        heads = [
            self.in_key([mine], same).limit(NUMBER_1).correlate(keys).scalar_subquery()
            for mine in self.mapping.key_attributes
        ]
        # A join may come in any order: the walk goes on behind the last of these.
        return select(*own, *heads).where(own[0].is_not(None)).order_by(*own)

    @kept
    def jobs_of_key(self, has_key: bool) -> Any:
        """Select the primary keys of the due jobs of one key, or of those without one."""
        same = [mine == its for mine, its in zip(self.key, self._given, strict=True)]
        own = same if has_key else [self.has_no_key]
        return self.in_key(self.mapping.key_attributes, own).limit(LIMIT)

    @property
    def _given(self) -> list[ColumnElement[Any]]:
        """The parameters for the values of a key."""
        return [
            bindparam(f"{_KEY}{number}", type_=column_of(attribute).type)
            for number, attribute in enumerate(self.key)
        ]


def _values(key: Key) -> dict[str, Any]:
    return {f"{_KEY}{number}": value for number, value in enumerate(key)}
