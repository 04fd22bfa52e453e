"""The clock: the database's own, in UTC, with microseconds.

No statement binds the client's time, so a client whose clock is an hour off
claims, finishes and schedules like any other.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import ColumnElement, DateTime, String, literal_column, select
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


def time_of(session: Any) -> datetime:
    """Return the time of a session's database, or of a connection's."""
    return as_utc(session.execute(select(utc_now())).scalar_one())


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


# -- how each database reads its clock -----------------------------------


@compiles(utc_now, "postgresql")
def _postgresql_now(element: utc_now, compiler: Any, **kw: Any) -> str:
    # now() is the time at which the transaction began: the lease of a claim in an old
    # transaction would be over at once. clock_timestamp() differs from row to row.
    if not element.clauses.clauses:
        return "statement_timestamp()"
    shift = compiler.process(element.clauses, **kw)
    return f"(statement_timestamp() + {shift} * interval '1 microsecond')"


@compiles(naive_utc_now, "postgresql")
def _naive_utc_now(element: naive_utc_now, compiler: Any, **kw: Any) -> str:
    # PostgreSQL would read the column's times in the zone of the session.
    return f"({_postgresql_now(element, compiler, **kw)} AT TIME ZONE 'UTC')"


@compiles(utc_now, "mysql", "mariadb")
def _innodb_now(element: utc_now, compiler: Any, **kw: Any) -> str:
    if not element.clauses.clauses:
        return "UTC_TIMESTAMP(6)"
    shift = compiler.process(element.clauses, **kw)
    return f"(UTC_TIMESTAMP(6) + INTERVAL {shift} MICROSECOND)"


@compiles(clock_default, "mysql", "mariadb")
def _innodb_default(element: clock_default, compiler: Any, **kw: Any) -> str:
    # MySQL takes an expression since 8.0.13; not connected, it is the newest.
    version = getattr(compiler.dialect, "server_version_info", None)
    if compiler.dialect.is_mariadb or not version or version >= (8, 0, 13):
        return f"({compiler.process(utc_now(), **kw)})"
    return f"'{LONG_AGO}'"


#: The format of a time that SQLAlchemy stores, without the last three of its six digits.
SQLITE_MILLISECONDS: ColumnElement[str] = literal_column("'%Y-%m-%d %H:%M:%f'")

_SQLITE_SHIFT: ColumnElement[str] = literal_column("'%+.6f seconds'")


@compiles(utc_now, "sqlite")
def _sqlite_now(element: utc_now, compiler: Any, **kw: Any) -> str:
    # SQLite's clock counts milliseconds; three zeros make six digits, so that the text
    # compares with the times that SQLAlchemy stores.
    shift = ""
    if element.clauses.clauses:
        microseconds = compiler.process(element.clauses, **kw)
        shift = f", printf({compiler.process(_SQLITE_SHIFT)}, {microseconds} / 1000000.0)"
    return f"(strftime({compiler.process(SQLITE_MILLISECONDS)}, 'now'{shift}) || '000')"
