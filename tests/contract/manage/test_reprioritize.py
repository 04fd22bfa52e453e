"""Priorities are changed while others claim."""

from __future__ import annotations

from threading import Event, Thread

import pytest
from sqlalchemy import Engine, select
from sqlalchemy.orm import Session

from sa_jobqueue import claim, complete, reprioritize
from tests.contract.steps import before, unless_refused
from tests.models import Task, add_tasks
from tests.support import Sessions, impatient


@pytest.mark.strategies("auto")
@pytest.mark.parametrize("between", ["SELECT", "UPDATE"])
def test_a_job_claimed_meanwhile_keeps_its_priority_and_is_left_out(
    engine: Engine, new_session: Sessions, strategy: str, between: str
) -> None:
    session, other = new_session(), new_session(impatient(engine))
    a, b = add_tasks(session, "a", "b")
    stolen: list[int] = []

    def steal() -> None:
        stolen.extend(job.id for job in claim(other, Task, owner="w", strategy=strategy))
        other.commit()

    with before(engine, between, unless_refused(steal, other)) as taken:
        changed = reprioritize(session, [a, b], 7)
    session.commit()

    left = [job for job in (a, b) if job.id not in stolen]
    found = {job.id: job.priority for job in new_session().scalars(select(Task))}
    assert taken
    assert changed == left
    assert found == {job.id: 7 if job in left else 0 for job in (a, b)}


@pytest.mark.strategies("auto")
def test_reprioritize_waits_for_a_claim_and_then_changes_the_other_jobs(
    engine: Engine, new_session: Sessions, strategy: str
) -> None:
    session = new_session()
    a, b = add_tasks(session, "a", "b")
    ids = [a.id, b.id]
    claimed = claim(session, Task, owner="w", strategy=strategy)
    assert [job.id for job in claimed] == ids[:1]
    changed: list[int] = []
    begun = Event()

    def change() -> None:
        with Session(engine) as theirs:
            jobs = [theirs.get_one(Task, number) for number in ids]
            begun.set()
            changed.extend(job.id for job in reprioritize(theirs, jobs, 7))
            theirs.commit()

    thread = Thread(target=change)
    thread.start()
    assert begun.wait(10)
    complete(session, claimed)
    session.commit()
    thread.join(30)

    assert changed == ids[1:]
    priorities = new_session().scalars(select(Task.priority).order_by(Task.id)).all()
    assert priorities == [0, 7]
