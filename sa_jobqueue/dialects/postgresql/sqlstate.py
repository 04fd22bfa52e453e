"""The SQLSTATE of an error, as any of PostgreSQL's drivers keeps it."""

from __future__ import annotations

import re

#: lock_timeout was over.
LOCK_NOT_AVAILABLE = "55P03"

#: statement_timeout was over, or somebody cancelled the statement.
QUERY_CANCELED = "57014"

UNDEFINED_TABLE = "42P01"

#: A text is no number.
INVALID_TEXT = "22P02"

#: read_only_sql_transaction: a standby, or a primary that was demoted.
READ_ONLY = "25006"

SERIALIZATION_FAILURE = "40001"
IN_FAILED_TRANSACTION = "25P02"
DEADLOCK = "40P01"


#: What libpq tells of a refused login, without a SQLSTATE.
_REFUSED = re.compile(r"authentication failed|does not exist|no pg_hba.conf|no password supplied")


def login_is_refused(error: BaseException) -> bool:
    """Tell whether a server answers, and refuses this user or this database."""
    state = sqlstate(error)
    if state is not None:
        return state[:2] in {"28", "3D"}
    return _REFUSED.search(str(error)) is not None and "DatabaseError" in {
        base.__name__ for base in type(error).__mro__
    }


def sqlstate(error: BaseException | None) -> str | None:
    """Return the five characters of a driver's error; None: it has none."""
    # psycopg 3 and asyncpg; psycopg 2; pg8000.
    for name in ("sqlstate", "pgcode"):
        state: str | None = getattr(error, name, None)
        if state:
            return state
    fields = error.args[0] if error and error.args else None
    return fields.get("C") if isinstance(fields, dict) else None
