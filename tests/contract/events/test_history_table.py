"""The history as a table: what was committed with the verbs, and who had a row."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import MetaData, Table
from sqlalchemy.orm import Session

from sa_jobqueue import claim, enqueue, fail, renew
from sa_jobqueue.events import HistoryTable, history_table, job_records
from tests.models import Task


@pytest.fixture
def history(session: Session) -> Iterator[Table]:
    bind = session.get_bind()
    table = history_table(MetaData(), "email_history")
    table.create(bind)
    yield table
    session.rollback()
    session.close()
    table.drop(bind)


def test_a_table_holds_what_was_committed_with_the_verbs(session: Session, history: Table) -> None:
    recorder = HistoryTable(history).listen(Task)
    enqueue(session, Task, [{"name": "a"}])
    session.commit()

    claim(session, Task, owner="w")
    session.rollback()
    claimed = claim(session, Task, owner="w")
    renew(session, claimed)
    (fence,) = claimed.fences
    fail(session, claimed, error="no such host")
    session.commit()
    recorder.remove(Task)

    records = job_records(session.connection(), history, Task, fence.identity, limit=3)
    found = [(record.event, record.owner, record.attempts) for record in reversed(records)]
    assert found[-3:] == [
        ("after_claim", "w", 1),
        ("after_renew", "w", None),
        ("after_fail", "w", None),
    ]
    assert records[0].error == "no such host"
