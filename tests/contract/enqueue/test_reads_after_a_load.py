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
from sqlalchemy import URL, Engine, String, between, insert, select, text, true, update
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
from sa_jobqueue.model.mapping import mapping_of
from sa_jobqueue.model.status import JobStatus
from sa_jobqueue.workflow import Workflow
from tests.contract.plans import analyze, rows_read_of_tables
from tests.support import make_engine

pytestmark = [
    pytest.mark.load,
    pytest.mark.only_on("postgresql", "mysql", "mariadb"),
    pytest.mark.by_turns("mysql", "mariadb"),
    pytest.mark.xdist_group("reads_after_a_load"),
]

#: In full the last rows come by enqueue(), and those before by plain INSERTs.
ROWS, ROWS_IN_FULL = 20_000, 5_000_000
LIMIT = 100
#: Rows that the database copies at once: accounts and priorities come again after so many.
COPIED = 3_000
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
class Verb:
    """A verb whose rows are counted.

    Attributes:
        before: what has happened to some rows since they were inserted.
        changed: how many rows that are; None: all.
    """

    run: Callable[[Session], Any]
    before: Mapping[str, Any] = field(default_factory=dict)
    changed: int | None = None


@dataclass(frozen=True)
class Case:
    """A class, its rows by their numbers, and its verbs, one after the other."""

    entity: Any
    row: Callable[[int], Mapping[str, Any]]
    verbs: Mapping[str, Verb]


def claim(queue: JobQueue[Any], **before: Any) -> Verb:
    return Verb(lambda session: queue.claim(session, owner="w", limit=LIMIT), before)


def of_account(number: int) -> Mapping[str, Any]:
    return {**row()(number), "account": number % 1_000}


def turning(queue: JobQueue[Any]) -> Callable[[Session], Any]:
    def turn(session: Session) -> None:
        first = queue.claim_rows(session, owner="w", limit=10)
        queue.turn(session, first, owner="w", limit=LIMIT, delete=True, rows=True)

    return turn


CLAIMED_LONG_AGO = {
    "status": "claimed",
    "owner": "gone",
    "owner_date": datetime(2020, 1, 1, tzinfo=UTC),
}

CASES = {
    "notices": Case(
        Notice,
        row(),
        {
            "claim": claim(JobQueue(Notice)),
            "turn": Verb(turning(JobQueue(Notice))),
            "claim in strict order": claim(JobQueue(Notice, strict_order=True)),
            "claim behind finished jobs": Verb(
                claim(JobQueue(Notice)).run, before={"status": "done"}, changed=15_000
            ),
            "position": Verb(lambda session: position(session, session.get(Notice, 50))),
            "reap": Verb(
                lambda session: reap(session, Notice, lease=timedelta(hours=1), limit=LIMIT),
                before=CLAIMED_LONG_AGO,
                changed=1_000,
            ),
        },
    ),
    "channels": Case(
        Channelled,
        row(channel="sms"),
        {"claim by equality": claim(JobQueue(Channelled, Channelled.channel == "sms"))},
    ),
    "errands": Case(
        Errand,
        lambda number: {**row()(number), "priority": number % 3},
        {
            "claim of priorities": claim(JobQueue(Errand)),
            "turn of priorities": Verb(turning(JobQueue(Errand))),
        },
    ),
    "accounts": Case(
        PerAccount,
        of_account,
        {
            "claim in order of keys": claim(JobQueue(PerAccount, serial_by=PerAccount.account)),
            "claim with limits of keys": claim(
                JobQueue(PerAccount, limit_by={PerAccount.account: 2})
            ),
        },
    ),
    "readers": Case(Reader, row(), {"claim of a round": claim(JobQueue(Reader))}),
    "films": Case(
        Film,
        row(),
        {
            "claim of a step": claim(JobQueue(Film)),
            "claim of a second step": claim(films.steps[1].queue, status="checked"),
        },
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
def test_verbs_read_few_rows_after_a_large_enqueue(
    engine: Engine, history: str, name: str, full: bool
) -> None:
    case = CASES[name]
    table = case.entity.__table__
    leave_alone(engine, table.name)
    if history == "analyzed long ago":
        finish_some(engine, case)
    if history != "never analyzed":
        analyze(engine, table.name)

    there = insert_by_copies(engine, case, ROWS_IN_FULL - ROWS) if full else 0
    with Session(engine) as session:
        enqueue(session, case.entity, map(case.row, range(there + 1, there + ROWS + 1)))
        session.commit()
    read = {verb: rows_read_by(engine, case, case.verbs[verb]) for verb in case.verbs}

    assert {verb: rows for verb, rows in read.items() if rows >= FEW} == {}


def insert_by_copies(engine: Engine, case: Case, rows: int) -> int:
    """Insert rows that nobody analyzes: a few, which the database copies."""
    table = case.entity.__table__
    with engine.begin() as connection:
        connection.execute(insert(case.entity), list(map(case.row, range(1, COPIED + 1))))
    for there in range(COPIED, rows, COPIED):
        others = [column for column in table.c if column.name != "id"]
        copied = select(table.c.id + there, *others).where(between(table.c.id, 1, COPIED))
        with engine.begin() as connection:
            connection.execute(insert(table).from_select(["id", *others], copied))
    return rows


def rows_read_by(engine: Engine, case: Case, verb: Verb) -> int:
    with Session(engine) as session:
        if verb.before:
            changed = between(case.entity.id, 1, verb.changed) if verb.changed else true()
            session.execute(update(case.entity).where(changed).values(verb.before))
            session.commit()
        connection = session.connection()
        before = rows_read_of_tables(connection)
        verb.run(session)
        return rows_read_of_tables(connection) - before
