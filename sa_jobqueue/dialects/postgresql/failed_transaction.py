"""A transaction in which a statement failed: PostgreSQL answers its COMMIT with ROLLBACK."""

from __future__ import annotations

from typing import Any

from ..after_commit import fetch_all
from .sqlstate import IN_FAILED_TRANSACTION, sqlstate

#: How psycopg 2 and 3 number the state of a transaction in which a statement has failed.
_IN_ERROR = 3


def told_failure(driver: Any) -> bool | None:
    """Tell whether a statement of the transaction has failed; None: the driver does not tell."""
    status = getattr(getattr(driver, "info", None), "transaction_status", None)
    return None if status is None else bool(status == _IN_ERROR)


def has_failed(driver: Any, errors: type[Exception]) -> bool:
    """Tell whether the server will answer a COMMIT with ROLLBACK, and no error.

    Raises:
        Exception: the driver's error of a connection that is lost. asyncpg forgets its
            transaction then, and SQLAlchemy would take the COMMIT for done.
    """
    told = told_failure(driver)
    if told is not None:
        return told
    try:  # other drivers, such as asyncpg, do not tell; a failed transaction refuses this
        fetch_all(driver, "SELECT 1")
    except errors as error:
        if sqlstate(error) != IN_FAILED_TRANSACTION:
            raise
        return True
    return False
