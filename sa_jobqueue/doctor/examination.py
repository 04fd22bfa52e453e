"""What the doctor asks of a database, and the forms of the answers: findings, indexes, plans."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from functools import cached_property
from importlib import import_module
from typing import Any, ClassVar

from sqlalchemy import Column, Connection, Executable, Table, event, update
from sqlalchemy.orm import Session

from ..databases import Database, database_of
from ..errors import UnsupportedDatabase
from ..model.mapping import QueueMapping
from ..queue import JobQueue
from ..sessions.writer import has_execute_hooks
from ..strategies import ClaimSpec, Strategy


class Severity(StrEnum):
    """How much an answer matters."""

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True)
class Finding:
    """What a check of the doctor has found, in a sentence, and how to mend it.

    Attributes:
        message: what was found.
        fix: how to mend it; empty for a fact.
        severity: ``ok`` for a fact; ``warning`` and ``error`` need a fix.
        is_unchecked: the check could not be made, and `message` says why.
        check: the name of the check.
    """

    message: str
    fix: str = ""
    severity: Severity = Severity.OK
    is_unchecked: bool = False
    check: str = ""

    @classmethod
    def warning(cls, message: str, fix: str) -> Finding:
        """Return a finding that asks for attention."""
        return cls(message, fix, Severity.WARNING)

    @classmethod
    def error(cls, message: str, fix: str) -> Finding:
        """Return a finding that asks for a change."""
        return cls(message, fix, Severity.ERROR)

    @classmethod
    def unchecked(cls, reason: str, fix: str) -> Finding:
        """Return the finding of a check that could not be made."""
        return cls(f"could not be checked, because {reason}", fix, Severity.WARNING, True)

    def __str__(self) -> str:
        fix = f"\n  fix: {self.fix}" if self.fix else ""
        return f"{self.severity} [{self.check}] {self.message}{fix}"


@dataclass(frozen=True)
class Snapshot:
    """A snapshot of others, since which no dead row was removed.

    Attributes:
        holder: who keeps it.
        age: None: the server counts only transactions, and more than 10,000 have passed.
        ending: how to end it, and to keep others short.
    """

    holder: str
    age: timedelta | None
    ending: str


@dataclass(frozen=True)
class IndexColumn:
    """A column of an index, or an expression as the database prints it."""

    name: str
    descending: bool = False

    def __str__(self) -> str:
        return f"{self.name} DESC" if self.descending else self.name

    def reversed(self) -> IndexColumn:
        """Return the column as it is when the index is walked backwards."""
        return IndexColumn(self.name, not self.descending)


@dataclass(frozen=True)
class ServerIndex:
    """An index as the database has it.

    Attributes:
        columns: the declared columns, by which the index is ordered.
        implied: the key columns that the database appends by itself.
        predicate: the condition of a partial index, as the database prints it.
        unique: whether the index refuses a second row of the same values.
        ordered: whether the index can be walked in order.
        unusable: why the planner does not use the index; None: it may.
    """

    name: str
    columns: tuple[IndexColumn, ...]
    implied: tuple[IndexColumn, ...] = ()
    predicate: str | None = None
    unique: bool = False
    ordered: bool = True
    unusable: str | None = None

    @property
    def walked(self) -> tuple[IndexColumn, ...]:
        """The columns that a walk over the index is ordered by."""
        names = {column.name for column in self.columns}
        return (*self.columns, *(column for column in self.implied if column.name not in names))

    def __str__(self) -> str:
        where = f" WHERE {self.predicate}" if self.predicate else ""
        return f"{self.name} ({', '.join(map(str, self.columns))}){where}"


@dataclass(frozen=True)
class Plan:
    """What matters to a claim in a statement's plan.

    Attributes:
        indexes: the indexes by which the queue's table is read.
        sorts: whether more than the claimed rows is sorted.
        rows: how many rows the planner expects to read; None: the plan does not tell.
    """

    indexes: frozenset[str]
    sorts: bool
    rows: int | None = None

    def walks(self, names: Collection[str]) -> bool:
        """Tell whether one of these indexes returns the rows in order."""
        return not self.sorts and not self.indexes.isdisjoint(names)


@dataclass(frozen=True)
class Query:
    """A statement to explain, with its parameters, that reads a queue's table."""

    statement: Executable
    parameters: Mapping[str, Any]
    table: Table


def explained(connection: Connection, words: str, query: Query) -> list[dict[str, Any]]:
    """Return the rows of a plan as the driver returns them, by column name.

    Read past SQLAlchemy's result, whose types are those of the explained statement.
    """
    with _explaining(connection, words):
        result = connection.execute(query.statement, dict(query.parameters))
    cursor: Any = result.cursor
    names = [described[0] for described in cursor.description]
    rows = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
    result.close()
    return rows


