"""How each database changes a table in use, and the statements for it.

Alembic's own operations take one column each, and cannot say ``ALGORITHM=INSTANT``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from typing import Any, ClassVar

from sqlalchemy import Column, Connection, Index, Table, inspect, text
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.schema import CreateIndex, DropIndex, ExecutableDDLElement

from ..databases import Database, driver_connection
from ..databases.connections import qualified
from ..databases.sqlite import schema_prefix


def changes_of(database: Database) -> Changes:
    """Return how a database changes tables; of one that we do not know, the portable way."""
    return _BY_TITLE.get(database.title, Changes)(database)


class Changes:
    """How most databases change a table in use."""

    #: ALTER TABLE gives a column another default. Without it there is :meth:`replace_column`, for
    #: which every row must store a value of its own.
    sets_defaults = True

    #: One ALTER TABLE adds, or drops, several columns.
    alters_many = True

    #: The clause at the end of CREATE INDEX that lets others go on writing.
    create_online: ClassVar[str] = ""

    #: An index is built beside the one that it replaces, and takes its name.
    builds_beside = True

    #: Several changes are one transaction.
    together = True

    #: The statements before those of one change. They make the change atomic, and let it wait only
    #: a moment for locks, since everybody who comes later waits behind it.
    begins: ClassVar[tuple[str, ...]] = ("BEGIN",)

    #: How long one attempt of a change waits for a lock, at most; None: as long as any statement.
    longest_wait: ClassVar[timedelta | None] = None

    #: The statements after those of a change, and after a change that failed.
    ends: ClassVar[tuple[str, ...]] = ("COMMIT",)
    fails: ClassVar[tuple[str, ...]] = ("ROLLBACK",)

    def __init__(self, database: Database) -> None:
        self.database = database

    def instant(self, *, drop: bool = False) -> str:
        """Return the clause at the end of ALTER TABLE that refuses a change which rewrites rows."""
        return ""

    def declares(self, connection: Connection, column: Column[Any]) -> bool:
        """Tell whether the table's stored text has a column just so; without `sets_defaults`."""
        raise NotImplementedError

    def replace_column(
        self, connection: Connection, column: Column[Any], declared: Column[Any]
    ) -> None:
        """Declare a column of the table's stored text in another way; without `sets_defaults`."""
        raise NotImplementedError

    def table_lock(self, table: Table) -> tuple[ExecutableDDLElement, str] | None:
        """Return the statements that lock and unlock a table around several changes.

        None: the changes are one transaction, which needs no such lock.
        """
        return None

    def drop_index(self, index: Index, connection: Connection | None) -> ExecutableDDLElement:
        """Return the statement that drops an index, and lets others go on writing where it can.

        Args:
            connection: None: offline.
        """
        return online_index(index, drop=True)

    def swap(
        self, index: Index, built: Index, connection: Connection | None
    ) -> list[ExecutableDDLElement]:
        """Return the statements that drop an index, and give its name to another.

        Args:
            connection: None: offline.
        """
        return [online_index(index, drop=True), rename_index(built, index)]

    def without_transaction(self, connection: Connection) -> AbstractContextManager[None]:
        """Inside, no transaction is open that an application's settings begin under AUTOCOMMIT."""
        return nullcontext()

    def concurrently(self, connection: Connection | None, table: Table) -> bool:
        """Tell whether indexes are built by CREATE INDEX CONCURRENTLY, outside of a transaction.

        When that fails, it leaves an invalid index.

        Args:
            connection: None: offline.
        """
        return False

    def storage_of_queue(self, *, fillfactor: int, dead_rows: int) -> dict[str, str]:
        """Return the storage parameters that suit a table whose rows change often."""
        return {}


_IS_PARTITIONED = text("SELECT relkind = 'p' FROM pg_class WHERE oid = CAST(:table AS regclass)")


class PostgreSQLChanges(Changes):
    """PostgreSQL: indexes are built concurrently."""

    begins = ("BEGIN", "SET LOCAL lock_timeout = '500ms'")
    longest_wait = timedelta(milliseconds=500)

    def concurrently(self, connection: Connection | None, table: Table) -> bool:
        # Of a partitioned table the server builds none in this way.
        if connection is None:
            return True
        asked = {"table": qualified(connection, table)}
        return not connection.execute(_IS_PARTITIONED, asked).scalar_one()

    def storage_of_queue(self, *, fillfactor: int, dead_rows: int) -> dict[str, str]:
        return {
            "fillfactor": str(fillfactor),
            "autovacuum_vacuum_scale_factor": "0",
            "autovacuum_vacuum_threshold": str(dead_rows),
            "autovacuum_analyze_scale_factor": "0",
            "autovacuum_analyze_threshold": str(dead_rows),
        }


_ONLINE = ", ALGORITHM=INPLACE, LOCK=NONE"

