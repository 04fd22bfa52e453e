"""The table of docs/columns.md, compared with the code on every database and strategy."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any, TypeAlias

import pytest
from sqlalchemy import URL, Engine, create_engine, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from sa_jobqueue import (
    Claim,
    JobMixin,
    PriorityMixin,
    RetryMixin,
    ScheduleMixin,
    cancel,
    cancel_claimed,
    claim,
    complete,
    enqueue,
    fail,
    prune,
    reap,
    release,
    renew,
    reprioritize,
    retry,
)
from sa_jobqueue.dialects import database_of
from sa_jobqueue.dialects.clock import as_utc, utc_now
from sa_jobqueue.strategies import STRATEGIES

from .markdown import page, table

LINES = table(page("docs/columns.md"), "verb")
CLAIMER = "the claimer"
COLUMNS = ("status", "owner", "owner_date", "attempts")

State: TypeAlias = Mapping[str, Any]


class Base(DeclarativeBase):
    """The base of this test's tables."""


class Parcel(JobMixin, PriorityMixin, ScheduleMixin, RetryMixin, Base):
    __tablename__ = "columns_parcel"

    id: Mapped[int] = mapped_column(primary_key=True)


class Postcard(JobMixin, Base):
    """A job without RetryMixin."""

    __tablename__ = "columns_postcard"

    id: Mapped[int] = mapped_column(primary_key=True)


# The actions: each takes a session and jobs, claimed or not.


def nothing(session: Session, jobs: Any) -> None:
    """Leave claimed jobs claimed."""


def take_back(session: Session, jobs: Any) -> None:
    """Reap by force, whatever the owner."""
    reap(session, type(jobs[0]), max_runtime=timedelta(0))


FINISHES: Mapping[str, Callable[[Session, Any], object]] = {
    "complete, kept": lambda session, jobs: complete(session, jobs, delete=False),
    "complete, deleted": lambda session, jobs: complete(session, jobs, delete=True),
    "fail, attempts remain": lambda session, jobs: fail(session, jobs, error="why"),
    "fail, attempts used up": lambda session, jobs: fail(session, jobs, error="why"),
    "fail, no RetryMixin": lambda session, jobs: fail(session, jobs),
    "release": release,
    "renew": renew,
    "cancel_claimed": cancel_claimed,
    "reap, attempts remain": take_back,
    "reap, attempts used up": take_back,
    "reap, no RetryMixin": take_back,
}
CHANGES: Mapping[str, Callable[[Session, Any], object]] = {
    "cancel": cancel,
    "retry": retry,
    "reprioritize": lambda session, jobs: reprioritize(session, jobs, 5),
    "prune": lambda session, _: prune(session, Parcel, older_than=timedelta(0)),
}
GIVEN: Mapping[str, Callable[[Session, Any], object]] = {
    "unclaimed": release,
    "claimed": nothing,
    "done": complete,
    "failed": fail,
    "cancelled": cancel_claimed,
}


@pytest.fixture(scope="module")
def engine(db_url: URL) -> Iterator[Engine]:
    """Give an engine with this test's tables."""
    engine = create_engine(db_url)
    Base.metadata.drop_all(engine)
    Base.metadata.create_all(engine)
    yield engine
    Base.metadata.drop_all(engine)
    engine.dispose()


@pytest.fixture
def session(engine: Engine) -> Iterator[Session]:
    """Give a session on empty tables, on one connection: claims by advisory locks need that."""
    with engine.begin() as connection:
        for emptied in Base.metadata.tables.values():
            connection.execute(emptied.delete())
    with engine.connect() as connection, Session(connection) as session:
        yield session


def strategies_of(session: Session, kind: str) -> list[str]:
    """Name the strategies of this database that mark, or those that hold."""
    database = database_of(session.connection())
    return [
        name
        for name, strategy in STRATEGIES.items()
        if strategy.marks is (kind == "marked") and strategy.refusal(database) is None
    ]


