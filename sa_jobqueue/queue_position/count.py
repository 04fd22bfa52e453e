"""The place of a job in its queue: the jobs before it, counted in ranges of the claim index.

Before a job of priority 5, due since r, with the key k, are those rows that have::

    a better priority, and are due
    priority 5, and run_at < r
    priority 5, run_at = r, and a key up to k

Each line is a range of the claim index, and their rows are all that is read: a place
near the head costs little, however long the queue is. As one comparison of rows, or
one OR, the same is no range to most optimizers.

Limits: criteria that the claim index does not serve, and an order that it does not
have, are looked up row by row, as in a claim.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

from sqlalchemy import ColumnElement, Row, and_, bindparam, func, select, union_all

from ..dialects import Database
from ..model.indexes import claim_index
from ..model.keys import by_key, key_batches, key_is_in, key_values
from ..model.mapping import QueueMapping
from ..model.status import exact_pattern
from ..sessions.built_once import built_once
from ..sessions.writer import Writer
from ..strategies import ClaimSpec
from ..strategies.ready_rows import ReadyRows
from .ranges import Ordering

Key: TypeAlias = tuple[Any, ...]

#: How often to look again for jobs that others move meanwhile. Never so often, but for
#: a value that is not equal to itself, such as NULL in a column that the model forbids it.
MOST_LOOKS = 10

_KEYS = "place_keys"


@dataclass(frozen=True)
class Waiting:
    """A job that waits, with what its statements must know.

    Attributes:
        step: its round and priority, where claims go through those one by one.
        nulls: which of the nullable orderings are NULL.
    """

    key: Key
    step: tuple[int, ...]
    nulls: tuple[bool, ...]


class Places:
    """What finds the places of jobs in one queue, on one database.

    No value of a row but its priority goes through Python, where a REAL or a time that
    was written as other text would not compare as the same: the ranges compare with
    sub-selects by primary key, which every optimizer here takes for constants.
    """

    def __init__(self, spec: ClaimSpec, database: Database) -> None:
        self.spec = spec
        self.database = database
        self.rows = ReadyRows(spec, database)
        self._built: dict[Any, Any] = {}

    @property
    def mapping(self) -> QueueMapping:
        """The mapping of the queue's entity."""
        return self.spec.mapping

    def find(self, writer: Writer, keys: Sequence[Key]) -> dict[Key, int]:
        """Return the places of those of the jobs that wait and are due.

        As many as one statement takes well are of one moment.
        """
        found: dict[Key, int] = {}
        for batch in key_batches(list(dict.fromkeys(keys))):
            found |= self._find(writer, batch)
        return found

    def _find(self, writer: Writer, keys: Sequence[Key]) -> dict[Key, int]:
        found: dict[Key, int] = {}
        for _ in range(MOST_LOOKS):
            asked = self._waiting(writer, keys)
            found = self._look(writer, asked) if asked else {}
            # One that was not found was claimed since, or moved behind the others.
            missing = [job.key for job in asked if job.key not in found]
            if not missing or not self._waiting(writer, missing):
                break
        return found

    def _look(self, writer: Writer, asked: Sequence[Waiting]) -> dict[Key, int]:
        last = asked[-1]
        parameters: dict[str, Any] = self._named(last.key)
        better = self._better(writer, last.step)
        for n, values in enumerate(better):
            parameters |= {_step_name(n): last.step[n], _better_name(n): values}
        there = tuple(map(bool, better))
        if len(asked) == 1:
            counted = self._statement(self._counting, last.nulls, there)
            rows = self._run(writer, counted, parameters)
            return {last.key: int(rows[0][0])} if rows else {}
        if not self.database.window_functions:
            return {key: place for job in asked for key, place in self._look(writer, [job]).items()}
        ranked = self._statement(self._ranking, last.nulls, there)
        parameters[_KEYS] = key_values([job.key for job in asked])
        rows = self._run(writer, ranked, parameters)
        return {tuple(row[:-1]): int(row[-1]) for row in rows}

    def _run(self, writer: Writer, statement: Any, parameters: Any) -> Sequence[Row[Any]]:
        with self.database.by_index(writer.connection):
            return writer.orm(statement, parameters).all()

    def _statement(self, build: Any, *how: Any) -> Any:
        key = (build.__name__, *how)
        statement = self._built.get(key)
        return self._built.setdefault(key, build(*how)) if statement is None else statement

    # -- the jobs that are asked for --------------------------------------

    def _waiting(self, writer: Writer, keys: Sequence[Key]) -> list[Waiting]:
        """Read which of the jobs wait, in claim order."""
        rows = writer.orm(self._reading, {_KEYS: key_values(keys)}).all()
        width, steps = len(self.mapping.keys), len(self.spec.levels)
        return [
            Waiting(
                key=tuple(row[:width]),
                step=tuple(row[width : width + steps]),
                nulls=tuple(map(bool, row[width + steps :])),
            )
            for row in rows
        ]

    @cached_property
    def _reading(self) -> Any:
        step = [self.orderings[place].what for place in self._stepped]
        nulls = (one.what.is_(None) for one in self.orderings if one.nullable)
        statement = (
            select(*self.mapping.key_attributes, *step, *nulls)
            .where(key_is_in(self.mapping, _KEYS, self.database), *self._claimable)
            .order_by(*self.spec.order)
        )
        return by_key(statement, self.mapping.table, self.database)

    @cached_property
    def _claimable(self) -> list[ColumnElement[bool]]:
        return [self.rows.has_status, *self.rows.due, *self.spec.where]

    def _better(self, writer: Writer, step: tuple[int, ...]) -> list[list[int]]:
        """List the better values of each column that claims go through one by one.

        Of the second column those that stand beside the job's own value of the first.
        """
        sooner = list(self._steps_before(writer, step)) if step else []
        return [
            sorted({one[n] for one in sooner if one[:n] == step[:n] and one[n] < own})
            for n, own in enumerate(step)
        ]

    def _steps_before(self, writer: Writer, step: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        """Walk over the priorities that are there, by one step of the index for each.

        Not as a recursive query in the statement that counts: InnoDB then reads a
        priority's rows whether they are due or not. Rows that come in meanwhile, at a
        priority that nobody had, count as come in a moment later.
        """
        for found in self.rows.levels.each(writer):
            one = tuple(found.values())
            if one >= step:
                return
            yield one

    @cached_property
    def _stepped(self) -> list[int]:
        """Which of the orderings are the steps."""
        steps = [self.mapping.attribute(role) for role in self.spec.levels]
        order: list[Any] = list(self.spec.order)
        return [next(i for i, one in enumerate(order) if one is step) for step in steps]

    # -- the ranges before a job ------------------------------------------

    @cached_property
    def orderings(self) -> list[Ordering]:
        """What the queue is ordered by, the primary key last."""
        return [Ordering.of(element, self.database) for element in self.spec.order]

    def _ranges(self, nulls: Sequence[bool], better: Sequence[bool]) -> Iterator[list[Any]]:
        """Yield the criteria of each range, up to the job itself, in claim order."""
        is_null = iter(nulls)
        due, same = self.rows.due, list[Any]()
        for place, ordering in enumerate(self.orderings):
            null = ordering.nullable and next(is_null)
            value: Any = self._value(ordering)
            if place in self._stepped:
                n = self._stepped.index(place)
                value = bindparam(_step_name(n), type_=ordering.what.type)
                sooner = ordering.what.in_(bindparam(_better_name(n), expanding=True))
                before = [sooner] if better[n] else []
            elif ordering is self.orderings[-1]:
                before = [ordering.what <= value]
            else:
                before = ordering.before(value, is_null=null)
            if self._is_due_time(ordering):
                # Sooner than a job that is due is due. With two upper limits SQLite was
                # seen to take the other one, and to walk over all that is due.
                due = []
            yield from ([*same, sooner, *due] for sooner in before)
            same.append(ordering.same(value, is_null=null))

    def _is_due_time(self, ordering: Ordering) -> bool:
        mapping = self.mapping
        return mapping.has("run_at") and (
            ordering.what is mapping.attribute("run_at") and not ordering.modifiers
        )

    def _value(self, ordering: Ordering) -> Any:
        """Select what the job itself has there."""
        own = select(ordering.what).select_from(self.mapping.entity).where(*self._is_key)
        return own.correlate(None).scalar_subquery()

    @cached_property
    def _is_key(self) -> list[ColumnElement[bool]]:
        keys = self.mapping.key_attributes
        return [
            key == bindparam(_key_name(place), type_=key.type) for place, key in enumerate(keys)
        ]

    @staticmethod
    def _named(key: Key) -> dict[str, Any]:
        return {_key_name(place): value for place, value in enumerate(key)}

    def _in_range(self, criteria: Sequence[Any], *what: Any) -> Any:
        """Select claimable rows in a range of the claim index."""
        statement: Any = (
            select(*what)
            .select_from(self.mapping.entity)
            .where(self.rows.has_status, *self._status_again, *criteria, *self.spec.where)
            .correlate(None)
        )
        return statement if self._hint is None else statement.prefix_with(self._hint)

    @cached_property
    def _status_again(self) -> list[ColumnElement[bool]]:
        """Say the status so that it bounds the claim index, see ``ReadyRows._status_again``."""
        if not self.database.forgets_implied:
            return []
        return [self.mapping.attribute("status").like(exact_pattern(self.spec.ready))]

    @cached_property
    def _hint(self) -> str | None:
        """Bind the ranges to the claim index, where there are comments that do.

        For 66,000 jobs of two priorities MySQL took the reap index, which begins with
        the status too, and read 200,000 rows by it: 159 ms against 16.
        """
        index = claim_index(self.mapping)
        leads = len(self.spec.equalities) == len(self.mapping.equality)
        if index is None or self.spec.order_by or not leads:
            return None
        return self.database.index_hint(index)

    # -- the statements ---------------------------------------------------

    def _counting(self, nulls: Sequence[bool], better: Sequence[bool]) -> Any:
        """Count the ranges of one job that waits still.

        At the place 50,000 that is 2 (PostgreSQL) to 18 times (SQLite) as fast as to rank.
        """
        counts: list[Any] = [
            self._in_range(criteria, func.count()).scalar_subquery()
            for criteria in self._ranges(nulls, better)
        ]
        place: Any = sum(counts[1:], counts[0])
        unchanged = self._unchanged(nulls)
        return (
            select(place)
            .select_from(self.mapping.entity)
            .where(*self._is_key, *self._claimable, *unchanged)
        )

    def _unchanged(self, nulls: Sequence[bool]) -> Iterator[ColumnElement[bool]]:
        """Ask that what the ranges were made for is so still."""
        nullable = (one for one in self.orderings if one.nullable)
        for ordering, is_null in zip(nullable, nulls, strict=True):
            yield ordering.what.is_(None) if is_null else ordering.what.is_not(None)
        for n, place in enumerate(self._stepped):
            what = self.orderings[place].what
            yield what == bindparam(_step_name(n), type_=what.type)

    def _ranking(self, nulls: Sequence[bool], better: Sequence[bool]) -> Any:
        """Number the rows up to the last of the jobs, and select those of the jobs.

        Whatever has become of the last one since, its ranges are the beginning of the
        claim order: the numbers of the others are right.
        """
        columns = [one.what.label(f"order_{place}") for place, one in enumerate(self.orderings)]
        rows = union_all(
            *(self._in_range(criteria, *columns) for criteria in self._ranges(nulls, better))
        ).subquery("waiting")
        order = [one.again(column) for one, column in zip(self.orderings, rows.c, strict=True)]
        keys = self.mapping.key_attributes
        own = list(rows.c)[-len(keys) :]
        place = func.row_number().over(order_by=order).label("place")
        ranked = select(*own, place).subquery("ranked")
        joined = and_(*(key == one for key, one in zip(keys, ranked.c, strict=False)))
        return (
            select(*keys, ranked.c.place)
            .join_from(self.mapping.entity, ranked, joined)
            .where(key_is_in(self.mapping, _KEYS, self.database), *self._claimable)
        )


def _key_name(place: int) -> str:
    return f"place_key_{place}"


def _step_name(place: int) -> str:
    return f"place_step_{place}"


def _better_name(place: int) -> str:
    return f"place_better_{place}"


@built_once
def places_in(spec: ClaimSpec, writer: Writer) -> Places:
    """Return the statements of a queue, built once."""
    return Places(spec, writer.database)
