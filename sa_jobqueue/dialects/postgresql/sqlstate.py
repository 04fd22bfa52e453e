"""The SQLSTATE of an error, as any of PostgreSQL's drivers keeps it."""

from __future__ import annotations

#: lock_timeout was over.
LOCK_NOT_AVAILABLE = "55P03"

SERIALIZATION_FAILURE = "40001"
DEADLOCK = "40P01"


def sqlstate(error: BaseException | None) -> str | None:
    """Return the five characters of a driver's error; None: it has none."""
    # psycopg 3 and asyncpg; psycopg 2; pg8000.
    for name in ("sqlstate", "pgcode"):
        state: str | None = getattr(error, name, None)
        if state:
            return state
    fields = error.args[0] if error and error.args else None
    return fields.get("C") if isinstance(fields, dict) else None
