"""SQLModel: its classes are queues, and its Session takes every verb."""

from __future__ import annotations

import pytest
from sqlalchemy import Engine

from sa_jobqueue import claim, complete, enqueue, fail
from tests.support import with_empty_tables

sqlmodel = pytest.importorskip("sqlmodel")


def test_a_sqlmodel_session_claims_and_finishes(engine: Engine) -> None:
    from tests.contract.model.styles import SQLModelJob, metadata

    with sqlmodel.Session(with_empty_tables(engine, metadata)) as session:
        enqueue(session, SQLModelJob, [{"name": "a"}, {"name": "b"}])
        session.commit()
        first, second = claim(session, SQLModelJob, owner="w", limit=2)
        complete(session, first)
        fail(session, second)
        session.commit()
        found = session.exec(sqlmodel.select(SQLModelJob).order_by(SQLModelJob.name)).all()

    assert [(job.name, job.status) for job in found] == [("a", "done"), ("b", "failed")]
