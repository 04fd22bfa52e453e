"""A database whose clock is stepped: the difference is a row, which every reading of it adds.

No test may set the clock of a server that others use, and SQLite's is the machine's. So the SQL of
the library's clock, ``utc_now()``, becomes the database's own clock plus this row, in processes
that ask for it. The claim, the ticks and the times in the rows then go by the stepped clock.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    Connection,
    Integer,
    Table,
    literal_column,
    select,
    update,
)
from sqlalchemy.ext.compiler import compiles

from sa_jobqueue import utc_now
from sa_jobqueue.dialects.clock import as_utc
from sa_jobqueue.dialects.innodb import _utc_now as _innodb
from sa_jobqueue.dialects.postgresql import _utc_now as _postgresql
from sa_jobqueue.dialects.sqlite import _utc_now as _sqlite

from .models import Base

CLOCK = Table(
    "scheduled_clock",
    Base.metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("step", BigInteger, nullable=False),
)

_STEP: ColumnElement[int] = literal_column("(SELECT step FROM scheduled_clock)")

_CLOCKS: dict[str, Callable[..., str]] = {
    "sqlite": _sqlite,
    "postgresql": _postgresql,
    "mysql": _innodb,
    "mariadb": _innodb,
}


def use_stepped_clock() -> None:
    """Have this process read the stepped clock from now on."""
    for dialect, clock in _CLOCKS.items():
        _step(dialect, clock)


def _step(dialect: str, clock: Callable[..., str]) -> None:
    @compiles(utc_now, dialect)
    def stepped(element: Any, compiler: Any, **kw: Any) -> str:
        shift: Any = sum(element.clauses.clauses, _STEP)
        return clock(utc_now(shift), compiler, **kw)


def step_clock(connection: Connection, by: timedelta) -> None:
    """Step the clock, and commit."""
    connection.execute(update(CLOCK).values(step=CLOCK.c.step + by // timedelta(microseconds=1)))
    connection.commit()


def stepped_now(connection: Connection) -> datetime:
    """Read the stepped clock."""
    now, step = connection.execute(select(utc_now(), CLOCK.c.step)).one()
    connection.commit()
    return as_utc(now) + timedelta(microseconds=step)
