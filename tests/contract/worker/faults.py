"""Faults of a turn: what goes wrong at which statement of a worker."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from sqlalchemy import URL, CheckConstraint, Engine, NullPool, String, select
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from sa_jobqueue import JobMixin, RetryMixin
from tests.support import heard as heard
from tests.support import make_engine


def transient(alias: str) -> Exception:
    """A deadlock, or a busy database, as the driver reports it."""
    if alias == "postgresql":
        error: Exception = Exception("deadlock detected")
        error.pgcode = "40P01"  # type: ignore[attr-defined]  # as psycopg2 sets it
    elif alias == "sqlite":
        error = Exception("database is locked")
        error.sqlite_errorcode = 5  # type: ignore[attr-defined]  # as sqlite3 sets it
    else:
        error = Exception(1213, "Deadlock found")
    return error


class Base(DeclarativeBase):
    pass


class Picky(JobMixin, RetryMixin, Base):
    """A queue whose table refuses one letter in its errors, and what is bad or stuck.

    What is bad cannot be finished, but failed; what is stuck stays claimed.
    """

    __tablename__ = "picky"
    __table_args__ = (
        CheckConstraint("NOT (status = 'done' AND name = 'bad')"),
        CheckConstraint("NOT (status <> 'claimed' AND attempts > 0 AND name = 'stuck')"),
        CheckConstraint("last_error IS NULL OR last_error NOT LIKE '%→%'"),
    )
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(20))


def add_picky(session: Session, *names: str) -> None:
    for name in names:
        session.add(Picky(name=name, max_attempts=2))
        session.flush()
    session.commit()


def picky_states(session: Session) -> dict[str, tuple[str, int]]:
    session.rollback()
    return {job.name: (job.status, job.attempts) for job in session.scalars(select(Picky))}


class Fault(Exception):
    """An error that no driver knows."""


def refused(alias: str) -> Exception:
    return Fault("refused")


def refused_by_network(dbapi: Any) -> Exception:
    if hasattr(dbapi, "asyncpg"):  # which raises what the system raises
        return ConnectionRefusedError("nobody listens")
    error: Exception = dbapi.OperationalError(2003, "connection refused")
    return error


def deadlock(alias: str) -> Exception:
    return OperationalError("SELECT 1", {}, transient(alias))


@contextmanager
def failing(
    engine: Engine, goes_wrong: Callable[[str], object], error: Callable[[], BaseException]
) -> Iterator[list[str]]:
    """Let statements of an engine go wrong, and collect them.

    Args:
        goes_wrong: tells whether this statement does.
    """
    met: list[str] = []

    def meet(connection: Any, cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        text = f"{' '.join(statement.split())} {parameters}"
        if goes_wrong(text):
            met.append(text)
            raise error()

    with heard(engine, "before_cursor_execute", meet):
        yield met


def renewal_of(table: str) -> Callable[[str], bool]:
    """Return what tells whether a statement renews claims of a table."""
    return lambda text: bool(
        re.match(rf"UPDATE {table} (FORCE INDEX \(\w+\) )?SET owner_date", text)
    )


class Faults:
    """Count the statements of a run, and make those of some numbers go wrong.

    Args:
        at: the number of the statement that goes wrong, and of how many after it.
        fault: raises, or breaks the connection.
    """

    def __init__(self, at: int, fault: Callable[[Any], None], *, times: int = 1) -> None:
        self.seen = 0
        self._at = range(at, at + times)
        self._fault = fault

    def before(self, connection: Any, *_: Any) -> None:
        number, self.seen = self.seen, self.seen + 1
        if number in self._at:
            self._fault(connection)


def faults_in(engine: Engine, faults: Faults) -> AbstractContextManager[None]:
    return heard(engine, "before_cursor_execute", faults.before)


class LostAnswer:
    """Lose the answer of the COMMIT of this number, and the connection with it.

    Args:
        when_lost: called when it is lost.
        committed: the COMMIT has succeeded; False: its transaction is rolled back.

    Attributes:
        seen: how many COMMITs there were.
    """

    def __init__(
        self,
        engine: Engine,
        number: int,
        when_lost: Callable[[], object] = lambda: None,
        *,
        committed: bool = True,
    ) -> None:
        self.seen = 0
        self._when_lost = when_lost
        self._committed = committed
        self._dialect: Any = engine.dialect
        self._number = number

    def __enter__(self) -> None:
        self._dialect.do_commit = self._commit_and_break

    def __exit__(self, *_: object) -> None:
        del vars(self._dialect)["do_commit"]

    def _commit_and_break(self, connection: Any) -> None:
        number, self.seen = self.seen, self.seen + 1
        is_lost = number == self._number
        if self._committed or not is_lost:
            type(self._dialect).do_commit(self._dialect, connection)
        if is_lost:
            self._when_lost()
            error = OperationalError("COMMIT", {}, Exception("gone"))
            error.connection_invalidated = True
            raise error


def kill(url: URL, alias: str) -> Callable[[Any], None]:
    """Return what ends the connection that is about to run a statement."""

    def end(connection: Any) -> None:
        number = "pg_backend_pid()" if alias == "postgresql" else "CONNECTION_ID()"
        cursor = connection.connection.cursor()
        cursor.execute(f"SELECT {number}")
        (own,) = cursor.fetchone()
        cursor.close()
        with make_engine(url, poolclass=NullPool).connect() as beside:
            if alias == "postgresql":
                beside.exec_driver_sql(f"SELECT pg_terminate_backend({own}, 5000)")
            else:
                beside.exec_driver_sql(f"KILL {own}")

    return end
