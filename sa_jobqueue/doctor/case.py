"""A case: a queue in its database, and what several checks look at."""

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
from ..sessions.hooks import has_execute_hooks
from ..strategies import ClaimSpec, Strategy
from ..strategies.advisory_session import advisory_session
from .wanted_index import WantedIndex, same_predicate, wanted_claim_index, wanted_reap_index

#: The owner of the claim that is rolled back.
OWNER = "sa-jobqueue doctor"


@dataclass
class Case:
    """A queue in its database.

    Attributes:
        limit: the size of a batch.
        old_snapshot: another transaction's snapshot of this age is a finding.
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
        """The columns of the queue's table."""
        return self.queue.mapping

    @property
    def connection(self) -> Connection:
        """The connection that a claim of the session uses, in its present transaction."""
        return self.session.connection(
            bind_arguments={"mapper": self.mapping.mapper, "clause": update(self.mapping.table)}
        )

    @cached_property
    def database(self) -> Database:
        """The database of the connection."""
        return database_of(self.connection)

    @cached_property
    def examination(self) -> Examination:
        """How plans, indexes and locks are read in this database."""
        return self.database.examination()

    @cached_property
    def strategy(self) -> Strategy:
        """The strategy, with the statements that a claim of the session runs."""
        hooked = has_execute_hooks(self.session)
        return self.queue.plan.built_for(self.database, hooked=hooked)

    # -- indexes and plans ----------------------------------------------

    @cached_property
    def indexes(self) -> list[ServerIndex]:
        """The indexes that the table has in the database."""
        return self.examination.indexes(self.connection, self.mapping.table)

    @cached_property
    def claim(self) -> Search:
        """How the claim finds its jobs."""
        return Search(self, "the claim", wanted_claim_index(self.spec), self._finding_statement)

    @cached_property
    def reap(self) -> Search | None:
        """How reap() finds its claims; None for unmarked claims."""
        if not self.strategy.marks:
            return None
        mapping = self.mapping
        oldest = (
            select(*mapping.key_attributes)
            .where(mapping.has_status(*self.spec.in_progress))
            .order_by(mapping.attribute("owner_date"))
            .limit(self.limit)
        )
        return Search(self, "reap()", wanted_reap_index(self.spec, self.examination), oldest)

    @cached_property
    def _finding_statement(self) -> Executable:
        """The statement of the claim that finds rows: the first with a limit."""
        dialect = self.connection.dialect
        return next(
            statement
            for statement in self.strategy.explainable()
            if "sa_jobqueue_limit" in _parameter_names(statement, dialect)
        )

    def plan(self, statement: Executable, favoured: str | None = None) -> Plan:
        """Explain a statement of the claim; see :meth:`Examination.plan`."""
        connection = self.connection
        parameters = self._parameters(connection, statement)
        return self.examination.plan(
            connection, statement, parameters, self.mapping.table, favoured
        )

    def _parameters(self, connection: Connection, statement: Executable) -> dict[str, Any]:
        known: dict[str, Callable[[], Any]] = {
            "sa_jobqueue_limit": lambda: self.limit,
            "sa_jobqueue_owner": lambda: OWNER,
            "sa_jobqueue_backend": lambda: None,
            **{
                f"sa_jobqueue_{role}": partial(self._first_level, connection, role)
                for role in self.spec.levels
            },
        }
        names = _parameter_names(statement, connection.dialect)
        return {name: value() for name, value in known.items() if name in names}

    def _first_level(self, connection: Connection, role: str) -> Any:
        """Return the round, or the priority, of the jobs that are claimed first."""
        level = connection.execute(self.strategy.ready.levels.first).first()
        return 0 if level is None else level[self.spec.levels.index(role)]

    # -- the claim itself -----------------------------------------------

    @contextmanager
    def claiming(self) -> Iterator[Session]:
        """Give a session that can claim from the queue, and roll back what it does."""
        if self.strategy.name != "advisory":
            yield self.session
            self.session.rollback()
            return
        with advisory_session(self.connection.engine) as session:
            yield session
            session.rollback()


@dataclass
class Search:
    """A statement that finds rows, and the index that should lead it to them.

    Attributes:
        who: what the statement belongs to, as messages name it: the claim, or reap().
    """

    case: Case
    who: str
    wanted: WantedIndex
    statement: Executable

    @cached_property
    def predicate(self) -> str | None:
        """The predicate that the wanted index has on this database."""
        return self.wanted.predicate(self.case.examination, self.case.connection.dialect)

    @cached_property
    def name(self) -> str:
        """The name of the wanted index in this database."""
        return self.wanted.name(self.case.connection.dialect)

    @cached_property
    def fitting(self) -> list[ServerIndex]:
        """The table's indexes with the wanted columns, whatever their predicate."""
        return [
            index for index in self.case.indexes if self.wanted.fitted_by(index, self.predicate)
        ]

    @cached_property
    def serving(self) -> list[ServerIndex]:
        """The fitting indexes that are known to hold all rows of the search."""
        return [
            index
            for index in self.fitting
            if index.predicate is None or same_predicate(index.predicate, self.predicate)
        ]

    @cached_property
    def chosen(self) -> Plan:
        """The plan that the database chooses for the statement."""
        return self.case.plan(self.statement)

    @cached_property
    def possible(self) -> Plan:
        """The plan that it chooses when it must walk an index in order if it can."""
        return self.case.plan(self.statement, self.fitting[0].name if self.fitting else "")

    def __str__(self) -> str:
        where = f" WHERE {self.predicate}" if self.predicate else ""
        return f"{self.who}, which wants {self.wanted}{where}"


def _parameter_names(statement: Any, dialect: Any) -> set[str]:
    """Return the names of a statement's parameters."""
    return set(statement.compile(dialect=dialect).params or {})
