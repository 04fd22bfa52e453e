"""The table of docs/reference/claims.md, compared with the code on every database and strategy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import timedelta
from time import sleep
from typing import Any, TypeAlias

import pytest
from sqlalchemy import URL, select
from sqlalchemy.orm import Session

import sa_jobqueue
from sa_jobqueue import claim, complete, enqueue, prune, reap, reprioritize
from tests.models import Base, Email, Task
from tests.support import MARKING, STRATEGIES, make_engine, with_empty_tables

from .markdown import page, table

LINES = table(page("docs/reference/claims.md"), "verb")
CLAIMER = "the claimer"
COLUMNS = ("status", "owner", "owner_date", "attempts")

State: TypeAlias = Mapping[str, Any]

#: The seconds until each database's clock has moved on.
A_MOMENT = 0.005


#: What is done to a claimed job that is to be found in a status.
GIVEN = {
    "unclaimed": "release",
    "claimed": "renew",
    "done": "complete",
    "failed": "fail",
    "cancelled": "cancel_claimed",
}


def act(session: Session, verb: str, jobs: Any) -> None:
    """Do what a line says to jobs, claimed or not."""
    name = verb.partition(",")[0]
    entity = type(jobs[0])
    match name:
        case "complete":
            complete(session, jobs, delete="deleted" in verb)
        case "reap":
            reap(session, entity, max_runtime=timedelta(0))
        case "prune":
            prune(session, entity, older_than=timedelta(0))
        case "reprioritize":
            reprioritize(session, jobs, 5)
        case _:
            getattr(sa_jobqueue, name)(session, jobs)


@pytest.fixture
def session(db_url: URL) -> Iterator[Session]:
    """Give a session on empty tables, on one connection: claims by advisory locks need that."""
    engine = with_empty_tables(make_engine(db_url), Base.metadata)
    with engine.connect() as connection, Session(connection) as session:
        yield session
    engine.dispose()


def read(session: Session, entity: type[Any]) -> State | None:
    """Read the only row as this transaction sees it, or None."""
    row = session.connection().execute(select(entity.__table__)).mappings().one_or_none()
    return None if row is None else {name: row.get(name) for name in COLUMNS}


def insert(session: Session, entity: type[Any], **values: Any) -> State:
    """Make the only job, and read it."""
    text = {"name" if entity is Task else "recipient": "ann"}
    session.connection().execute(entity.__table__.delete())
    session.connection().execute(entity.__table__.insert().values(**text, **values))
    session.commit()
    state = read(session, entity)
    assert state is not None
    session.rollback()
    return state


def check(line: Mapping[str, str], before: State, after: State | None) -> None:
    """Compare a row with the words of a line for what was written."""
    if line["status"] == "gone":
        assert after is None
        return
    assert after is not None
    meanings: Mapping[str, Any] = {"claimer": CLAIMER, "empty": None, "-": None, "0": 0}
    for name in COLUMNS:
        word = line[name]
        if word == "same":
            assert after[name] == before[name], line
        elif word == "now":
            assert after[name] is not None, line
            assert before[name] is None or after[name] > before[name], line
        elif word in ("+1", "-1"):
            assert after[name] is None or after[name] == before[name] + int(word), line
        else:
            assert after[name] == meanings.get(word, word), line


def test_a_new_job_holds_what_the_table_says(session: Session) -> None:
    (line,) = (line for line in LINES if line["when"] == "-")

    enqueue(session, Task, [{"name": "ann"}])

    check(line, dict.fromkeys(COLUMNS), read(session, Task))


@pytest.mark.parametrize("kind", ["marked", "held"])
def test_a_claim_and_its_finish_write_what_the_table_says(
    session: Session, kind: str, db_alias: str
) -> None:
    advisory = ["advisory"] if db_alias == "postgresql" else []
    strategies = [*STRATEGIES[db_alias], *advisory]
    for strategy in (each for each in strategies if (each in MARKING) is (kind == "marked")):
        for line in (line for line in LINES if line["when"] == kind):
            claim_and_finish(session, line, strategy)


def claim_and_finish(session: Session, line: Mapping[str, str], strategy: str) -> None:
    verb = line["verb"]
    entity = Email if verb.endswith("no RetryMixin") else Task
    before = insert(session, entity, **({"max_attempts": 1} if verb.endswith("used up") else {}))
    claimed = claim(session, entity, owner=CLAIMER, strategy=strategy)
    assert len(claimed) == 1
    if line["when"] == "marked":
        session.commit()
    if verb != "claim":
        before = read(session, entity) or {}
        sleep(A_MOMENT)
        act(session, verb, claimed)
    session.commit()

    check(line, before, read(session, entity))


@pytest.mark.parametrize("line", [line for line in LINES if line["when"] in GIVEN])
def test_a_change_without_a_claim_writes_what_the_table_says(
    session: Session, line: Mapping[str, str]
) -> None:
    insert(session, Task, max_attempts=1)
    claimed = claim(session, Task, owner=CLAIMER)
    act(session, GIVEN[line["when"]], claimed)
    session.commit()
    before = read(session, Task) or {}
    sleep(A_MOMENT)

    act(session, line["verb"], list(claimed))
    session.commit()

    assert before["status"] == line["when"]
    check(line, before, read(session, Task))
