"""What a claim is about: which rows, in which order, for whom, and what was taken."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any

from sqlalchemy import (
    BinaryExpression,
    BindParameter,
    Column,
    ColumnElement,
    False_,
    Null,
    True_,
    UnaryExpression,
)
from sqlalchemy.orm import InstrumentedAttribute
from sqlalchemy.sql.elements import ClauseList, ExpressionClauseList, Grouping
from sqlalchemy.sql.operators import and_ as and_operator
from sqlalchemy.sql.operators import eq
from sqlalchemy.sql.visitors import iterate

from ..errors import ArgumentError
from ..fence.token import Hold
from ..model.mapping import QueueMapping

if TYPE_CHECKING:
    from ..fence.carried import CarriedJobs
    from ..rates import Rate

#: What criteria consist of that read no other row; a SELECT, a function or a text may do so.
_OF_ROW = (
    *(Column, BindParameter, BinaryExpression, UnaryExpression, ExpressionClauseList),
    *(ClauseList, Grouping, Null, True_, False_),
)


@dataclass(frozen=True, eq=False)
class KeyLimit:
    """How many jobs of a serial key may be claimed at a time.

    Attributes:
        columns: the attributes whose values are the serial key.
        most: the number.
        serial: the jobs of a key are claimed in their order, one by one.
    """

    columns: tuple[InstrumentedAttribute[Any], ...]
    most: int
    serial: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns."""
        return tuple(column.key for column in self.columns)

    def __str__(self) -> str:
        return self.names[0] if len(self.names) == 1 else f"({', '.join(self.names)})"

    @property
    def argument(self) -> str:
        """The argument that makes it, as text."""
        return f"serial_by={self}" if self.serial else f"limit_by={{{self}: {self.most}}}"


# -- the limit of a serial key: how serial_by= and limit_by= are read ----------------
#
#     JobQueue(Email, serial_by=Email.account_id)                  # one job at a time, in order
#     JobQueue(Email, limit_by={Email.account_id: 3})              # at most three at a time
#
# A serial key is the value of a column, or of several columns given as a tuple. A job
# with NULL in one of them has no serial key, and no limit.


def key_limit(
    mapping: QueueMapping, serial_by: Any, limit_by: Mapping[Any, int] | None
) -> KeyLimit | None:
    """Read the arguments of a queue; None: it has no limit.

    Raises:
        ArgumentError: an argument is wrong, or both are given.
    """
    if limit_by is None:
        if serial_by is None:
            return None
        return KeyLimit(key_columns(mapping, "serial_by", serial_by), 1, serial=True)
    if serial_by is not None:
        raise ArgumentError("leave limit_by= out: serial_by= is a limit of 1, and takes no other")
    if not isinstance(limit_by, Mapping) or len(limit_by) != 1:
        raise ArgumentError(
            f"limit_by= takes a dict of one key, as in {{{mapping}.account_id: 3}}, not "
            f"{limit_by!r}; several columns make one key as a tuple"
        )
    ((key, most),) = limit_by.items()
    if not isinstance(most, int) or isinstance(most, bool) or most < 1:
        raise ArgumentError(f"a limit of limit_by= is a number, at least 1: {most!r}")
    return KeyLimit(key_columns(mapping, "limit_by", key), most)


def key_columns(
    mapping: QueueMapping, option: str, key: Any
) -> tuple[InstrumentedAttribute[Any], ...]:
    """Read an attribute, or a tuple of attributes, that an option names.

    Raises:
        ArgumentError: it is no attribute of the table that has the status.
    """
    given = key if isinstance(key, tuple) else (key,)
    if not given:
        raise ArgumentError(f"{option}= names no column of {mapping}")
    mappers: list[Any] = list(mapping.mapper.iterate_to_root())
    found = []
    for each in given:
        known = isinstance(each, InstrumentedAttribute) and each.parent in mappers
        column = mapping.mapper.columns.get(each.key) if known else None
        if column is None:
            raise ArgumentError(
                f"{option}= takes attributes of {mapping}, as in {mapping}.account_id, "
                f"or a tuple of them, not {each!r}"
            )
        if getattr(column, "table", None) is not mapping.table:
            name = mapping.table.description
            raise ArgumentError(
                f"{option}= needs columns of {name!r}, the table that holds the status, and "
                f"{mapping}.{each.key} is in another table: keep the key in {name!r} too"
            )
        found.append(getattr(mapping.entity, each.key))
    return tuple(found)


