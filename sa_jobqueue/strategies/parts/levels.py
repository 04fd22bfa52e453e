"""Levels: claims go round by round, and priority by priority within a round.

A level is a round, a priority, or a pair of both; :attr:`ClaimSpec.levels` tells where a
queue has them, and why. A claim looks the first level up by one step into the claim
index, takes its due jobs, and goes on to the next level while it wants more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Executable,
    FromClause,
    Integer,
    bindparam,
    select,
    tuple_,
)

from ...dialects import Database
from ...model.status import status_again, status_is, word_literal
from ...sessions.writer import Writer
from ..spec import ClaimSpec
from .adapted import adapted


class Levels:
    """The levels of a queue on one database; without any, a claim is one step."""

    def __init__(self, spec: ClaimSpec, database: Database) -> None:
        self.spec = spec
        self.mapping = spec.mapping
        self.database = database

    def statements(self) -> list[Executable]:
        """List what a claim executes to find its first level."""
        return [self.first] if self.spec.levels else []

    # -- walking --------------------------------------------------------

    def collect(self, writer: Writer, limit: int, take: Callable[..., list[Any]]) -> list[Any]:
        """Call `take` for each level that has ready rows, until there are `limit` rows.

        `take` gets the parameters ``sa_jobqueue_limit``, ``sa_jobqueue_round`` and
        ``sa_jobqueue_priority``, as far as its statement has them.
        """
        if not self.spec.levels:
            return take(sa_jobqueue_limit=limit)
        writer.lock_writes(self.mapping.table)
        taken: list[Any] = []
        for level in self.each(writer):
            taken += take(sa_jobqueue_limit=limit - len(taken), **level)
            if len(taken) >= limit:
                break
        return taken

    def each(self, writer: Writer) -> Iterator[dict[str, Any]]:
        """Look up one level after the other, as parameters, in the order of the roles."""
        roles = self.spec.levels
        found = writer.core(self.first).first()
        while found is not None:
            yield {f"sa_jobqueue_{role}": value for role, value in zip(roles, found, strict=True)}
            after = {_after(role): value for role, value in zip(roles, found, strict=True)}
            looks = (writer.core(statement, after).first() for statement in self.next)
            found = next((level for level in looks if level is not None), None)

    # -- the rows of one level ------------------------------------------

    @cached_property
    def criteria(self) -> list[ColumnElement[bool]]:
        """The criteria that a row is of the level that is claimed now."""
        return [
            self.mapping.attribute(role)
            == bindparam(f"sa_jobqueue_{role}", type_=Integer, required=True)
            for role in self.spec.levels
        ]

    @cached_property
    def order(self) -> tuple[ColumnElement[Any], ...]:
        """The claim order, without the columns that are equal in all rows of a level."""
        fixed: list[Any] = [self.mapping.attribute(role) for role in self.spec.levels]
        return tuple(
            element
            for element in self.spec.order
            if all(element is not attribute for attribute in fixed)
        )

    # -- finding levels -------------------------------------------------

    @cached_property
    def first(self) -> Any:
        """Select the first level that has ready rows, due or not."""
        return self.first_in(self.mapping.table)

    @cached_property
    def next(self) -> list[Any]:
        """Select the first level behind another: the first statement that finds a row has it."""
        table = self.mapping.table
        after = [bindparam(_after(role), type_=Integer) for role in self.spec.levels]
        return [self.first_in(table).where(*criteria) for criteria in self.behind(table, after)]

    def first_in(self, table: FromClause) -> Any:
        """Select the first level in the table, or in an alias of it, that has ready rows."""
        columns, status = self._columns(table), self._of(table, "status")
        leading = [
            adapted(criterion, table) for criterion in (*self.spec.equalities, *self.spec.of_round)
        ]
        is_ready = status_is(status, self.spec.ready)
        first: Any = select(*columns)
        return first.where(*leading, is_ready).order_by(*columns).limit(1)

    def behind(self, table: FromClause, after: Sequence[Any]) -> list[list[ColumnElement[bool]]]:
        """Compare the table's levels with another level, so that the claim index serves.

        Returns:
            Lists of criteria, each for a statement of its own, to be tried in turn.
        """
        own, status = self._columns(table), self._of(table, "status")
        if not self.database.forgets_implied:
            # Only PostgreSQL's index is bounded by a comparison of rows. Elsewhere ask for
            # the next priority of the same round first, then for the next round.
            return [
                [
                    *(column == value for column, value in zip(own[:n], after, strict=False)),
                    own[n] > after[n],
                ]
                for n in reversed(range(len(own)))
            ]
        # PostgreSQL forgets the status that a partial index implies: the docstring of
        # ReadyRows._status_again has the story. With the status in the comparison of rows
        # the planner uses the index even before the first ANALYZE. Where other columns
        # lead the index, such rows are not its beginning, and a LIKE names the status.
        if self.mapping.equality or self.spec.of_round:
            behind = own[0] > after[0] if len(own) == 1 else tuple_(*own) > tuple_(*after)
            return [[behind, status_again(status, self.spec.ready)]]
        return [[tuple_(status, *own) > tuple_(word_literal(self.spec.ready), *after)]]

    def _columns(self, table: FromClause) -> list[Any]:
        return [self._of(table, role) for role in self.spec.levels]

    def _of(self, table: FromClause, role: str) -> Any:
        return table.c[self.mapping.column(role).key]


def _after(role: str) -> str:
    """Name the parameter that holds the level before."""
    return "sa_jobqueue_after" if role == "priority" else f"sa_jobqueue_after_{role}"
