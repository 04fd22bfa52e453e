"""COPY rows into a table of PostgreSQL, where the driver can and the rows allow it.

Rows become the text that COPY reads. INSERT takes the values that have no text here:
arrays, documents, types with an SQL expression, defaults that are functions. COPY made a
load 2.9 times as fast as INSERT; docs/bulk.md has the figures.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, LargeBinary, Table, bindparam
from sqlalchemy.exc import DBAPIError

from ..dialects.connections import as_value


class Copy:
    """COPY rows that have the same columns into a table; :meth:`prepare` makes it."""

    def __init__(self, statement: str, processors: Mapping[str, Any]) -> None:
        self._statement = statement
        self._processors = processors

    @classmethod
    def prepare(cls, connection: Connection, table: Table, names: Sequence[str]) -> Copy | None:
        """Prepare COPY for rows with these column keys; None: COPY cannot take them."""
        cursor = connection.connection.cursor()
        has_copy = hasattr(cursor, "copy_expert") or hasattr(cursor, "copy")
        cursor.close()
        kinds = {name: table.c[name].type.dialect_impl(connection.dialect) for name in names}
        if (
            not has_copy
            or connection.get_execution_options().get("schema_translate_map")
            or any(column.default and column.key not in names for column in table.c)
            or any(
                kind.bind_expression(bindparam("value", type_=kind)) is not None
                for kind in kinds.values()
            )
        ):
            return None
        quote = connection.dialect.identifier_preparer
        quoted = ", ".join(quote.format_column(table.c[name]) for name in names)
        statement = f"COPY {quote.format_table(table)} ({quoted}) FROM STDIN"
        processors = {
            # For bytes, drivers have a processor that wraps them for statements with parameters.
            name: None if isinstance(kind, LargeBinary) else kind.bind_processor(connection.dialect)
            for name, kind in kinds.items()
        }
        return cls(as_value(connection.dialect, statement), processors)

    def insert(self, connection: Connection, rows: Sequence[Mapping[str, Any]]) -> bool:
        """Copy rows in; return False and send nothing where COPY cannot take one of them.

        Raises:
            DBAPIError: as for any statement.
        """
        columns = []
        for name, process in self._processors.items():
            values = [row[name] for row in rows]
            texts = _texts(values if process is None else list(map(process, values)))
            if texts is None:
                return False
            columns.append(texts)
        text = "".join(["\t".join(fields) + "\n" for fields in zip(*columns, strict=True)])
        driver: Any = connection.connection.dbapi_connection
        with self._sqlalchemy_errors(connection), driver.cursor() as cursor:
            if hasattr(cursor, "copy_expert"):  # psycopg2
                cursor.copy_expert(self._statement, io.StringIO(text))
            else:  # psycopg 3
                with cursor.copy(self._statement) as copy:
                    copy.write(text)
        return True

    @contextmanager
    def _sqlalchemy_errors(self, connection: Connection) -> Iterator[None]:
        """Raise the driver's errors as SQLAlchemy's."""
        dialect = connection.dialect
        base: Any = dialect.loaded_dbapi.Error
        driver: Any = connection.connection.dbapi_connection
        try:
            yield
        except base as error:
            gone = dialect.is_disconnect(error, driver, None)
            if gone:
                # Otherwise its rollback would fail, and hide this error.
                connection.invalidate(error)
            raise DBAPIError.instance(
                self._statement, None, error, base, connection_invalidated=gone, dialect=dialect
            ) from error


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