@contextmanager
def _explaining(connection: Connection, words: str) -> Iterator[None]:
    """Inside, put these words before each statement of a connection; parameters stay bound."""

    def explain(by: Any, _: Any, statement: str, parameters: Any, *__: Any) -> tuple[str, Any]:
        ours = by is connection
        return (f"{words} {statement}" if ours else statement), parameters

    # On the engine: in SQLAlchemy 2.0.30, a connection whose engine has options has no events.
    engine = connection.engine
    event.listen(engine, "before_cursor_execute", explain, retval=True)
    try:
        yield
    finally:
        event.remove(engine, "before_cursor_execute", explain)


_CAST = re.compile(
    r"::\s*(?:character varying|timestamp with(?:out)? time zone|[\w\"]+)(?:\(\d+\))?(?:\[\])?"
)
_NOISE = re.compile(r"[\s()\[\]\"`]+")


def normalised(predicate: str | None) -> str | None:
    """Return a predicate without the casts, quotes and brackets that databases add in print.

    So ``((status)::text = ANY (ARRAY['a'::text]))`` and ``"status" IN ('a')`` become equal.
    """
    if predicate is None:
        return None
    bare = _NOISE.sub("", _CAST.sub("", predicate))
    bare = re.sub(r"=anyarray", "in", bare, flags=re.IGNORECASE)
    return re.sub(r"<>allarray", "notin", bare, flags=re.IGNORECASE).lower()


# -- a database as the doctor sees it ------------------------------------

#: Where the examination of a database is, by its title.
_OF_DATABASES = {
    "PostgreSQL": ".postgresql:PostgreSQLExamination",
    "MySQL": ".innodb:MySQLExamination",
    "MariaDB": ".innodb:InnoDBExamination",
    "SQLite": ".sqlite:SQLiteExamination",
}


def examination_of(database: Database) -> Examination:
    """Return what the doctor asks of a database.

    Raises:
        UnsupportedDatabase: nobody has written down how its plans are read.
    """
    where = _OF_DATABASES.get(database.title)
    if where is None:
        raise UnsupportedDatabase(
            f"the doctor cannot read the plans of {database}: it examines queues in "
            f"{', '.join(_OF_DATABASES)}"
        )
    module, _, name = where.partition(":")
    found: Examination = getattr(import_module(module, __package__), name)(database)
    return found


class Examination:
    """What the doctor asks of a database; the answers here are those of most databases.

    Attributes:
        explain_words: what is put before a statement to get its plan.
        poolers: the connection poolers that users of this database know.
    """

    explain_words: ClassVar[str]
    poolers: ClassVar[str]

    def __init__(self, database: Database) -> None:
        self.database: Any = database

    def indexes(self, connection: Connection, table: Table) -> list[ServerIndex]:
        """List a table's indexes as the database has them, the primary key's too."""
        raise NotImplementedError

    def plan(self, connection: Connection, query: Query, favoured: str | None = None) -> Plan:
        """Explain a statement without running it.

        Args:
            favoured: the index that the planner is to take if it can, whatever the
                statistics say. On a small table planners scan and sort. "" means any
                index; None means the plan that the statement really has.
        """
        raise NotImplementedError

    # -- a table ----------------------------------------------------------

    def digits_kept(self, connection: Connection, column: Column[Any]) -> int | None:
        """Return how many digits of a second a column of times keeps; None: the database cannot."""
        return None

    def times(self, connection: Connection, column: Column[Any]) -> Iterable[Finding]:
        """Judge how the times of a column, which have a time zone, are compared."""
        return ()

    def storage(self, connection: Connection, table: Table) -> Iterable[Finding]:
        """Judge what keeps the table's rows."""
        return ()

    def statistics(self, connection: Connection, table: Table) -> Iterable[Finding]:
        """Tell how many rows the planner does not know of."""
        return ()

    def dead_rows(self, connection: Connection, table: Table) -> Iterable[Finding]:
        """Tell how many old row versions are not removed yet."""
        return ()

    # -- the server -------------------------------------------------------

    def snapshot_isolation(self, level: str, strategy: str) -> Finding | None:
        """Judge a level whose transactions keep one snapshot; None: it is well."""
        return None

    def settings(self, connection: Connection) -> Iterable[Finding]:
        """Judge the settings of the server that change what transactions may do."""
        return ()

    def snapshots(self, connection: Connection) -> Iterable[Snapshot | Finding]:
        """List the oldest snapshots of others that keep old row versions alive."""
        return ()


# -- the subject of an examination, and the report -----------------------------

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
        return examination_of(self.database)

    @cached_property
    def strategy(self) -> Strategy:
        """The strategy, with the statements that a claim of the session runs."""
        hooked = has_execute_hooks(self.session)
        return self.queue.plan.strategy_on(self.database, hooked=hooked)

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
        first = connection.execute(self.strategy.ready.first_level).first() if levels else None
        values = {
            "sa_jobqueue_limit": BATCH,
            "sa_jobqueue_owner": "sa-jobqueue doctor",
            "sa_jobqueue_backend": None,
            **{f"sa_jobqueue_{role}": first[n] if first else 0 for n, role in enumerate(levels)},
        }
        parameters = {name: values[name] for name in names(statement) if name in values}
        query = Query(statement, parameters, self.mapping.table)
        return self.examination.plan(connection, query, favoured)


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