@dataclass(frozen=True, eq=False)
class ClaimSpec:
    """Which rows a queue claims, and in which order.

    Attributes:
        where: the caller's criteria, joined by AND.
        order_by: replaces the mapping's order; the primary key comes last.
        ready: the status that a claimable job has.
        during: the status that a claim writes.
        strict: one claimer at a time, in exact order.
        key_limit: how many jobs of a serial key may be claimed at a time.
        placed: claims may begin at the place where the last one began; see :mod:`.place`.
        rate: how many jobs may begin in a time; None: any number.
        rate_by: the attributes whose values are a key with a bucket of its own.
        fair_by: the attributes whose values are a key that takes turns with others.
    """

    mapping: QueueMapping
    where: tuple[ColumnElement[bool], ...]
    order_by: tuple[ColumnElement[Any], ...]
    ready: str
    during: str
    strict: bool = False
    key_limit: KeyLimit | None = None
    placed: bool = True
    rate: Rate | None = None
    rate_by: tuple[InstrumentedAttribute[Any], ...] = ()
    fair_by: tuple[InstrumentedAttribute[Any], ...] = ()

    @cached_property
    def in_progress(self) -> tuple[str, ...]:
        """The statuses that its claimed jobs may have; see ``QueueMapping.in_progress``."""
        own = self.ready in self.mapping.ready
        return self.mapping.in_progress(self.during) if own else (self.during,)

    @cached_property
    def order(self) -> tuple[ColumnElement[Any], ...]:
        """The whole claim order, the primary key last."""
        # The key of the table that holds the status: the key of a joined subclass
        # is not in the claim index.
        order: list[Any] = [*(self.order_by or self.mapping.order), *self.mapping.keys]
        return tuple(order)

    @cached_property
    def own_order(self) -> bool:
        """Whether the claim order is the default order, of the mixins' columns."""
        return not self.order_by and self.mapping.args.order_by is None

    @cached_property
    def levels(self) -> tuple[str, ...]:
        """Return the roles whose values claims visit one after the other, such as priority.

        With priorities and schedules in one index, the jobs of a priority that
        are not yet due stand between its due jobs and those of the next priority.
        A claim in index order would walk over all of them. The same holds for the
        jobs of a round, unless the criteria name the round.
        """
        complete = len(self.equalities) == len(self.mapping.equality)
        if not (self.own_order and self.mapping.has("run_at") and complete):
            return ()
        fixed = {"round"} if self.of_round or self._leads("round") else set()
        roles = ("round", "priority")
        return tuple(role for role in roles if self.mapping.has(role) and role not in fixed)

    def _leads(self, role: str) -> bool:
        """Tell whether the column of this role is among those that lead the claim index."""
        if not self.mapping.has(role):
            return False
        own = self.mapping.attribute(role).expression
        return any(own.compare(leading.expression) for leading in self.mapping.equality)

    @cached_property
    def sees_all_of_keys(self) -> bool:
        """Whether no other queue claims jobs whose serial keys this one has freed.

        Queues that differ in the leading columns of the claim index do not count each other's.
        """
        others = len(_flat(self.where)) > len(self.equalities)
        return not others and self.mapping.ready == (self.ready,)

    @cached_property
    def served(self) -> bool:
        """Whether the claim index alone serves the criteria and the order."""
        if not self.in_index_order:
            return False
        return len(_flat(self.where)) == len(self.equalities) + len(self.of_round)

    @cached_property
    def in_index_order(self) -> bool:
        """Whether the claim index has the queue's jobs in claim order, among others perhaps."""
        return not self.order_by and len(self.equalities) == len(self.mapping.equality)

    @cached_property
    def partitioned(self) -> bool:
        """Whether the model declares its table as partitioned.

        A locking read in claim order looks at the head of every partition, and
        takes the first of these rows. InnoDB keeps all of them locked: with eight
        partitions a claim of 1 row locked 8, and others did not see the other seven.
        """
        return any(option.endswith("_partition_by") for option in self.mapping.table.kwargs)

    @cached_property
    def equalities(self) -> list[ColumnElement[bool]]:
        """The criteria that compare a leading column of the claim index for equality."""
        return self._comparing(*self.mapping.equality)

    @cached_property
    def of_round(self) -> list[ColumnElement[bool]]:
        """The criterion that names one round, where the claim order begins with the round."""
        mapping = self.mapping
        if not mapping.has("round") or mapping.args.order_by is not None or self._leads("round"):
            return []
        found = self._comparing(mapping.attribute("round"))
        return found if len(found) == 1 else []

    @cached_property
    def where_round_ranges(self) -> list[ColumnElement[bool]]:
        """The criteria, with ``round BETWEEN n AND n`` in place of ``round = n``.

        PostgreSQL's planner drops a column that equals a constant from the order. Then
        the primary key has the claim order too, and each claim walked over all rows that
        the round had done already.
        """
        if not self.of_round:
            return list(self.where)
        round_, number = self.of_round[0].left, self.of_round[0].right
        others = [criterion for criterion in _flat(self.where) if criterion is not self.of_round[0]]
        return [round_.between(number, number), *others]

    @cached_property
    def looks_at_own_row(self) -> bool:
        """Whether the criteria are known to depend on nothing but their row and parameters."""
        return all(isinstance(part, _OF_ROW) for where in self.where for part in iterate(where))

    def _comparing(self, *attributes: Any) -> list[ColumnElement[bool]]:
        """List the criteria that compare one of these attributes for equality."""
        wanted = [attribute.expression for attribute in attributes]
        return [
            criterion
            for criterion in _flat(self.where)
            if getattr(criterion, "operator", None) is eq
            and any(criterion.left.compare(expression) for expression in wanted)
        ]


