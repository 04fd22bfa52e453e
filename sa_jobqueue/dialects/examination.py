"""What a doctor asks a database about itself, and how the answers look.

``Database.examination()`` returns one of these. A subclass answers for one
database: how it explains a statement, which indexes it has, what it counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar

from sqlalchemy import ColumnElement, Connection, Executable, Index, Table, event

if TYPE_CHECKING:
    from .capabilities import Database, Version


class Severity(StrEnum):
    """How much an answer matters."""

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True)
class Answer:
    """What an examination found, in a sentence, and what mends it."""

    message: str
    fix: str = ""
    severity: Severity = Severity.OK

    @classmethod
    def warning(cls, message: str, fix: str) -> Answer:
        """Make an answer that asks for attention."""
        return cls(message, fix, Severity.WARNING)

    @classmethod
    def error(cls, message: str, fix: str) -> Answer:
        """Make an answer that asks for a change."""
        return cls(message, fix, Severity.ERROR)

    @classmethod
    def unchecked(cls, reason: str, fix: str) -> Answer:
        """Make the answer to a question that could not be asked."""
        return cls.warning(f"could not be checked, because {reason}", fix)


@dataclass(frozen=True)
class IndexColumn:
    """A column of an index, or an expression as the database prints it."""

    name: str
    descending: bool = False

    def __str__(self) -> str:
        return f"{self.name} DESC" if self.descending else self.name

    def reversed(self) -> IndexColumn:
        """Return it as it is met when the index is walked backwards."""
        return IndexColumn(self.name, not self.descending)


@dataclass(frozen=True)
class ServerIndex:
    """An index as the database has it.

    Attributes:
        columns: those that it was made with, and that it is ordered by.
        included: those that it only holds: INCLUDE.
        implied: the key that the database puts behind them by itself.
        predicate: of a partial index, as the database prints it.
        ordered: whether it can be walked in order.
        unusable: why the planner does not use it; None: it may.
    """

    name: str
    columns: tuple[IndexColumn, ...]
    included: tuple[str, ...] = ()
    implied: tuple[IndexColumn, ...] = ()
    predicate: str | None = None
    ordered: bool = True
    unusable: str | None = None

    @property
    def walked(self) -> tuple[IndexColumn, ...]:
        """The columns whose order a walk over the index keeps."""
        names = {column.name for column in self.columns}
        return (*self.columns, *(column for column in self.implied if column.name not in names))

    def mentions(self, column: str) -> bool:
        """Tell whether a change of this column is a change of the index."""
        texts = [*(part.name for part in self.columns), *self.included, self.predicate or ""]
        return any(re.search(rf"\b{re.escape(column)}\b", text) for text in texts)

    def __str__(self) -> str:
        include = f" INCLUDE ({', '.join(self.included)})" if self.included else ""
        where = f" WHERE {self.predicate}" if self.predicate else ""
        return f"{self.name} ({', '.join(map(str, self.columns))}){include}{where}"


@dataclass(frozen=True)
class Plan:
    """A statement's plan, as far as a claim is concerned.

    Attributes:
        text: as the database prints it.
        indexes: by which the queue's table is read.
        sorts: whether more than the claimed rows is sorted.
        rows: how many rows the planner thinks will be read; None: it does not say.
    """

    text: str
    indexes: frozenset[str]
    sorts: bool
    rows: int | None = None

    def walks(self, names: frozenset[str]) -> bool:
        """Tell whether one of these indexes gives the rows in order."""
        return not self.sorts and bool(self.indexes & names)


class Examination:
    """The questions, and the answers of a database that has nothing to tell.

    Attributes:
        updates_in_place: a row may be updated without touching any index, if none
            holds a changed column.
        support_ends: the last day of updates, by the beginning of the version.
        short_lived: versions whose updates ended with the next one.
        lock_words: what a claim locks, where that cannot be counted.
        poolers: those that users of this database know.
        ending_snapshots: how an old snapshot is ended, and others are kept short.
    """

    updates_in_place: ClassVar[bool] = False
    support_ends: ClassVar[Mapping[Version, date]] = {}
    short_lived: ClassVar[frozenset[Version]] = frozenset()
    lock_words: ClassVar[str] = ""
    poolers: ClassVar[str] = "PgBouncer or ProxySQL"
    ending_snapshots: ClassVar[str] = "end the transaction"

    def __init__(self, database: Database) -> None:
        self.database = database

    # -- indexes and plans ----------------------------------------------

    def indexes(self, connection: Connection, table: Table) -> list[ServerIndex]:
        """List a table's indexes as the database has them, the primary key's too."""
        raise NotImplementedError

    def predicate(self, index: Index) -> ColumnElement[bool] | None:
        """Return what makes a declared index partial on this database."""
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
            favoured: an index that is to be taken if it can be, whatever the
                statistics say: on a small table planners scan and sort. Empty:
                any. None: the plan that the statement has.
        """
        raise NotImplementedError

    # -- what a claim costs ---------------------------------------------

    @contextmanager
    def waiting_at_most(self, connection: Connection, time: timedelta) -> Iterator[None]:
        """Give up on locks after this time."""
        yield

    def rows_read(self, connection: Connection, table: Table) -> int | None:
        """Count the rows read so far in this transaction; None: nobody counts."""
        return None

    def rows_locked(self, connection: Connection, table: Table) -> int | Answer | None:
        """Count the rows that this transaction has locked; None: those that it claimed."""
        return None

    # -- the server -----------------------------------------------------

    def isolation(self, level: str, strategy: str) -> Answer:
        """Judge the level that transactions of the caller's begin with."""
        return Answer(f"transactions begin as {level}")

    def processes(self, connection: Connection) -> Answer | None:
        """Tell whether the list of connections is visible; None: there is none."""
        return None

    def oldest_snapshot(self, connection: Connection, table: Table) -> timedelta | Answer | None:
        """Return the age of the oldest transaction of others that keeps old row versions."""
        return None

    def garbage(self, connection: Connection, table: Table) -> Answer | None:
        """Tell how many old row versions wait to be removed."""
        return None


