"""The code of docs/unique.md, run on every database that the page names for it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy
from sqlalchemy import URL, Computed, Engine, Index, select, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from sa_jobqueue import (
    JobMixin,
    JobQueue,
    RetryMixin,
    claim,
    complete,
    enqueue,
    fail,
    reap,
    release,
    retry,
)
from sa_jobqueue.worker import Worker
from tests.support import make_engine

from .markdown import code_blocks, page

BLOCKS = code_blocks(page("docs/unique.md"), "python")
FOREVER, FOREVER_USE, UNFINISHED, PARTIAL, BACK, FRESH = BLOCKS
FORCE = timedelta(0)


def model(*blocks: str) -> Any:
    """Make the classes of the page; return the last one."""

    class Base(DeclarativeBase):
        pass

    names: dict[str, Any] = {
        "__name__": "models",
        "Base": Base,
        "Computed": Computed,
        "Index": Index,
        "JobMixin": JobMixin,
        "Mapped": Mapped,
        "RetryMixin": RetryMixin,
        "mapped_column": mapped_column,
        "text": text,
    }
    for block in blocks:
        exec(compile(block, "docs/unique.md", "exec", dont_inherit=True), names)
    return Base.__subclasses__()[-1]


@pytest.fixture
def tabled(db_url: URL) -> Iterator[Callable[..., tuple[Engine, Any]]]:
    """Make classes of the page, and their tables."""
    engine, made = make_engine(db_url), []

    def make(*blocks: str) -> tuple[Engine, Any]:
        entity = model(*blocks)
        made.append(entity)
        entity.metadata.create_all(engine)
        return engine, entity

    yield make
    for entity in made:
        entity.metadata.drop_all(engine)
    engine.dispose()


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


def test_a_stopped_worker_leaves_a_job_whose_key_waits_again_to_a_reap(
    tabled: Tabled, caplog: pytest.LogCaptureFixture
) -> None:
    engine, entity = tabled(FRESH)

    def handler(job: Any) -> None:
        with Session(engine) as session:
            add(session, entity, 2)
        worker.stop()

    worker = Worker(engine, JobQueue(entity), handler, limit=2)
    with Session(engine) as session:
        add(session, entity, 1, 2)

        worker.run()

        assert statuses(session, entity) == [(1, "done"), (2, "claimed"), (2, "unclaimed")]
    assert " 2 could not be released; a reap returns the jobs to the queue" in caplog.text