def _flat(criteria: Sequence[Any]) -> list[Any]:
    """List the criteria that AND joins, also those inside an and_()."""
    flat: list[Any] = []
    for criterion in criteria:
        if getattr(criterion, "operator", None) is and_operator:
            flat += _flat(list(criterion.clauses))
        elif not isinstance(criterion, True_):
            flat.append(criterion)
    return flat


# A frozen dataclass takes three times as long to make, and each claim makes both of these.
@dataclass(slots=True)
class Request:
    """One call of claim(); nobody changes it.

    Attributes:
        owner: who claims; None only for strategies that mark nothing.
        limit: the most jobs to claim.
        rows: claim plain rows instead of entities.
        finish: jobs that the statement of the claim finishes; it claims none if one was lost.
    """

    owner: str | None
    limit: int
    rows: bool = False
    finish: CarriedJobs | None = None


@dataclass(slots=True)
class Taken:
    """What a strategy has taken.

    Attributes:
        jobs: entities or rows, in claim order.
        dates: the owner_date that was written for each; empty where nothing was marked.
        hold: what keeps the rows, where nothing was marked.
        candidates: how many rows were tried; None where the strategy cannot know.
        lost: how many of the candidates others took first; None where the strategy cannot know.
        first: the order of the first job that was looked at, where that may not be the first taken.
        from_place: the claim began at a place in the order, and found fewer jobs than it wants.
        refills_in: when the rate allows one more job; None: it has not limited the claim.
    """

    jobs: Sequence[Any]
    dates: Sequence[datetime] = ()
    hold: Hold | None = None
    candidates: int | None = None
    lost: int | None = None
    first: Sequence[Any] | None = None
    from_place: bool = False
    refills_in: timedelta | None = None