@contextmanager
def explaining(connection: Connection, words: str) -> Iterator[None]:
    """Put these words before each statement, its parameters bound as ever."""

    def explain(by: Any, _: Any, statement: str, parameters: Any, *__: Any) -> tuple[str, Any]:
        ours = by is connection
        return (f"{words} {statement}" if ours else statement), parameters

    # On the engine: SQLAlchemy 2.0.30 knows no events of a connection whose engine has options.
    engine = connection.engine
    event.listen(engine, "before_cursor_execute", explain, retval=True)
    try:
        yield
    finally:
        event.remove(engine, "before_cursor_execute", explain)


def explained(
    connection: Connection, words: str, statement: Executable, parameters: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Return the rows of a plan as the driver gives them, by the names of their columns.

    Past the result's own types, which are those of the explained statement.
    """
    with explaining(connection, words):
        result = connection.execute(statement, dict(parameters))
    cursor: Any = result.cursor
    names = [described[0] for described in cursor.description]
    rows = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
    result.close()
    return rows


def qualified(connection: Connection, table: Table) -> str:
    """Return a table's name as it stands in SQL, with its schema."""
    quote = connection.dialect.identifier_preparer.quote
    schema = connection.schema_for_object(table)
    return f"{quote(schema)}.{quote(table.name)}" if schema else quote(table.name)


_CAST = re.compile(
    r"::\s*(?:character varying|timestamp with(?:out)? time zone|[\w\"]+)(?:\(\d+\))?(?:\[\])?"
)
_NOISE = re.compile(r"[\s()\[\]\"`]+")


def normalised(predicate: str | None) -> str | None:
    """Return a predicate without what databases add when they print it.

    ``((status)::text = ANY (ARRAY['a'::text]))`` and ``"status" IN ('a')`` are the same then.
    """
    if predicate is None:
        return None
    bare = _NOISE.sub("", _CAST.sub("", predicate))
    return re.sub(r"=anyarray", "in", bare, flags=re.IGNORECASE).lower()
