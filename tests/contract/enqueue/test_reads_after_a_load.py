"""After a large enqueue() each verb reads about as many rows as it needs, whatever was analyzed.

Nobody but the verbs keeps the statistics: autovacuum and InnoDB's own recalculation are off.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
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
    __queue_args__ = {"ready": ["checked"]}  # noqa: RUF012 - as users write it
    id: Mapped[int] = mapped_column(primary_key=True)
    text: Mapped[str] = mapped_column(String(255), default="x")


class Errand(JobMixin, PriorityMixin, ScheduleMixin, RetryMixin, RoundMixin, Base):
    """A job with each mixin that gives claims an order."""

    __tablename__ = "load_errand"
    id: Mapped[int] = mapped_column(primary_key=True)
    text: Mapped[str] = mapped_column(String(255), default="x")


class PerAccount(JobMixin, Base):
    """A queue of which each worker claims a part, with an order of its own in each account."""

    __tablename__ = "load_per_account"
    __queue_args__ = {"equality": ["channel"], "per_key": ["account"]}  # noqa: RUF012 - as users write it
    id: Mapped[int] = mapped_column(primary_key=True)
    account: Mapped[int]
    channel: Mapped[str] = mapped_column(String(10), default="sms")
    text: Mapped[str] = mapped_column(String(255), default="x")


Rows = Callable[[int], Mapping[str, Any]]


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


def claim(queue: JobQueue[Any], **before: Any) -> Verb:
    return Verb(lambda session: queue.claim(session, owner="w", limit=LIMIT), before)


def turn(queue: JobQueue[Any]) -> Verb:
    def turn(session: Session) -> None:
        first = queue.claim_rows(session, owner="w", limit=10)
        queue.turn(session, first, owner="w", limit=LIMIT, delete=True, rows=True)

    return Verb(turn)


CLAIMED_LONG_AGO = {
    "status": "claimed",
    "owner": "gone",
    "owner_date": datetime(2020, 1, 1, tzinfo=UTC),
}

SMS = PerAccount.channel == "sms"

#: Each class with its rows by their numbers, and its verbs, one after the other.
CASES: dict[Any, tuple[Rows, Mapping[str, Verb]]] = {
    Notice: (
        lambda number: {"id": number, "text": "x"},
        {
            "claim": claim(JobQueue(Notice)),
            "turn": turn(JobQueue(Notice)),
            "claim in strict order": claim(JobQueue(Notice, strict_order=True)),
            "position": Verb(lambda session: position(session, session.get(Notice, 500))),
            "claim behind finished jobs": Verb(
                claim(JobQueue(Notice)).run, before={"status": "done"}, changed=15_000
            ),
            "reap": Verb(
                lambda session: reap(session, Notice, lease=timedelta(hours=1), limit=LIMIT),
                before=CLAIMED_LONG_AGO,
                changed=1_000,
            ),
            "claim of a second step": claim(JobQueue(Notice, ready="checked"), status="checked"),
        },
    ),
    Errand: (
        lambda number: {"id": number, "text": "x", "priority": number % 3},
        {
            "claim of priorities and rounds": claim(JobQueue(Errand)),
            "turn of priorities and rounds": turn(JobQueue(Errand)),
        },
    ),
    PerAccount: (
        lambda number: {"id": number, "text": "x", "account": number % 1_000, "channel": "sms"},
        {
            "claim by equality": claim(JobQueue(PerAccount, SMS)),
            "claim in order of keys": claim(
                JobQueue(PerAccount, SMS, serial_by=PerAccount.account)
            ),
            "claim with limits of keys": claim(
                JobQueue(PerAccount, SMS, limit_by={PerAccount.account: 2})
            ),
        },
    ),
}


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


@pytest.mark.parametrize(
    ("entity", "history"),
    [
        (Notice, "never analyzed"),
        (Notice, "analyzed when empty"),
        (Notice, "analyzed long ago"),
        (Errand, "analyzed when empty"),
        (PerAccount, "analyzed long ago"),
    ],
)
def test_verbs_read_few_rows_after_a_large_enqueue(
    engine: Engine, entity: Any, history: str, full: bool
) -> None:
    row, verbs = CASES[entity]
    leave_alone(engine, entity.__tablename__)
    if history == "analyzed long ago":
        with Session(engine) as session:
            enqueue(session, entity, map(row, range(-1_000, 0)))
            session.execute(update(entity).values(status="done"))
            session.commit()
    if history != "never analyzed":
        analyze(engine, entity.__tablename__)

    there = insert_by_copies(engine, entity, row, ROWS_IN_FULL - ROWS) if full else 0
    with Session(engine) as session:
        enqueue(session, entity, map(row, range(there + 1, there + ROWS + 1)))
        session.commit()
    read = {name: rows_read_by(engine, entity, verb) for name, verb in verbs.items()}

    assert {verb: rows for verb, rows in read.items() if rows >= FEW} == {}


def insert_by_copies(engine: Engine, entity: Any, row: Rows, rows: int) -> int:
    """Insert rows that nobody analyzes: a few, which the database copies."""
    table = entity.__table__
    with engine.begin() as connection:
        connection.execute(insert(entity), list(map(row, range(1, COPIED + 1))))
    for there in range(COPIED, rows, COPIED):
        others = [column for column in table.c if column.name != "id"]
        copied = select(table.c.id + there, *others).where(between(table.c.id, 1, COPIED))
        with engine.begin() as connection:
            connection.execute(insert(table).from_select(["id", *others], copied))
    return rows


def rows_read_by(engine: Engine, entity: Any, verb: Verb) -> int:
    with Session(engine) as session:
        if verb.before:
            changed = between(entity.id, 1, verb.changed) if verb.changed else true()
            session.execute(update(entity).where(changed).values(verb.before))
            session.commit()
        connection = session.connection()
        before = rows_read_of_tables(connection)
        verb.run(session)
        return rows_read_of_tables(connection) - before
