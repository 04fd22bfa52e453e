"""The table of schedules may not be there yet: then the database's error names the way out."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Table
from sqlalchemy.exc import DBAPIError

from ..dialects import is_missing_table


@contextmanager
def missing_table_named(table: Table) -> Iterator[None]:
    """Add the way out to an error that says that this table is missing; it stays the error."""
    try:
        yield
    except DBAPIError as error:
        if is_missing_table(error) and _names(error, table):
            error.add_detail(
                f"there is no table {table.fullname!r}: create it by a migration or by "
                "create_all(); see docs/schedules.md"
            )
        raise


def _names(error: DBAPIError, table: Table) -> bool:
    """Tell whether the driver's message is about this table, and not about that of a queue."""
    return re.search(rf"\b{re.escape(table.name)}\b", str(error.orig), re.IGNORECASE) is not None