#: The versions since which a column is added, and dropped, without a rebuild of the table.
_INSTANT_SINCE = {
    "MySQL": ((8, 0, 12), (8, 0, 29)),
    "MariaDB": ((10, 3, 2), (10, 4)),
}


class InnoDBChanges(Changes):
    """MySQL and MariaDB: each change commits by itself."""

    together = False
    create_online = " ALGORITHM=INPLACE LOCK=NONE"

    # lock_wait_timeout limits the wait for the lock of the table's definition, which every
    # open transaction that used the table shares. One second is the shortest setting.
    begins = ("SET @sa_jobqueue_lock_wait = @@lock_wait_timeout, lock_wait_timeout = 1",)
    longest_wait = timedelta(seconds=1)
    ends = ("SET lock_wait_timeout = @sa_jobqueue_lock_wait",)
    fails = ends

    def instant(self, *, drop: bool = False) -> str:
        since = _INSTANT_SINCE[self.database.title][drop]
        return ", ALGORITHM=INSTANT" if self.database.at_least(*since) else _ONLINE

    def drop_index(self, index: Index, connection: Connection | None) -> ExecutableDDLElement:
        # MariaDB's DROP INDEX has no clause that lets others write.
        return drop_index_by_alter(index, _for_references(index, connection), ending=_ONLINE)

    def swap(
        self, index: Index, built: Index, connection: Connection | None
    ) -> list[ExecutableDDLElement]:
        added = _for_references(index, connection)
        return [drop_index_by_alter(index, added, built=built, ending=_ONLINE)]

    def table_lock(self, table: Table) -> tuple[ExecutableDDLElement, str] | None:
        # Each change commits. A transaction that reads the table in between blocks the next change.
        lock = Statement(lambda to: f"LOCK TABLES {to.preparer.format_table(table)} WRITE")
        return lock, "UNLOCK TABLES"


def _for_references(index: Index, connection: Connection | None) -> dict[str, list[str]]:
    """Return the indexes that foreign keys need when another index is dropped.

    InnoDB makes an index for each foreign key. It drops that index as soon as another index begins
    with the same columns, and then refuses to drop the other one. The new index has the name of the
    foreign key, as InnoDB's own has, so that Alembic does not take it for a change.
    """
    if connection is None or index.table is None:
        return {}
    name, schema = index.table.name, connection.schema_for_object(index.table)
    inspector: Any = inspect(connection)
    columns = {
        found["name"]: found["column_names"] for found in inspector.get_indexes(name, schema=schema)
    }
    preparer = connection.dialect.identifier_preparer
    dropped = columns.pop(preparer.format_index(index).strip("`"), [])
    key = inspector.get_pk_constraint(name, schema=schema)["constrained_columns"]
    others = [*columns.values(), key]
    needed: dict[str, list[str]] = {}
    for reference in inspector.get_foreign_keys(name, schema=schema):
        own = reference["constrained_columns"]
        if dropped[: len(own)] == own and not any(each[: len(own)] == own for each in others):
            needed[str(reference["name"])] = own
            others.append(own)
    return needed


_OF_TABLE = "WHERE type = 'table' AND name = :name COLLATE NOCASE"


class SQLiteChanges(Changes):
    """SQLite: a change locks the whole database for a moment."""

    sets_defaults = False
    alters_many = False
    builds_beside = False  # indexes cannot be renamed
    begins = ("BEGIN IMMEDIATE",)

    @contextmanager
    def without_transaction(self, connection: Connection) -> Iterator[None]:
        """End the transaction of a listener, or of Python 3.12's ``autocommit=False``.

        SQLAlchemy's page on SQLite recommends both: a listener of its begin event says BEGIN, also
        under AUTOCOMMIT, and such a driver is in a transaction at any time.
        """
        driver = driver_connection(connection)
        always = getattr(driver, "autocommit", None) is False
        if always:
            driver.autocommit = True  # commits
        elif driver.in_transaction:
            connection.exec_driver_sql("COMMIT")
        try:
            yield
        finally:
            if always:
                driver.autocommit = False

    def declares(self, connection: Connection, column: Column[Any]) -> bool:
        table: Any = column.table
        stored = connection.execute(
            text(f"SELECT sql FROM {schema_prefix(connection, table)}sqlite_master {_OF_TABLE}"),
            {"name": table.name},
        ).scalar_one()
        return _written(connection, column) in stored

    def replace_column(
        self, connection: Connection, column: Column[Any], declared: Column[Any]
    ) -> None:
        """Edit the stored CREATE TABLE, as SQLite's documentation of ALTER TABLE allows.

        A default that is an expression cannot come with ADD COLUMN where there are rows, and
        no other statement sets one. A new schema_version has all connections read it again.
        """
        table: Any = column.table
        schema = schema_prefix(connection, table)
        version = connection.execute(text(f"PRAGMA {schema}schema_version")).scalar_one()
        old, new = (_written(connection, each) for each in (column, declared))
        edit = f"UPDATE {schema}sqlite_master SET sql = replace(sql, :old, :new) {_OF_TABLE}"
        connection.execute(text("PRAGMA writable_schema = ON"))
        try:
            connection.execute(text(edit), {"name": table.name, "old": old, "new": new})
            connection.execute(text(f"PRAGMA {schema}schema_version = {version + 1}"))
        finally:
            connection.execute(text("PRAGMA writable_schema = RESET"))


