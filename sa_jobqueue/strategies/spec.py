"""What a claim is about: which rows, in which order, for whom, and what came of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any

from sqlalchemy import ColumnElement, True_
from sqlalchemy.orm import Session
from sqlalchemy.sql.operators import and_ as and_operator
from sqlalchemy.sql.operators import eq

from ..fence.token import Hold
from ..model.mapping import QueueMapping
from .limits import WAIT, KeyLimit


@dataclass(frozen=True, eq=False)
class ClaimSpec:
    """Which rows a queue claims, and in which order.

    Attributes:
        where: the caller's predicate, joined by AND.
        order_by: replaces the mapping's order; the primary key ends it.
        ready, during: the status that a claim leaves, and the one it writes.
        strict: one claimer at a time, in exact order.
        limits: how many jobs of a key may be claimed at a time.
        on_retry: whether a job that waits for its retry keeps those of its key waiting.
    """

    mapping: QueueMapping
    where: tuple[ColumnElement[bool], ...]
    order_by: tuple[ColumnElement[Any], ...]
    ready: str
    during: str
    strict: bool = False
    limits: tuple[KeyLimit, ...] = ()
    on_retry: str = WAIT

    @cached_property
    def order(self) -> tuple[ColumnElement[Any], ...]:
        """The whole claim order, the primary key last."""
        # The key of the table that holds the status: that of a joined subclass is
        # not in the claim index.
        order: list[Any] = [*(self.order_by or self.mapping.order), *self.mapping.keys]
        return tuple(order)

    @cached_property
    def own_order(self) -> bool:
        """Whether the order is the one that the mixins' columns make."""
        return not self.order_by and self.mapping.args.order_by is None

    @cached_property
    def steps(self) -> tuple[str, ...]:
        """The roles that claims go through one value after the other: round, priority.

        With priorities and schedules in one index, the jobs of a priority that
        are not yet due stand between the due ones of this priority and those of
        the next: a claim in index order would walk over all of them. So do those of
        a round, unless the predicate names the one that is claimed.
        """
        complete = len(self.equalities) == len(self.mapping.equality)
        if not (self.own_order and self.mapping.has("run_at") and complete):
            return ()
        fixed = {"round"} if self.of_round or self._leads("round") else set()
        roles = ("round", "priority")
        return tuple(role for role in roles if self.mapping.has(role) and role not in fixed)

    def _leads(self, role: str) -> bool:
        """Tell whether the index is led by the column of this role."""
        if not self.mapping.has(role):
            return False
        own = self.mapping.attribute(role).expression
        return any(own.compare(leading.expression) for leading in self.mapping.equality)

    @cached_property
    def served(self) -> bool:
        """Whether the claim index serves the predicate and the order alone."""
        if self.order_by:
            return False
        if len(self.equalities) < len(self.mapping.equality):
            return False
        return len(_flat(self.where)) == len(self.equalities) + len(self.of_round)

    @cached_property
    def partitioned(self) -> bool:
        """Whether the model says of its table that it is partitioned.

        A locking read in claim order looks at the head of every partition, to take
        the first of them. InnoDB keeps all of those locked: with eight partitions
        a claim of 1 row locked 8, and others did not see the other seven.
        """
        return any(option.endswith("_partition_by") for option in self.mapping.table.kwargs)

    @cached_property
    def equalities(self) -> list[ColumnElement[bool]]:
        """Those of the criteria that compare a column which leads the claim index."""
        return self._comparing(*self.mapping.equality)

    @cached_property
    def of_round(self) -> list[ColumnElement[bool]]:
        """The criterion that names one round, where rounds come first in the claim order."""
        mapping = self.mapping
        if not mapping.has("round") or mapping.args.order_by is not None or self._leads("round"):
            return []
        found = self._comparing(mapping.attribute("round"))
        return found if len(found) == 1 else []

    @cached_property
    def where_round_ranges(self) -> list[ColumnElement[bool]]:
        """The criteria, with a range of one in place of ``round = n``.

        To PostgreSQL's planner a column that equals a constant orders nothing: then the
        primary key has the claim order too, and each claim walked over all rows of which
        the round had done already.
        """
        if not self.of_round:
            return list(self.where)
        round_, number = self.of_round[0].left, self.of_round[0].right
        others = [one for one in _flat(self.where) if one is not self.of_round[0]]
        return [round_.between(number, number), *others]

    def _comparing(self, *attributes: Any) -> list[ColumnElement[bool]]:
        """List the criteria that compare one of these for equality."""
        wanted = [attribute.expression for attribute in attributes]
        return [
            criterion
            for criterion in _flat(self.where)
            if (column := _compared_column(criterion)) is not None
            and any(column.compare(one) for one in wanted)
        ]


def _flat(criteria: Sequence[Any]) -> list[Any]:
    """List the criteria that are joined by AND, those inside an and_() too."""
    flat: list[Any] = []
    for criterion in criteria:
        if getattr(criterion, "operator", None) is and_operator:
            flat += _flat(list(criterion.clauses))
        elif not isinstance(criterion, True_):
            flat.append(criterion)
    return flat


def _compared_column(criterion: Any) -> ColumnElement[Any] | None:
    if getattr(criterion, "operator", None) is eq:
        column: ColumnElement[Any] = criterion.left
        return column
    return None


@dataclass(frozen=True)
class Request:
    """One call of claim(): for whom, how many, and as what."""

    owner: str | None
    limit: int
    rows: bool = False
    candidates_from: Session | None = None


@dataclass(frozen=True)
class Taken:
    """What a strategy hands back.

    Attributes:
        jobs: entities or rows, in claim order.
        dates: the owner_date that was written for each; empty where none was.
        hold: what keeps them, where nothing was written.
        candidates, lost: None where the strategy cannot know them.
    """

    jobs: Sequence[Any]
    dates: Sequence[datetime] = ()
    hold: Hold | None = None
    candidates: int | None = None
    lost: int | None = None
