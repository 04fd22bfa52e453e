"""The case at hand: a queue, a session, and what several checks look at."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property, partial
from typing import Any

from sqlalchemy import Connection, Executable, select, update
from sqlalchemy.orm import Session

from ..dialects import Database, database_of
from ..dialects.examination import Examination, Plan, ServerIndex
from ..model.mapping import QueueMapping
from ..queue import JobQueue
from ..strategies import ClaimSpec, Strategy
from ..strategies.advisory_session import advisory_session
from .wanted import Wanted, same_predicate, wanted_by_reapers, wanted_index

#: Under which a claim is made that is rolled back.
OWNER = "sa-jobqueue doctor"


@dataclass
class Case:
    """One queue in one database.

    Attributes:
        limit: the size of a batch.
        old_snapshot: the age from which on a snapshot of others is old.
    """

    session: Session
    queue: JobQueue[Any]
    limit: int
    old_snapshot: timedelta

    @property
    def spec(self) -> ClaimSpec:
        """What the queue claims."""
        return self.queue.plan.spec

    @property
    def mapping(self) -> QueueMapping:
        """Where the queue's columns are."""
        return self.queue.mapping

    @property
    def connection(self) -> Connection:
        """The connection that the session claims with, in its transaction of now."""
        return self.session.connection(
            bind_arguments={"mapper": self.mapping.mapper, "clause": update(self.mapping.table)}
        )

    @cached_property
    def database(self) -> Database:
        """The database behind it."""
        return database_of(self.connection)

    @cached_property
    def examination(self) -> Examination:
        """Who asks it."""
        return self.database.examination()

    @cached_property
    def strategy(self) -> Strategy:
        """The strategy with the statements that a claim of this session runs."""
        hooked = bool(self.session.dispatch.do_orm_execute)
        return self.queue.plan.built_for(self.database, hooked=hooked)

    # -- indexes and plans ----------------------------------------------

    @cached_property
    def indexes(self) -> list[ServerIndex]:
        """The table's indexes as they are."""
        return self.examination.indexes(self.connection, self.mapping.table)

    @cached_property
    def claim(self) -> Search:
        """How the claim finds its jobs."""
        return Search(self, "the claim", wanted_index(self.spec), self._finding)

    @cached_property
    def reap(self) -> Search | None:
        """How reap() finds its claims; None where a claim marks nothing."""
        if not self.strategy.marks:
            return None
        mapping = self.mapping
        oldest = (
            select(*mapping.key_attributes)
            .where(mapping.has_status(self.spec.during))
            .order_by(mapping.attribute("owner_date"))
            .limit(self.limit)
        )
        return Search(self, "reap()", wanted_by_reapers(self.spec, self.examination), oldest)

    @cached_property
    def _finding(self) -> Executable:
        """The statement of the claim that finds rows: the first that has a limit."""
        dialect = self.connection.dialect
        return next(
            statement
            for statement in self.strategy.statements()
            if "claim_limit" in _names(statement, dialect)
        )

    def plan(self, statement: Executable, favoured: str | None = None) -> Plan:
        """Explain a statement of the claim's; see :meth:`Examination.plan`."""
        connection = self.connection
        parameters = self._parameters(connection, statement)
        return self.examination.plan(
            connection, statement, parameters, self.mapping.table, favoured
        )

    def _parameters(self, connection: Connection, statement: Executable) -> dict[str, Any]:
        known: dict[str, Callable[[], Any]] = {
            "claim_limit": lambda: self.limit,
            "claim_owner": lambda: OWNER,
            "claim_backend": lambda: None,
            **{f"claim_{role}": partial(self._first, connection, role) for role in self.spec.steps},
        }
        names = _names(statement, connection.dialect)
        return {name: value() for name, value in known.items() if name in names}

    def _first(self, connection: Connection, role: str) -> Any:
        """Return the round, or the priority, that a claim begins with."""
        step = connection.execute(self.strategy.first_step).first()
        return 0 if step is None else step[self.spec.steps.index(role)]

    # -- the claim itself -----------------------------------------------

    @contextmanager
    def claiming(self) -> Iterator[Session]:
        """Give a session in which the queue can be claimed, and roll back what it does."""
        if self.strategy.name != "advisory":
            yield self.session
            self.session.rollback()
            return
        with advisory_session(self.connection.engine) as session:
            yield session
            session.rollback()


@dataclass
class Search:
    """One statement that finds rows, and the index that is to lead it to them.

    Attributes:
        who: whose statement it is, in words.
    """

    case: Case
    who: str
    wanted: Wanted
    statement: Executable

    @cached_property
    def predicate(self) -> str | None:
        """The predicate of the index on this database."""
        return self.wanted.predicate(self.case.examination, self.case.connection.dialect)

    @cached_property
    def name(self) -> str:
        """What the index is called in this database."""
        return self.wanted.name(self.case.connection.dialect)

    @cached_property
    def fitting(self) -> list[ServerIndex]:
        """The indexes of the table with the columns that are wanted, of whatever predicate."""
        return [
            index for index in self.case.indexes if self.wanted.fitted_by(index, self.predicate)
        ]

    @cached_property
    def serving(self) -> list[ServerIndex]:
        """Those that are known to hold all the rows that are looked for."""
        return [
            index
            for index in self.fitting
            if index.predicate is None or same_predicate(index.predicate, self.predicate)
        ]

    @cached_property
    def chosen(self) -> Plan:
        """The plan that the statement has."""
        return self.case.plan(self.statement)

    @cached_property
    def possible(self) -> Plan:
        """The plan that it has where an index is walked in order if there is one."""
        return self.case.plan(self.statement, self.fitting[0].name if self.fitting else "")

    def __str__(self) -> str:
        where = f" WHERE {self.predicate}" if self.predicate else ""
        return f"{self.who}, which wants {self.wanted}{where}"


def _names(statement: Any, dialect: Any) -> set[str]:
    """Name the parameters of a statement."""
    return set(statement.compile(dialect=dialect).params or {})
