"""The subject of an examination, what several checks look at, and the report."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from typing import Any

from sqlalchemy import Connection, update
from sqlalchemy.orm import Session

from ..dialects import Database, database_of
from ..dialects.examination import Examination, Finding, Plan, ServerIndex, Severity
from ..model.mapping import QueueMapping
from ..queue import JobQueue
from ..sessions.writer import has_execute_hooks
from ..strategies import ClaimSpec, Strategy

#: The size of the batches whose claim is explained.
BATCH = 100


@dataclass
class Subject:
    """A queue in its database.

    Attributes:
        old_snapshot: another transaction's snapshot of this age is a finding.
    """

    session: Session
    queue: JobQueue[Any]
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
        """How plans, indexes and the server are read in this database."""
        return self.database.examination()

    @cached_property
    def strategy(self) -> Strategy:
        """The strategy, with the statements that a claim of the session runs."""
        hooked = has_execute_hooks(self.session)
        return self.queue.plan.built_for(self.database, hooked=hooked)

    @cached_property
    def indexes(self) -> list[ServerIndex]:
        """The indexes that the table has in the database."""
        return self.examination.indexes(self.connection, self.mapping.table)

    def claim_plan(self, favoured: str | None = None) -> Plan:
        """Explain the statement of the claim that finds rows; see :meth:`Examination.plan`."""
        connection, levels = self.connection, self.spec.levels

        def names(statement: Any) -> Any:
            return statement.compile(dialect=connection.dialect).params

        statements = self.strategy.statements(from_head=True)
        statement = next(each for each in statements if "sa_jobqueue_limit" in names(each))
        first = connection.execute(self.strategy.ready.levels.first).first() if levels else None
        values = {
            "sa_jobqueue_limit": BATCH,
            "sa_jobqueue_owner": "sa-jobqueue doctor",
            "sa_jobqueue_backend": None,
            **{f"sa_jobqueue_{role}": first[n] if first else 0 for n, role in enumerate(levels)},
        }
        parameters = {name: values[name] for name in names(statement) if name in values}
        return self.examination.plan(
            connection, statement, parameters, self.mapping.table, favoured
        )


@dataclass(frozen=True)
class Report:
    """All that was found about a queue in its database.

    Attributes:
        findings: what needs a fix, errors first.
        facts: what is as it should be.
    """

    queue: str
    database: str
    findings: tuple[Finding, ...]
    facts: tuple[Finding, ...]

    @property
    def errors(self) -> tuple[Finding, ...]:
        """The findings that make claims slow, wrong or impossible."""
        return tuple(found for found in self.findings if found.severity is Severity.ERROR)

    @property
    def warnings(self) -> tuple[Finding, ...]:
        """The findings that ask for attention, and what could not be checked."""
        return tuple(found for found in self.findings if found.severity is Severity.WARNING)

    def __str__(self) -> str:
        head = f"{self.queue} on {self.database}"
        return "\n".join([head, *map(str, self.findings), *map(str, self.facts)])
