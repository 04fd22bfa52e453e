"""After a large enqueue() each verb reads about as many rows as it needs, whatever was analyzed.

Nobody but the verbs keeps the statistics: autovacuum and InnoDB's own recalculation are off.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any

import pytest
from sqlalchemy import URL, Engine, String, between, text, update
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from sa_jobqueue import (
    JobMixin,
    JobQueue,
    PriorityMixin,
    RetryMixin,
    RoundMixin,
    ScheduleMixin,
    enqueue,
    position,
    reap,
)
from sa_jobqueue.dialects import database_of
from sa_jobqueue.model.mapping import mapping_of
from sa_jobqueue.model.status import JobStatus
from sa_jobqueue.workflow import Workflow
from tests.contract.plans import analyze
from tests.support import make_engine

pytestmark = [
    pytest.mark.load,
    pytest.mark.only_on("postgresql", "mysql", "mariadb"),
    pytest.mark.by_turns("mysql", "mariadb"),
    pytest.mark.xdist_group("reads_after_a_load"),
]

ROWS, ROWS_IN_FULL = 20_000, 5_000_000
LIMIT = 100
#: Claims per key look at many rows for each that they get; nothing reads a share of the queue.
FEW = 5_000


class Base(DeclarativeBase):
    pass


class Notice(JobMixin, Base):
    """A long text by its declared width: from it PostgreSQL guesses few rows."""

    __tablename__ = "load_notice"
    id: Mapped[int] = mapped_column(primary_key=True)
    account: Mapped[int] = mapped_column(default=1)
    text: Mapped[str] = mapped_column(String(255), default="x")


class Errand(JobMixin, PriorityMixin, ScheduleMixin, RetryMixin, Base):
    """A job with each mixin that gives claims an order."""

    __tablename__ = "load_errand"
    id: Mapped[int] = mapped_column(primary_key=True)
    text: Mapped[str] = mapped_column(String(255), default="x")


class Channelled(JobMixin, Base):
    """A queue of which each worker claims a part, by equality."""

    __tablename__ = "load_channelled"
    __queue_args__ = {"equality": ["channel"]}  # noqa: RUF012 - as users write it
    id: Mapped[int] = mapped_column(primary_key=True)
    channel: Mapped[str] = mapped_column(String(10), default="sms")
    text: Mapped[str] = mapped_column(String(255), default="x")


class PerAccount(JobMixin, Base):
    """A queue with an order of its own in each account."""

    __tablename__ = "load_per_account"
    __queue_args__ = {"per_key": ["account"]}  # noqa: RUF012 - as users write it
    id: Mapped[int] = mapped_column(primary_key=True)
    account: Mapped[int]
    text: Mapped[str] = mapped_column(String(255), default="x")


class Reader(JobMixin, RoundMixin, Base):
    """Somebody who gets each mailing."""

    __tablename__ = "load_reader"
    id: Mapped[int] = mapped_column(primary_key=True)
    text: Mapped[str] = mapped_column(String(255), default="x")


class FilmStatus(StrEnum):
    UPLOADED = "uploaded"
    CHECKING = "checking"
    CHECKED = "checked"
    SENDING = "sending"
    PUBLISHED = "published"


class Film(JobMixin, Base):
    """A row that passes through the steps of a workflow."""

    __tablename__ = "load_film"
    __queue_args__ = {  # noqa: RUF012 - as users write it
        "names": {"unclaimed": "uploaded", "claimed": "checking", "done": "published"},
        "ready": ["checked"],
        "during": ["sending"],
    }
    id: Mapped[int] = mapped_column(primary_key=True)
    text: Mapped[str] = mapped_column(String(255), default="x")


films = Workflow(Film, FilmStatus)


@films.step(FilmStatus.UPLOADED, during=FilmStatus.CHECKING, then=FilmStatus.CHECKED)
def check(film: Film) -> None: ...


@films.step(FilmStatus.CHECKED, during=FilmStatus.SENDING, then=FilmStatus.PUBLISHED)
def send(film: Film) -> None: ...


def row(**values: Any) -> Callable[[int], Mapping[str, Any]]:
    return lambda number: {"id": number, "text": "x", **values}


@dataclass(frozen=True)
class Case:
    """A class, its rows by their numbers, and the verb that is counted.

    Attributes:
        before: what has happened to some rows since they were inserted.
        changed: how many rows that are; None: all.
    """

    entity: Any
    row: Callable[[int], Mapping[str, Any]]
    verb: Callable[[Session], Any]
    before: Mapping[str, Any] = field(default_factory=dict)
    changed: int | None = None


def claiming(queue: JobQueue[Any]) -> Callable[[Session], Any]:
    return lambda session: queue.claim(session, owner="w", limit=LIMIT)


def of_account(number: int) -> Mapping[str, Any]:
    return {**row()(number), "account": number % 1_000}


def turning(queue: JobQueue[Any]) -> Callable[[Session], Any]:
    def turn(session: Session) -> None:
        first = queue.claim_rows(session, owner="w", limit=LIMIT)
        queue.turn(session, first, owner="w", limit=LIMIT, delete=True, rows=True)

    return turn


CLAIMED_LONG_AGO = {
    "status": "claimed",
    "owner": "gone",
    "owner_date": datetime(2020, 1, 1, tzinfo=UTC),
}

CASES = {
    "claim": Case(Notice, row(), claiming(JobQueue(Notice))),
    "turn": Case(Notice, row(), turning(JobQueue(Notice))),
    "turn of priorities": Case(
        Errand, lambda number: {**row()(number), "priority": number % 3}, turning(JobQueue(Errand))
    ),
    "claim in strict order": Case(Notice, row(), claiming(JobQueue(Notice, strict_order=True))),
    "claim by equality": Case(
        Channelled, row(channel="sms"), claiming(JobQueue(Channelled, Channelled.channel == "sms"))
    ),
    "claim of priorities": Case(
        Errand, lambda number: {**row()(number), "priority": number % 3}, claiming(JobQueue(Errand))
    ),
    "claim in order of keys": Case(
        PerAccount,
        of_account,
        claiming(JobQueue(PerAccount, serial_by=PerAccount.account)),
    ),
    "claim with limits of keys": Case(
        PerAccount,
        of_account,
        claiming(JobQueue(PerAccount, limit_by={PerAccount.account: 2})),
    ),
    "claim of a round": Case(Reader, row(), claiming(JobQueue(Reader))),
    "claim of a step": Case(Film, row(), claiming(JobQueue(Film))),
    "claim of a second step": Case(
        Film, row(), claiming(films.steps[1].queue), before={"status": "checked"}
    ),
    "position": Case(Notice, row(), lambda session: position(session, session.get(Notice, 50))),
    "reap": Case(
        Notice,
        row(),
        lambda session: reap(session, Notice, lease=timedelta(hours=1), limit=LIMIT),
        before=CLAIMED_LONG_AGO,
        changed=1_000,
    ),
}


@pytest.fixture(params=["never analyzed", "analyzed when empty", "analyzed long ago"])
def history(request: pytest.FixtureRequest) -> str:
    value: str = request.param
    return value


@pytest.fixture
def engine(db_url: URL) -> Iterator[Engine]:
    engine = make_engine(db_url)
    Base.metadata.drop_all(engine)
    Base.metadata.create_all(engine)
    yield engine
    Base.metadata.drop_all(engine)
    engine.dispose()


def leave_alone(engine: Engine, table: str) -> None:
    """Keep the server from analyzing a table by itself."""
    how = (
        "SET (autovacuum_enabled = false)"
        if engine.dialect.name == "postgresql"
        else "STATS_AUTO_RECALC = 0"
    )
    with engine.begin() as connection:
        connection.execute(text(f"ALTER TABLE {table} {how}"))


def finish_some(engine: Engine, case: Case) -> None:
    with Session(engine) as session:
        enqueue(session, case.entity, map(case.row, range(-1_000, 0)))
        done = mapping_of(case.entity).word(JobStatus.DONE)
        session.execute(update(case.entity).values(status=done))
        session.commit()


@pytest.mark.parametrize("name", CASES)
def test_a_verb_reads_few_rows_after_a_large_enqueue(
    engine: Engine, history: str, name: str, request: pytest.FixtureRequest
) -> None:
    case = CASES[name]
    table = case.entity.__table__
    rows = ROWS_IN_FULL if request.config.getoption("full") else ROWS
    leave_alone(engine, table.name)
    if history == "analyzed long ago":
        finish_some(engine, case)
    if history != "never analyzed":
        analyze(engine, table.name)

    with Session(engine) as session:
        enqueue(session, case.entity, map(case.row, range(1, rows + 1)))
        session.commit()

    if case.before:
        with Session(engine) as session:
            new = between(case.entity.id, 1, case.changed or rows)
            session.execute(update(case.entity).where(new).values(case.before))
            session.commit()

    read = rows_read_by(engine, case)

    assert read < FEW


def rows_read_by(engine: Engine, case: Case) -> int:
    with Session(engine) as session:
        connection, table = session.connection(), case.entity.__table__
        examination = database_of(connection).examination()
        before = examination.rows_read(connection, table)
        case.verb(session)
        after = examination.rows_read(connection, table)
        assert before is not None
        assert after is not None
        return after - before