def read(session: Session, entity: type[Any]) -> State | None:
    """Read the only row as this transaction sees it, or None."""
    row = session.connection().execute(select(entity.__table__)).mappings().one_or_none()
    if row is None:
        return None
    state = {name: row.get(name) for name in COLUMNS}
    if state["owner_date"] is not None:
        state["owner_date"] = as_utc(state["owner_date"])
    return state


def time_of(session: Session) -> datetime:
    return as_utc(session.connection().execute(select(utc_now())).scalar_one())


def later_time_of(session: Session) -> datetime:
    """Wait until the database's clock has moved on, so that `now` is not `same`."""
    first = later = time_of(session)
    while later == first:
        later = time_of(session)
    return later


def insert(session: Session, entity: type[Any], **values: Any) -> None:
    """Make the only job."""
    session.connection().execute(entity.__table__.delete())
    session.connection().execute(entity.__table__.insert().values(**values))
    session.commit()


def claim_one(session: Session, entity: type[Any], strategy: str) -> Claim[Any]:
    claimed = claim(session, entity, owner=CLAIMER, strategy=strategy)
    assert len(claimed) == 1
    return claimed


def expected(line: Mapping[str, str], before: State) -> State | None:
    """Compute what the columns of a line hold afterwards, except the time."""
    if line["status"] == "gone":
        return None
    attempts = before["attempts"]
    meaning: dict[str, dict[str, Any]] = {
        "status": {},
        "owner": {"claimer": CLAIMER, "empty": None},
        "owner_date": {"now": "now", "empty": None},
        "attempts": {"0": 0, "-": None},
    }
    if attempts is not None:
        meaning["attempts"].update({"+1": attempts + 1, "-1": attempts - 1})
    found: dict[str, Any] = {}
    for name in COLUMNS:
        word = line[name]
        if word == "same":
            found[name] = before[name]
        else:
            found[name] = word if name == "status" else meaning[name][word]
    return found


def check(line: Mapping[str, str], before: State, after: State | None, since: datetime) -> None:
    """Compare a row with a line; a time that is now lies behind `since`."""
    wanted = expected(line, before)
    if wanted is not None and wanted["owner_date"] == "now":
        assert after is not None
        assert after["owner_date"] >= since
        wanted = {**wanted, "owner_date": after["owner_date"]}
    assert after == wanted, line


def lines(*whens: str) -> list[dict[str, str]]:
    """Choose lines by their second column."""
    return [line for line in LINES if line["when"] in whens]


def test_a_new_job_holds_what_the_table_says(session: Session) -> None:
    (line,) = lines("-")

    enqueue(session, Parcel, [{}])

    check(line, dict.fromkeys(COLUMNS), read(session, Parcel), time_of(session))


@pytest.mark.parametrize("kind", ["marked", "held"])
def test_a_claim_and_its_finish_write_what_the_table_says(session: Session, kind: str) -> None:
    for strategy in strategies_of(session, kind):
        for line in lines(kind):
            claim_and_finish(session, line, strategy)


def claim_and_finish(session: Session, line: Mapping[str, str], strategy: str) -> None:
    verb = line["verb"]
    entity = Postcard if verb.endswith("no RetryMixin") else Parcel
    insert(session, entity, **({"max_attempts": 1} if verb.endswith("used up") else {}))
    before, since = read(session, entity), later_time_of(session)
    session.rollback()
    claimed = claim_one(session, entity, strategy)
    if line["when"] == "marked":
        session.commit()
    if verb != "claim":
        if line["when"] == "marked":
            before, since = read(session, entity), later_time_of(session)
        FINISHES[verb](session, claimed)
    session.commit()

    assert before is not None
    check(line, before, read(session, entity), since)


def test_a_change_without_a_claim_writes_what_the_table_says(session: Session) -> None:
    for line in lines(*GIVEN):
        insert(session, Parcel, max_attempts=1)
        claimed = claim_one(session, Parcel, "auto")
        GIVEN[line["when"]](session, claimed)
        session.commit()
        before, since = read(session, Parcel), later_time_of(session)

        CHANGES[line["verb"]](session, list(claimed))
        session.commit()

        assert before is not None
        assert before["status"] == line["when"]
        check(line, before, read(session, Parcel), since)
