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
    UnsupportedDatabase,
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


def strategies_of(session: Session, *, marks: bool) -> list[str]:
    """Name the strategies of this database that mark, or those that hold."""
    database = database_of(session.connection())
    return [
        name
        for name, strategy in STRATEGIES.items()
        if strategy.marks is marks and strategy.refusal(database) is None
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
    assert after == wanted


def lines(*whens: str) -> list[Any]:
    """Choose lines by their second column, each as a parameter of a test."""
    return [
        pytest.param(line, id=f"{line['verb']}, {line['when']}".replace(", ", "-"))
        for line in LINES
        if line["when"] in whens
    ]


def entity_of(line: Mapping[str, str]) -> type[Any]:
    return Postcard if line["verb"].endswith("no RetryMixin") else Parcel


def job_of(line: Mapping[str, str]) -> dict[str, Any]:
    return {"max_attempts": 1} if line["verb"].endswith("used up") else {}


@pytest.mark.parametrize("line", lines("-"))
def test_a_new_job_holds_what_the_table_says(session: Session, line: dict[str, str]) -> None:
    before = dict.fromkeys(COLUMNS)

    enqueue(session, Parcel, [{}])

    check(line, before, read(session, Parcel), time_of(session))


@pytest.mark.parametrize("line", lines("marked"))
def test_a_marked_claim_and_its_finish_write_what_the_table_says(
    session: Session, line: dict[str, str]
) -> None:
    entity = entity_of(line)
    for strategy in strategies_of(session, marks=True):
        insert(session, entity, **job_of(line))
        before, since = read(session, entity), later_time_of(session)
        session.rollback()
        claimed = claim_one(session, entity, strategy)
        session.commit()
        if line["verb"] != "claim":
            before, since = read(session, entity), later_time_of(session)
            FINISHES[line["verb"]](session, claimed)
            session.commit()

        after = read(session, entity)

        assert before is not None
        check(line, before, after, since)


@pytest.mark.parametrize("line", lines("held"))
def test_a_held_claim_and_its_finish_write_what_the_table_says(
    session: Session, line: dict[str, str]
) -> None:
    entity = entity_of(line)
    for strategy in strategies_of(session, marks=False):
        insert(session, entity, **job_of(line))
        before, since = read(session, entity), later_time_of(session)
        session.rollback()
        claimed = claim_one(session, entity, strategy)
        if line["verb"] != "claim":
            FINISHES[line["verb"]](session, claimed)
        session.commit()

        after = read(session, entity)

        assert before is not None
        check(line, before, after, since)


@pytest.mark.parametrize("line", lines(*GIVEN))
def test_a_change_without_a_claim_writes_what_the_table_says(
    session: Session, line: dict[str, str]
) -> None:
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


def test_a_held_claim_without_an_owner_leaves_the_owner_empty(session: Session) -> None:
    for strategy in strategies_of(session, marks=False):
        insert(session, Parcel)

        complete(session, claim(session, Parcel, strategy=strategy))

        after = read(session, Parcel)
        assert after is not None
        assert (after["status"], after["owner"]) == ("done", None)


@pytest.mark.only_on("sqlite")
def test_a_database_without_row_locks_refuses_held_claims(session: Session) -> None:
    insert(session, Parcel)

    with pytest.raises(UnsupportedDatabase, match="use strategy='auto'"):
        claim(session, Parcel, strategy="held")


def test_every_line_of_the_table_is_tested() -> None:
    tested = {*lines_tested()}

    written = {(line["verb"], line["when"]) for line in LINES}

    assert written == tested
    assert len(LINES) == len(written)


def lines_tested() -> Iterator[tuple[str, str]]:
    """List the actions that the tests above know; the table must name each."""
    yield "enqueue", "-"
    for kind in ("marked", "held"):
        yield "claim", kind
        for verb in FINISHES:
            yield verb, kind
    for verb, whens in {
        "cancel": ("unclaimed", "claimed"),
        "retry": ("failed", "done", "cancelled", "claimed"),
        "reprioritize": ("unclaimed", "claimed"),
        "prune": ("done", "failed"),
    }.items():
        for when in whens:
            yield verb, when
