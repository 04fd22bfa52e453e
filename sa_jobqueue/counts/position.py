"""The position of a job in its queue: the jobs before it, counted in ranges of the claim index.

Before a job of priority 5 that has been due since r and has the key k come the rows with::

    a better priority, and are due
    priority 5, and run_at < r
    priority 5, run_at = r, and a key below k

Each line is a range of the claim index, and only the rows of these ranges are read: a
position near the head costs little, however long the queue is. Written as one comparison
of rows, or with OR, the same condition is no range to most optimizers.

Limits: an order of the user's own is refused. For criteria that the claim index does not serve, the
database looks at row after row, as a claim does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import takewhile
from typing import Any

from sqlalchemy import Integer, bindparam, func, literal, select

from ..databases import Database
from ..errors import ArgumentError
from ..fence.claim import jobs_with_keys
from ..model.status import status_again
from ..sessions.writer import AnySession, Writer, built_once, writing
from ..strategies import ClaimSpec
from ..strategies.ready_rows import ReadyRows
from .count import spec_of

#: How often to look again for a job that others move meanwhile. In practice once or twice.
MOST_LOOKS = 10


def position(session: AnySession, job: Any) -> int | None:
    """Return the position of a job in claim order: 1 is the next job.

    Args:
        session: the caller's session; pending changes are flushed, nothing is committed.
        job: an entity, or a fence. The job is counted in the queue of its class; for claims
            with criteria or an order of their own, ask the :class:`JobQueue`.

    Returns:
        None for a job that is claimed, finished, not yet due or deleted, or that criteria of
        the session's hooks hide.

    Raises:
        ArgumentError: an entity that is not in the database, or a class with an order of its own.
    """
    ((_, mapping, _),) = jobs_with_keys([job])
    return position_in(session, mapping.entity, job)


def position_in(session: AnySession, queue: Any, job: Any) -> int | None:
    """Return the position of a job in one queue; see :func:`position`.

    Raises:
        ArgumentError: as for :func:`position`, or a job of another class.
    """
    spec = spec_of(queue)
    ((_, _, key),) = jobs_with_keys([job], spec.mapping)
    with writing(session, spec.mapping, reads=True, shard_by=[job]) as writer:
        return _counter(spec, writer).find(writer, key)


class _Counter:
    """Counts the position of a job in one queue, on one database.

    Of a row's values only round and priority go through Python. A REAL, or a time in
    another text form, would not be equal any more after that. So the ranges compare with
    sub-selects by primary key, which the optimizers of all four databases take for constants.
    """

    def __init__(self, spec: ClaimSpec, database: Database) -> None:
        self.spec, self.mapping, self.database = spec, spec.mapping, database
        self.ready = ReadyRows(spec, database)
        self.keys = self.mapping.key_attributes
        self.is_key = [key == _parameter("key", n, key.type) for n, key in enumerate(self.keys)]

    def find(self, writer: Writer, key: Sequence[Any]) -> int | None:
        """Return the position of a job; None: it is not unclaimed and due."""
        named = {f"sa_jobqueue_key_{n}": value for n, value in enumerate(key)}
        self._check_order()
        for _ in range(MOST_LOOKS):
            row = writer.orm(self._reading, named).first()
            if row is None:
                return None
            # A job that is not found was claimed since, or has another level by now.
            level = self._level(writer, tuple(row)[1:])
            if (found := self._run(writer, self._counting, named | level)) is not None:
                return found
        return None

    def _run(self, writer: Writer, statement: Any, parameters: Any) -> int | None:
        with self.database.by_index(writer.connection):
            found: int | None = writer.orm(statement, parameters).scalar()
        return found

    def _check_order(self) -> None:
        """Refuse an order that is not that of the mixins' columns, or compares as it does not sort.

        Raises:
            ArgumentError: with the way out.
        """
        columns = [element.expression for element in self.spec.order]
        if not self.spec.own_order or not all(
            self.database.comparable(column) is column and not column.nullable for column in columns
        ):
            raise ArgumentError(
                f"positions of {self.mapping} are counted in the order of the mixins' columns "
                "alone: number the rows that wait in an order of your own by row_number()"
            )

    @cached_property
    def _reading(self) -> Any:
        """Read the round and priority of the job, if it is unclaimed and due."""
        levels = map(self.mapping.attribute, self.spec.levels)
        return select(self.keys[0], *levels).where(*self.is_key, *self.ready.criteria)

    def _level(self, writer: Writer, own: tuple[int, ...]) -> dict[str, Any]:
        """Return parameters: the values of a level, and the better ones: the sooner rounds, say.

        Of the second column only the values that rows have in the job's own round. A recursive
        query in the statement that counts would not do: InnoDB then reads a priority's rows
        whether they are due or not. Rows that come in during the walk, at a priority that no row
        had, count as if they came in a moment later.
        """
        levels = (tuple(level.values()) for level in self.ready.each_level(writer))
        sooner = list(takewhile(lambda level: level < own, levels))
        found: dict[str, Any] = {}
        for n, (role, value) in enumerate(zip(self.spec.levels, own, strict=True)):
            better = {level[n] for level in sooner if level[:n] == own[:n] and level[n] < value}
            found |= {f"sa_jobqueue_{role}": value, f"sa_jobqueue_better_{role}": sorted(better)}
        return found

    @cached_property
    def _counting(self) -> Any:
        """Count the rows of the ranges before a job that still has its level."""
        before = map(self._in_range, self._ranges())
        place: Any = sum(before, literal(1))
        return (
            select(place)
            .select_from(self.mapping.entity)
            .where(*self.is_key, *self.ready.criteria, *self.ready.of_level)
        )

    def _ranges(self) -> Iterator[list[Any]]:
        """Yield the criteria of each range, in claim order."""
        due, same = self.ready.due, [*self.ready.of_level]
        for number, role in enumerate(self.spec.levels):
            better = _parameter("better", role, Integer(), expanding=True)
            yield [*same[:number], self.mapping.attribute(role).in_(better), *due]
        for role in self.mapping.order_roles:
            if role not in self.spec.levels:
                # A job before a due job is due, too. Given two upper limits, SQLite was seen
                # to take "run_at <= now", and to walk over all jobs that are due.
                due = [] if role == "run_at" else due
                column = self.mapping.attribute(role)
                yield [*same, column < self._value(column), *due]
                same.append(column == self._value(column))
        for key, is_key in zip(self.keys, self.is_key, strict=True):
            yield [*same, key < is_key.right, *due]
            same.append(is_key)

    def _value(self, column: Any) -> Any:
        """Select the value that the job itself has."""
        own = select(column).select_from(self.mapping.entity).where(*self.is_key)
        return own.correlate(None).scalar_subquery()

    def _in_range(self, criteria: Sequence[Any]) -> Any:
        """Count claimable rows in a range of the claim index.

        PostgreSQL forgets the status that a partial index implies: see
        ``ReadyRows._status_again``. For 66,000 jobs of two priorities MySQL took the reap index,
        which begins with the status too, and read 200,000 rows by it: in 159 ms, by the claim
        index in 16.
        """
        status = self.mapping.attribute("status")
        again = [status_again(status, self.spec.ready)] if self.database.forgets_implied else []
        statement: Any = (
            select(func.count())
            .select_from(self.mapping.entity)
            .where(self.ready.has_status, *again, *criteria, *self.spec.where)
            .correlate(None)
        )
        if self.spec.in_index_order:
            statement = self.ready.by_claim_index(statement)
        return statement.scalar_subquery()


def _parameter(what: str, name: object, type_: Any, **options: Any) -> Any:
    return bindparam(f"sa_jobqueue_{what}_{name}", type_=type_, **options)


@built_once
def _counter(spec: ClaimSpec, writer: Writer) -> _Counter:
    """Return the statements of a queue, built once."""
    return _Counter(spec, writer.database)
