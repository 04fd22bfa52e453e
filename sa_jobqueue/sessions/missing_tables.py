"""Raise an error with the way out if the application has not created a table of the library."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from sqlalchemy import Table

from ..dialects import is_missing_table
from ..dialects.connections import driver_errors
from ..errors import MissingTable


@contextmanager
def missing_tables_named(tables: Callable[[], Iterable[Table]]) -> Iterator[None]:
    """Raise MissingTable where the database does not have one of the tables.

    Args:
        tables: returns the tables; called only after an error of the database.

    Raises:
        MissingTable: it names the table and the way out.
    """
    try:
        yield
    except Exception as error:  # a handle_error listener may raise what it likes
        if not is_missing_table(error):
            raise
        message = " ".join(map(str, driver_errors(error)))
        for table in tables():
            if re.search(rf"\b{re.escape(table.name)}\b", message, re.IGNORECASE):
                raise MissingTable(
                    f"there is no table {table.fullname!r} in the database: create the tables that "
                    "are missing by metadata.create_all(engine), or by a migration, as `alembic "
                    "revision --autogenerate` writes it"
                ) from error
        raise
