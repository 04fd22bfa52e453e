"""COPY rows into a table, where the driver can and the rows allow it.

Rows become the text that COPY reads. INSERT takes the values that have no text here:
arrays, documents, types with an SQL expression, defaults that are functions.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

from sqlalchemy import Column, Connection, LargeBinary, Table, bindparam
from sqlalchemy.exc import DBAPIError

from ...dialects.connections import as_value

#: Turns the values of one column into texts; returns None where it cannot.
Texts = Callable[[Sequence[Any]], "list[str] | None"]


class Copy:
    """COPY into some columns of a table; :meth:`prepare` makes it."""

    def __init__(self, statement: str, columns: Mapping[str, Texts]) -> None:
        self._statement = statement
        self._columns = columns

    @classmethod
    def prepare(cls, connection: Connection, table: Table, names: Sequence[str]) -> Copy | None:
        """Prepare COPY for rows that have these columns; None: COPY cannot take them."""
        if _copier(connection) is None:
            return None
        if connection.get_execution_options().get("schema_translate_map"):
            return None
        texts: dict[str, Texts | None] = {
            name: _texts_of(connection, table.c[name]) for name in names
        }
        for column in table.c:
            if column.key not in texts and column.default is not None:
                texts[str(column.key)] = _default_texts(connection, column)
        known = {name: text for name, text in texts.items() if text is not None}
        if len(known) < len(texts):
            return None
        quote = connection.dialect.identifier_preparer
        columns = ", ".join(quote.format_column(table.c[name]) for name in known)
        statement = f"COPY {quote.format_table(table)} ({columns}) FROM STDIN"
        return cls(as_value(connection.dialect, statement), known)

    def insert(self, connection: Connection, rows: Sequence[Mapping[str, Any]]) -> bool:
        """Copy rows in; return False and send nothing where COPY cannot take one of them.

        Raises:
            DBAPIError: as for any statement.
        """
        columns = []
        for name, texts in self._columns.items():
            column = texts([row.get(name) for row in rows])
            if column is None:
                return False
            columns.append(column)
        text = "".join(["\t".join(fields) + "\n" for fields in zip(*columns, strict=True)])
        copy = _copier(connection)
        assert copy is not None
        with _sqlalchemy_errors(connection, self._statement):
            copy(self._statement, text)
        return True


# -- drivers ------------------------------------------------------------


def _copier(connection: Connection) -> Callable[[str, str], None] | None:
    driver: Any = connection.connection.dbapi_connection
    with_cursor = driver.cursor()
    try:
        if hasattr(with_cursor, "copy_expert"):  # psycopg2
            return lambda statement, text: _copy_expert(driver, statement, text)
        if hasattr(with_cursor, "copy"):  # psycopg 3
            return lambda statement, text: _copy(driver, statement, text)
        return None
    finally:
        with_cursor.close()


def _copy_expert(driver: Any, statement: str, text: str) -> None:
    with driver.cursor() as cursor:
        cursor.copy_expert(statement, io.StringIO(text))


def _copy(driver: Any, statement: str, text: str) -> None:
    with driver.cursor() as cursor, cursor.copy(statement) as copy:
        copy.write(text)


class _sqlalchemy_errors:  # noqa: N801 - a context manager, named like a function
    """Raise a driver's errors as SQLAlchemy's."""

    def __init__(self, connection: Connection, statement: str) -> None:
        self._connection, self._statement = connection, statement

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        dialect = self._connection.dialect
        base: Any = dialect.loaded_dbapi.Error
        if not isinstance(error, base):
            return
        original: Any = error
        driver: Any = self._connection.connection.dbapi_connection
        gone = dialect.is_disconnect(original, driver, None)
        if gone:
            # Otherwise its rollback would fail, and hide this error.
            self._connection.invalidate(original)
        raise DBAPIError.instance(
            self._statement,
            None,
            original,
            base,
            connection_invalidated=gone,
            dialect=dialect,
        ) from original


# -- texts --------------------------------------------------------------


def _texts_of(connection: Connection, column: Column[Any]) -> Texts | None:
    kind = column.type.dialect_impl(connection.dialect)
    if kind.bind_expression(bindparam("value", type_=kind)) is not None:
        return None
    # For bytes, drivers have a processor that wraps them for statements with parameters.
    plain = isinstance(kind, LargeBinary)
    bound = None if plain else kind.bind_processor(connection.dialect)

    def texts(values: Sequence[Any]) -> list[str] | None:
        return _texts(values if bound is None else list(map(bound, values)))

    return texts


def _default_texts(connection: Connection, column: Column[Any]) -> Texts | None:
    default: Any = column.default
    texts = _texts_of(connection, column)
    if not default.is_scalar or texts is None:
        return None
    return lambda values: texts([default.arg] * len(values))


def _texts(values: Sequence[Any]) -> list[str] | None:
    kinds = set(map(type, values))
    if not kinds <= _TEXT.keys():
        return None
    if len(kinds) == 1:
        return list(map(_TEXT[kinds.pop()], values))
    return [_TEXT[type(value)](value) for value in values]


def _escaped(text: str) -> str:
    if "\\" in text:
        text = text.replace("\\", "\\\\")
    if text.isprintable():
        return text
    return text.replace("\t", "\\t").replace("\n", "\\n").replace("\r", "\\r")


_TEXT: Mapping[type, Callable[[Any], str]] = {
    type(None): lambda value: "\\N",
    bool: lambda value: "t" if value else "f",
    int: str,
    float: repr,
    Decimal: str,
    str: _escaped,
    UUID: str,
    datetime: datetime.isoformat,
    date: date.isoformat,
    time: time.isoformat,
    bytes: lambda value: f"\\\\x{value.hex()}",
}
