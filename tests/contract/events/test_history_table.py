"""The history as a table: what was committed with the verbs, and who had a row."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import MetaData, Table, select
from sqlalchemy.orm import Session

from sa_jobqueue import claim, enqueue, fail, reap, renew
from sa_jobqueue.events import HistoryTable, history_table, job_records
from tests.evidence.bench import ALL
from tests.models import Email, Task


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


def test_who_had_a_row_is_a_select(session: Session, history: Table) -> None:
    session.add(Email(recipient="a"))
    session.commit()
    recorder = HistoryTable(history).listen(Email)
    for owner in ("mailer-1", "mailer-2"):
        claim(session, Email, owner=owner)
        session.commit()
        reap(session, Email, max_runtime=ALL)
        session.commit()
    recorder.remove(Email)

    at = session.scalars(select(history.c.noted_at).where(history.c.event == "after_claim")).all()
    had = (
        select(history.c.event, history.c.owner)
        .where(history.c.queue_table == "email", history.c.noted_at <= at[1])
        .order_by(history.c.id.desc())
        .limit(1)
    )

    assert session.execute(had).one() == ("after_claim", "mailer-2")
