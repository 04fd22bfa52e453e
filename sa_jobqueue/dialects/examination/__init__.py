"""What the doctor asks a database about its plans, indexes and server, and the findings' form.

``Database.examination()`` returns an :class:`Examination`. A subclass answers for one
database: how it explains a statement, which indexes it has, what it counts.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Any, ClassVar

from sqlalchemy import Column, ColumnElement, Connection, Executable, Index, Table, event

from ..capabilities import Capabilities


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


class Examination:
    """The doctor's questions, and the answers of a database that cannot tell.

    Attributes:
        explain_words: what is put before a statement to get its plan.
        poolers: the connection poolers that users of this database know.
    """

    explain_words: ClassVar[str] = "EXPLAIN"
    poolers: ClassVar[str] = "PgBouncer or ProxySQL"

    def __init__(self, database: Capabilities) -> None:
        self.database = database

    # -- indexes and plans ----------------------------------------------

    def indexes(self, connection: Connection, table: Table) -> list[ServerIndex]:
        """List a table's indexes as the database has them, the primary key's too."""
        raise NotImplementedError

    def predicate(self, index: Index) -> ColumnElement[bool] | None:
        """Return the condition that makes a declared index partial on this database."""
        return None

    def plan(
        self,
        connection: Connection,
        statement: Executable,
        parameters: Mapping[str, Any],
        table: Table,
        favoured: str | None = None,
    ) -> Plan:
        """Explain a statement without running it.

        Args:
            favoured: the index that the planner is to take if it can, whatever the
                statistics say. On a small table planners scan and sort. "" means any
                index; None means the plan that the statement really has.
        """
        with self.favouring(connection, statement, table, favoured) as explainable:
            rows = explained(connection, self.explain_words, explainable, parameters)
        return self.read_plan(connection, table, rows)

    @contextmanager
    def favouring(
        self, connection: Connection, statement: Executable, table: Table, index: str | None
    ) -> Iterator[Executable]:
        """Give the statement whose plan uses the favoured index; see :meth:`plan`."""
        yield statement

    def read_plan(
        self, connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]]
    ) -> Plan:
        """Read the rows that the database returned as a statement's plan."""
        raise NotImplementedError

    def time_digits(self, connection: Connection, column: Column[Any]) -> int | None:
        """Return how many digits of a second a column of times keeps; None: the database cannot."""
        return None

    def lacks_zone(self, connection: Connection, column: Column[Any]) -> bool:
        """Tell whether a column's times are compared in the time zone of each session."""
        return False

    def misplaced_time(self, connection: Connection, column: Column[Any]) -> str | None:
        """Return a time whose form puts it elsewhere in the order of times; None: there is none."""
        return None

    def lacks_transactions(self, connection: Connection, table: Table) -> str | None:
        """Return the name of a storage engine that does not roll back; None: the table's does."""
        return None

    # -- the server -----------------------------------------------------

    def waiting_at_most(
        self, connection: Connection, time: timedelta
    ) -> AbstractContextManager[None]:
        """Inside, give up on locks after this time."""
        return nullcontext()

    def driver_behind_pooler(self, connection: Connection) -> str | None:
        """Return which settings of this driver a pooler may need; None: it needs none."""
        return None

    def snapshot_isolation(self, level: str, strategy: str) -> Finding | None:
        """Judge a level whose transactions keep one snapshot; None: it is well."""
        return None

    def settings(self, connection: Connection) -> Iterable[Finding]:
        """Judge the settings of the server that change what transactions may do."""
        return ()

    def processes(self, connection: Connection) -> Iterable[Finding]:
        """Tell whether this user sees the locks and the connections of others."""
        return ()

    def snapshots(self, connection: Connection) -> Iterable[Snapshot | Finding]:
        """List the oldest snapshots of others that keep old row versions alive."""
        return ()

    def dead_rows(self, connection: Connection, table: Table) -> Iterable[Finding]:
        """Tell how many old row versions are not removed yet."""
        return ()


def explained(
    connection: Connection, words: str, statement: Executable, parameters: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Return the rows of a plan as the driver returns them, by column name.

    Read past SQLAlchemy's result, whose types are those of the explained statement.
    """
    with _explaining(connection, words):
        result = connection.execute(statement, dict(parameters))
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
