"""SQLite: a change locks the whole database for a moment."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

from sqlalchemy import Column, Connection, Table, text

from ..connections import driver_connection
from . import SchemaChanges


class SQLiteSchemaChanges(SchemaChanges):
    """How SQLite changes tables."""

    sets_defaults: ClassVar[bool] = False
    alters_many: ClassVar[bool] = False
    builds_beside: ClassVar[bool] = False  # indexes cannot be renamed
    begins: ClassVar[tuple[str, ...]] = ("BEGIN IMMEDIATE",)

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
        table = _table(column)
        stored = connection.execute(
            text(f"SELECT sql FROM {_schema(connection, table)}sqlite_master {_OF_TABLE}"),
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
        table = _table(column)
        schema = _schema(connection, table)
        version = connection.execute(text(f"PRAGMA {schema}schema_version")).scalar_one()
        connection.execute(text("PRAGMA writable_schema = ON"))
        try:
            connection.execute(
                text(
                    f"UPDATE {schema}sqlite_master SET sql = replace(sql, :old, :new) {_OF_TABLE}"
                ),
                {
                    "name": table.name,
                    "old": _written(connection, column),
                    "new": _written(connection, declared),
                },
            )
            connection.execute(text(f"PRAGMA {schema}schema_version = {version + 1}"))
        finally:
            connection.execute(text("PRAGMA writable_schema = RESET"))


_OF_TABLE = "WHERE type = 'table' AND name = :name COLLATE NOCASE"


def _table(column: Column[Any]) -> Table:
    assert isinstance(column.table, Table)
    return column.table


def _schema(connection: Connection, table: Table) -> str:
    quote = connection.dialect.identifier_preparer.quote_schema
    return f"{quote(table.schema)}." if table.schema else ""


def _written(connection: Connection, column: Column[Any]) -> str:
    """Return a column as ADD COLUMN has written it to the table's text, behind a comma.

    The comma tells it from a column whose name only ends alike.
    """
    dialect = connection.dialect
    compiler: Any = dialect.ddl_compiler(dialect, None)  # type: ignore[arg-type]  # a compiler of columns needs no statement
    return f", {compiler.get_column_specification(column)}"
