"""The clock: the database's own, in UTC, with microseconds.

No statement binds the client's time, so a client whose clock is an hour off
claims, finishes and schedules like any other. Each database's ``database.py``
says how its clock is read.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import DateTime, String
from sqlalchemy.engine import Dialect
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import TypeDecorator

#: Where counted microseconds begin; a run_at of this time means: due at once.
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class utc_now(FunctionElement[datetime]):  # noqa: N801 - reads as the SQL function that it is
    """The time at which the statement began, optionally some microseconds later.

    It is the same for every row of a statement. ``utc_now(shift)`` takes
    an expression for the microseconds, such as a bound parameter.
    """

    name = "utc_now"
    inherit_cache = True
    type: Any = DateTime(timezone=True)


class naive_utc_now(utc_now):  # noqa: N801 - as above
    """The same in UTC without a time zone, to compare with a column that has none."""

    name = "naive_utc_now"
    inherit_cache = True
    type: Any = DateTime()


def as_utc(value: datetime) -> datetime:
    """Attach UTC to a naive value, convert an aware one."""
    if value.tzinfo is None:
        return value.replace(tzinfo=UTC)
    return value.astimezone(UTC)


class clock_default(FunctionElement[datetime]):  # noqa: N801 - as above
    """The server default of a time: the database's own clock, in UTC.

    ::

        sa.Column("run_at", timestamp_type(), server_default=clock_default(), nullable=False)

    MySQL before 8.0.13 takes no expression for a default; there it is a constant, 1970-01-01.
    """

    name = "clock_default"
    inherit_cache = True
    type: Any = DateTime(timezone=True)


#: The default of a time where it has to be a constant, as MySQL and MariaDB reflect it.
LONG_AGO = "1970-01-01 00:00:00.000000"


@compiles(clock_default)
def _clock_default(element: clock_default, compiler: Any, **kw: Any) -> str:
    return str(compiler.process(utc_now(), **kw))


class UtcText(TypeDecorator[datetime]):
    """A UTC time that the database returns as text, parsed once for equal rows.

    All rows of a claim have the same time. Where a driver makes a datetime of each, a
    hundred rows cost more than half a millisecond.
    """

    impl = String
    cache_ok = True

    def result_processor(self, dialect: Dialect, coltype: Any) -> Any:
        """Return the function that parses a value, and remembers the last."""
        known: tuple[str | None, datetime | None] = (None, None)

        def read(text: str | None) -> datetime | None:
            nonlocal known
            last, moment = known
            if text != last:
                moment = None if text is None else datetime.fromisoformat(text).replace(tzinfo=UTC)
                known = (text, moment)
            return moment

        return read
