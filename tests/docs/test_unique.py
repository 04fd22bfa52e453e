"""The code of docs/unique.md, run on every database that the page names for it."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy
from sqlalchemy import Engine, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from sa_jobqueue import (
    claim,
    complete,
    enqueue,
    fail,
    reap,
    release,
    retry,
)

from .markdown import code_blocks, page, run

BLOCKS = code_blocks(page("docs/unique.md"), "python")
FOREVER, FOREVER_USE, UNFINISHED, PARTIAL, BACK, FRESH = BLOCKS
FORCE = timedelta(0)


@pytest.fixture
def tabled(taken_for_granted: dict[str, Any], engine: Engine) -> Callable[..., tuple[Engine, Any]]:
    """Make the last class of blocks of the page, and its table."""

    def make(block: str) -> tuple[Engine, Any]:
        base = run(block, **taken_for_granted)["Base"]
        base.metadata.create_all(engine)
        return engine, base.__subclasses__()[-1]

    return make


Tabled = Callable[..., tuple[Engine, Any]]


def add(session: Session, entity: Any, *documents: int) -> None:
    rows = [{"document_id": document} for document in documents]
    enqueue(session, entity, rows, skip_duplicates=True)
    session.commit()


def statuses(session: Session, entity: Any) -> list[tuple[int, str]]:
    session.expire_all()
    found = session.scalars(select(entity).order_by(entity.id))
    return [(job.document_id, job.status) for job in found]


def test_one_job_for_each_key_is_inserted_and_the_counts_are_returned(
    tabled: Tabled, db_alias: str
) -> None:
    engine, entity = tabled(FOREVER)
    said = [int(number) for number in re.findall(r"# (\d)$", FOREVER_USE, re.M)]
    told: list[int | None] = []
    calls = {
        "enqueue": lambda *given, **options: told.append(enqueue(*given, **options)),
        "Welcome": entity,
    }

    with Session(engine) as session:
        exec(FOREVER_USE, {**calls, "session": session})
        users = session.scalars(select(entity.user_id).order_by(entity.user_id)).all()

    assert users == [1, 2, 3]
    assert told == ([None, None] if db_alias in ("mysql", "mariadb") else said)


@pytest.mark.parametrize("block", [UNFINISHED, PARTIAL], ids=["column", "index"])
def test_there_is_one_unfinished_job_for_each_key(
    tabled: Tabled, block: str, db_alias: str
) -> None:
    if block == PARTIAL and db_alias in ("mysql", "mariadb"):
        pytest.skip("no partial indexes")
    engine, entity = tabled(block)
    with Session(engine, expire_on_commit=False) as session:
        add(session, entity, 1, 2, 1)
        first = claim(session, entity, owner="w")
        add(session, entity, 1)
        assert statuses(session, entity) == [(1, "claimed"), (2, "unclaimed")]

        release(session, first)
        again = claim(session, entity, owner="w")
        reap(session, entity, max_runtime=FORCE)
        again = claim(session, entity, owner="w")
        complete(session, again)
        add(session, entity, 1, 1)

        assert statuses(session, entity) == [(1, "done"), (2, "unclaimed"), (1, "unclaimed")]


def test_a_job_with_a_successor_stays_where_it_is(tabled: Tabled) -> None:
    engine, entity = tabled(UNFINISHED)
    with Session(engine, expire_on_commit=False) as session:
        if engine.dialect.name == "sqlite":  # its driver begins nothing before a SAVEPOINT
            session.connection().exec_driver_sql("BEGIN")
        add(session, entity, 1, 2)
        fail(session, claim(session, entity, owner="w", limit=2))
        add(session, entity, 1)

        names = {"Reindex": entity, "IntegrityError": IntegrityError, "retry": retry}
        exec(BACK, {**names, "session": session, "select": sqlalchemy.select})
        session.commit()

        assert statuses(session, entity) == [(1, "failed"), (2, "unclaimed"), (1, "unclaimed")]


def test_there_is_one_unclaimed_job_for_each_key_while_another_runs(tabled: Tabled) -> None:
    engine, entity = tabled(FRESH)
    with Session(engine, expire_on_commit=False) as session:
        add(session, entity, 1, 1)
        running = claim(session, entity, owner="w")
        add(session, entity, 1, 1)
        assert statuses(session, entity) == [(1, "claimed"), (1, "unclaimed")]

        with pytest.raises(IntegrityError), session.begin_nested():
            release(session, running)
        fail(session, running)
        session.commit()
        assert statuses(session, entity) == [(1, "unclaimed"), (1, "unclaimed")]

        claim(session, entity, owner="w", limit=2)
        add(session, entity, 1)
        reap(session, entity, max_runtime=FORCE)
        session.commit()

        assert statuses(session, entity) == [(1, "unclaimed")] * 3
