"""After a large enqueue() each verb reads as few rows as it needs, whatever was analyzed before.

Nobody but the verbs keeps the statistics: autovacuum and InnoDB's own recalculation are off.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import URL, Engine, String, between, text, true, update
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
from tests.contract.owners.restricted_user import restricted_user
from tests.contract.plans import analyze, rows_read_of_tables
from tests.support import make_engine, statements_seen

pytestmark = [
    pytest.mark.load,
    pytest.mark.only_on("postgresql", "mysql", "mariadb"),
    pytest.mark.by_turns("mysql", "mariadb"),
    pytest.mark.xdist_group("reads_after_a_load"),
]

ROWS = 20_000
LIMIT = 100
#: Claims per key look at many rows for each that they get; nothing reads a share of the queue.
FEW = 5_000


class Base(DeclarativeBase):
    pass


class Notice(JobMixin, Base):
    """A long text by its declared width: from it PostgreSQL guesses few rows."""

    __tablename__ = 'load_notice "%s"'
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
    """Tables that no server analyzes by itself."""
    engine = make_engine(db_url)
    Base.metadata.drop_all(engine)
    Base.metadata.create_all(engine)
    by_hand = "SET (autovacuum_enabled = false)"
    how = by_hand if engine.dialect.name == "postgresql" else "STATS_AUTO_RECALC = 0"
    with engine.begin() as connection:
        for table in Base.metadata.sorted_tables:
            connection.execute(text(f"ALTER TABLE {quoted(engine, table)} {how}"))
    yield engine
    Base.metadata.drop_all(engine)
    engine.dispose()


def quoted(engine: Engine, table: Any) -> str:
    """Return a table's name for text(), which doubles percent signs itself."""
    return engine.dialect.identifier_preparer.format_table(table).replace("%%", "%")


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
    engine: Engine, entity: Any, history: str
) -> None:
    row, verbs = CASES[entity]
    if history == "analyzed long ago":
        with Session(engine) as session:
            enqueue(session, entity, map(row, range(-1_000, 0)))
            session.execute(update(entity).values(status="done"))
            session.commit()
    if history != "never analyzed":
        analyze(engine, quoted(engine, entity.__table__))

    with Session(engine) as session:
        enqueue(session, entity, map(row, range(1, ROWS + 1)))
        session.commit()
    read = {name: rows_read_by(engine, entity, verb) for name, verb in verbs.items()}

    assert {verb: rows for verb, rows in read.items() if rows >= FEW} == {}


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


# What PostgreSQL is told of new rows


def notices(count: int, first: int = 1) -> list[dict[str, Any]]:
    return [{"id": number, "text": "x"} for number in range(first, first + count)]


@pytest.mark.only_on("postgresql")
def test_a_table_that_has_hardly_grown_is_not_analyzed_again(engine: Engine) -> None:
    with Session(engine) as session, statements_seen(engine) as seen:
        enqueue(session, Notice, notices(60_000))
        session.commit()
        analyzed = [statement for statement in seen if statement.startswith("ANALYZE")]
        assert len(analyzed) == 1
        seen.clear()

        enqueue(session, Notice, notices(5_000, 60_001))

        assert not [statement for statement in seen if statement.startswith("ANALYZE")]


@pytest.mark.only_on("postgresql")
def test_a_user_who_may_not_analyze_inserts_all_the_same_and_is_told(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "sa_jobqueue.enqueue")
    with restricted_user(engine) as theirs, Session(theirs) as session:
        assert enqueue(session, Notice, notices(ROWS)) == ROWS
        session.commit()

    assert "20000 rows are new in load_notice" in caplog.text


@pytest.mark.only_on("postgresql")
def test_under_autocommit_nothing_can_fail_after_the_rows_are_there(engine: Engine) -> None:
    own = engine.execution_options(isolation_level="AUTOCOMMIT")
    with Session(own) as session, statements_seen(engine) as seen:
        enqueue(session, Notice, notices(ROWS))

    assert not [statement for statement in seen if statement.startswith("ANALYZE")]
