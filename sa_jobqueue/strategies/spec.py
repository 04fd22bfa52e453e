"""What a claim is about: which rows, in which order, for whom, and what was taken."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any

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
from sqlalchemy.orm import Session
from sqlalchemy.sql.elements import ClauseList, ExpressionClauseList, Grouping
from sqlalchemy.sql.operators import and_ as and_operator
from sqlalchemy.sql.operators import eq
from sqlalchemy.sql.visitors import iterate

from ..fence.token import Hold
from ..model.mapping import QueueMapping
from .key_limits import WAIT, KeyLimit

#: What criteria consist of that read no other row; a SELECT, a function or a text may do so.
_OF_ROW = (
    *(Column, BindParameter, BinaryExpression, UnaryExpression, ExpressionClauseList),
    *(ClauseList, Grouping, Null, True_, False_),
)


@dataclass(frozen=True, eq=False)
class ClaimSpec:
    """Which rows a queue claims, and in which order.

    Attributes:
        where: the caller's criteria, joined by AND.
        order_by: replaces the mapping's order; the primary key comes last.
        ready: the status that a claimable job has.
        during: the status that a claim writes.
        strict: one claimer at a time, in exact order.
        limits: how many jobs of a serial key may be claimed at a time.
        on_retry: whether a job in its retry delay keeps the other jobs of its serial key back.
        placed: claims may begin at the place where the last one began; see :mod:`.place`.
    """

    mapping: QueueMapping
    where: tuple[ColumnElement[bool], ...]
    order_by: tuple[ColumnElement[Any], ...]
    ready: str
    during: str
    strict: bool = False
    limits: tuple[KeyLimit, ...] = ()
    on_retry: str = WAIT
    placed: bool = True

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
        candidates_from: another session to read candidates from.
    """

    owner: str | None
    limit: int
    rows: bool = False
    candidates_from: Session | None = None


@dataclass(slots=True)
class Taken:
    """What a strategy has taken; nobody changes it.

    Attributes:
        jobs: entities or rows, in claim order.
        dates: the owner_date that was written for each; empty where nothing was marked.
        hold: what keeps the rows, where nothing was marked.
        candidates: how many rows were tried; None where the strategy cannot know.
        lost: how many of the candidates others took first; None where the strategy cannot know.
        from_place: the claim began at a place in the order, and found fewer jobs than it wants.
    """

    jobs: Sequence[Any]
    dates: Sequence[datetime] = ()
    hold: Hold | None = None
    candidates: int | None = None
    lost: int | None = None
    from_place: bool = False