def _written(connection: Connection, column: Column[Any]) -> str:
    """Return a column as ADD COLUMN has written it to the table's text, behind a comma.

    The comma tells it from a column whose name only ends alike.
    """
    dialect = connection.dialect
    compiler: Any = dialect.ddl_compiler(dialect, None)  # type: ignore[arg-type]  # a compiler of columns needs no statement
    return f", {compiler.get_column_specification(column)}"


_BY_TITLE: dict[str, type[Changes]] = {
    "PostgreSQL": PostgreSQLChanges,
    "MySQL": InnoDBChanges,
    "MariaDB": InnoDBChanges,
    "SQLite": SQLiteChanges,
}


# -- statements -----------------------------------------------------------


class Statement(ExecutableDDLElement):
    """A statement, which a function writes with the compiler of the database's dialect."""

    inherit_cache = False

    def __init__(self, write: Callable[[Any], str]) -> None:
        self.write = write


@compiles(Statement)
def _compile(element: Statement, compiler: Any, **kw: Any) -> str:
    return element.write(compiler)


def alter_table(
    table: Table, changes: Callable[[Any], Sequence[str]], *, ending: str = ""
) -> Statement:
    """Return an ALTER TABLE.

    Args:
        ending: the clause behind the changes, such as ``", ALGORITHM=INSTANT"``.
    """

    def write(to: Any) -> str:
        return f"ALTER TABLE {to.preparer.format_table(table)} {', '.join(changes(to))}{ending}"

    return Statement(write)


def add_columns(table: Table, columns: Sequence[Column[Any]], *, ending: str) -> Statement:
    """ALTER TABLE .. ADD COLUMN .., ADD COLUMN .."""

    def changes(to: Any) -> list[str]:
        return [f"ADD COLUMN {to.get_column_specification(column)}" for column in columns]

    return alter_table(table, changes, ending=ending)


def drop_columns(table: Table, columns: Sequence[Column[Any]], *, ending: str) -> Statement:
    """ALTER TABLE .. DROP COLUMN .., DROP COLUMN .."""

    def changes(to: Any) -> list[str]:
        return [f"DROP COLUMN {to.preparer.format_column(column)}" for column in columns]

    return alter_table(table, changes, ending=ending)


def set_default(table: Table, column: Column[Any], *, ending: str) -> Statement:
    """ALTER TABLE .. ALTER COLUMN .. SET DEFAULT, with the default that the column declares."""

    def changes(to: Any) -> list[str]:
        default = to.get_column_default_string(column)
        if not default.startswith(("'", "(")):  # MySQL wants parentheses around all others
            default = f"({default})"
        return [f"ALTER COLUMN {to.preparer.format_column(column)} SET DEFAULT {default}"]

    return alter_table(table, changes, ending=ending)


def drop_index_by_alter(
    index: Index, added: Mapping[str, Sequence[str]], *, built: Index | None = None, ending: str
) -> Statement:
    """ALTER TABLE .. ADD INDEX .., DROP INDEX a, perhaps also RENAME INDEX b TO a

    Args:
        added: names and columns of indexes to add.
        built: the index that takes the name of the dropped one; None: none does.
    """

    def changes(to: Any) -> list[str]:
        quote, named = to.preparer.quote, to.preparer.format_index
        found = [
            f"ADD INDEX {quote(name)} ({', '.join(map(quote, added[name]))})" for name in added
        ]
        renamed = [] if built is None else [f"RENAME INDEX {named(built)} TO {named(index)}"]
        return [*found, f"DROP INDEX {named(index)}", *renamed]

    assert index.table is not None
    return alter_table(index.table, changes, ending=ending)


def online_index(index: Index, *, drop: bool = False, ending: str = "") -> Statement:
    """CREATE INDEX or DROP INDEX, with a clause of the database at its end."""
    statement = DropIndex(index) if drop else CreateIndex(index)
    return Statement(lambda to: to.process(statement) + ending)


def rename_index(index: Index, named_as: Index) -> Statement:
    """ALTER INDEX .. RENAME TO .."""

    def write(to: Any) -> str:
        schema = to.preparer.schema_for_object(index.table)
        prefix = f"{to.preparer.quote_schema(schema)}." if schema else ""
        old, new = map(to.preparer.format_index, (index, named_as))
        return f"ALTER INDEX {prefix}{old} RENAME TO {new}"

    return Statement(write)
