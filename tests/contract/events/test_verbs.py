"""Each verb tells once what it did when its transaction is committed; a worker tells more."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, MetaData, Table
from sqlalchemy.orm import Session

from sa_jobqueue import (
    Claim,
    ClaimLost,
    JobQueue,
    LockLost,
    Owner,
    cancel,
    claim,
    complete,
    enqueue,
    fail,
    prune,
    reap,
    renew,
    reprioritize,
    retry,
    start_round,
)
from sa_jobqueue.events import HistoryTable, history_table, job_records
from sa_jobqueue.worker import Worker
from tests.contract.events.conftest import Hear, names, told
from tests.contract.round_models import RoundBase, Subscriber
from tests.models import Animal, Cat, Email, Task, add_emails, add_tasks
from tests.support import with_empty_tables
from tests.videos import S, Video, add_videos, videos


def claimed_task(session: Session, **columns: object) -> Claim[Task]:
    add_tasks(session, "a", **columns)
    claimed = claim(session, Task, owner="w")
    session.commit()
    return claimed


def test_new_jobs_are_told_of_with_the_keys_that_are_known(session: Session, hear: Hear) -> None:
    heard = hear(Email)

    session.add(Email(id=70_007, recipient="a"))
    session.flush()
    enqueue(session, Email, [{"id": n, "recipient": "b"} for n in (70_008, 70_009)])
    enqueue(session, Email, [{"recipient": "d"}])
    session.add(Email(recipient="no job yet", status="done"))
    assert heard == []
    session.commit()

    assert [(event.verb, [job.key for job in event.jobs], event.count) for event in heard] == [
        ("flush", [(70_007,)], 1),
        ("enqueue", [(70_008,), (70_009,)], 2),
        ("enqueue", [], 1),
    ]


@pytest.mark.parametrize("rows", [False, True], ids=["entities", "rows"])
def test_a_claim_is_told_of_with_its_fences(
    session: Session, strategy: str, hear: Hear, rows: bool
) -> None:
    add_tasks(session, "a", "b")
    heard, queue = hear(Task, "after_claim"), JobQueue(Task, strategy=strategy)

    claimed = (queue.claim_rows if rows else queue.claim)(session, owner="w", limit=2)
    fences = claimed.fences
    assert heard == []
    claim(session, Task, Task.name == "nothing", owner="w")
    session.commit()

    (event,) = heard
    assert [job.key for job in event.jobs] == [fence.identity for fence in fences]
    assert [job.owner_date for job in event.jobs] == [fence.owner_date for fence in fences]
    assert {(job.fence_status, job.owner) for job in event.jobs} == {(fences[0].token.status, "w")}
    assert [job.attempts for job in event.jobs] == [1, 1]
    assert (event.entity, event.count, event.at) == (Task, 2, fences[-1].owner_date)


def test_the_end_of_a_claim_is_told_of_with_its_fence(session: Session, hear: Hear) -> None:
    claimed = claimed_task(session, max_attempts=1)
    heard = hear(Task)

    renew(session, claimed)
    fail(session, claimed, error="no such host")
    session.commit()

    renewed, failed = heard
    assert names(heard) == ["after_renew", "after_fail"]
    assert renewed.at == renewed.jobs[0].owner_date
    assert failed.error == "no such host"
    assert failed.jobs[0].status == "failed"
    assert failed.jobs[0].owner_dates == renewed.jobs[0].owner_dates
    assert len(failed.jobs[0].owner_dates) == 2


def test_a_lost_claim_is_told_of_however_the_transaction_ends(session: Session, hear: Hear) -> None:
    claimed = claimed_task(session)
    reap(session, Task, max_runtime=timedelta(0))
    session.commit()
    heard = hear(Task)

    for end in (session.commit, session.rollback):
        with pytest.raises(ClaimLost):
            complete(session, claimed)
        end()
    with pytest.raises(ClaimLost), session.begin_nested():  # which is rolled back
        complete(session, claimed)
    assert len(heard) == 2
    session.commit()

    assert told(heard) == [("after_lost", "complete", 1)] * 3


def test_each_verb_has_an_event_that_says_which_status_each_job_had_before(
    session: Session, hear: Hear
) -> None:
    add_tasks(session, *"abcde")
    queue, heard = JobQueue(Task), hear(Task)

    a, b, c, d, e = queue.claim(session, owner="w", limit=5)
    queue.release(session, a)
    queue.complete(session, b, delete=True)
    queue.fail(session, c)
    queue.cancel_claimed(session, d)
    session.commit()
    reprioritize(session, a, 5)
    retry(session, cancel(session, [a, c]))
    cancel(session, [d, b])  # which nobody can cancel any more
    reap(session, Task, max_runtime=timedelta(0))
    prune(session, Task, older_than=timedelta(0), statuses=["cancelled"])
    session.commit()

    assert [
        (event.name, event.verb, job.before, job.status) for event in heard for job in event.jobs
    ] == [
        *[("after_claim", "claim", "unclaimed", "claimed")] * 5,
        ("after_release", "release", "claimed", "unclaimed"),
        ("after_finish", "complete", "claimed", None),
        ("after_fail", "fail", "claimed", "unclaimed"),
        ("after_cancel", "cancel_claimed", "claimed", "cancelled"),
        ("after_change", "reprioritize", "unclaimed", None),
        *[("after_cancel", "cancel", "unclaimed", None)] * 2,
        *[("after_change", "retry", "cancelled", None)] * 2,
        ("after_reap", "reap", "claimed", "unclaimed"),
        ("after_change", "prune", None, None),
    ]
    (reaped,) = (event for event in heard if event.name == "after_reap")
    assert (reaped.error, reaped.jobs[0].owner) == ("max_runtime over", "w")
    assert reaped.jobs[0].owner_date == heard[0].jobs[4].owner_date
    assert e.status == "unclaimed"


def test_a_round_is_told_of_once_each_chunk_is_committed(
    engine: Engine, session: Session, hear: Hear
) -> None:
    with_empty_tables(engine, RoundBase.metadata)
    session.add_all([Subscriber(), Subscriber()])
    session.commit()
    heard = hear(Subscriber)

    start_round(session, Subscriber)
    assert heard == []
    session.commit()
    start_round(engine, Subscriber)

    assert [(event.verb, event.count) for event in heard] == [
        ("start_round", None),
        ("start_round", 2),
    ]


def test_a_signal_and_the_move_of_a_step_are_told_of(session: Session, hear: Hear) -> None:
    (video,) = add_videos(session, "a", status=S.CHECKED)
    workflow, send = videos(), videos().steps[1].queue
    heard = hear(Video)

    send.complete(session, send.claim(session, owner="w"))
    session.commit()
    workflow.signal(session, video, S.RENDERED)
    session.commit()

    assert told(heard) == [
        ("after_claim", "claim", 1),
        ("after_finish", "complete", 1),
        ("after_change", "signal", 1),
    ]
    assert heard[1].jobs[0].status == S.AT_FARM


def test_a_parent_hears_of_the_jobs_of_its_subclasses(session: Session, hear: Hear) -> None:
    of_animals, of_cats = hear(Animal), hear(Cat)

    session.add_all([Cat(), Animal()])
    session.commit()
    claim(session, Cat, owner="w")
    session.commit()

    assert names(of_animals) == ["after_enqueue", "after_enqueue", "after_claim"]
    assert names(of_cats) == ["after_enqueue", "after_claim"]


def test_a_queue_hears_of_its_own_methods_only(session: Session, hear: Hear) -> None:
    add_emails(session, *"abcd")
    early = JobQueue(Email, Email.recipient < "c")
    late = JobQueue(Email, Email.recipient >= "c")
    heard = hear(early)

    first = early.claim(session, owner="w")
    late.claim(session, owner="w")
    claim(session, Email, owner="w")
    early.turn(session, first, owner="w")
    session.commit()

    assert [(event.name, event.queue is early) for event in heard] == [
        ("after_claim", True),
        ("after_finish", True),
    ]


SOON = timedelta(milliseconds=20)


def test_a_worker_tells_of_each_job_that_begins(
    engine: Engine, session: Session, hear: Hear
) -> None:
    add_tasks(session, "a")
    queue, begun = JobQueue(Task), list[list[str]]()
    heard = hear(queue)

    def handle(task: Task) -> None:
        begun.append(names(heard))

    Worker(engine, queue, handle, drain=True, poll=SOON).run()

    assert begun == [["after_claim", "after_start"]]
    assert names(heard) == ["after_claim", "after_start", "after_finish"]
    assert heard[1].jobs[0].attempts == 1
    assert heard[1].jobs[0].owner_dates == heard[0].jobs[0].owner_dates


def test_a_worker_tells_that_its_lock_was_lost(
    engine: Engine, session: Session, hear: Hear, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_emails(session, "a")
    heard = hear(Email, "after_lock_lost")
    losses = [LockLost("the connection of the lock has ended")]
    named, sure = vars(Owner)["name"], vars(Owner)["sure"]

    def name(owner: Owner) -> Any:
        if losses:
            raise losses.pop()
        return named.fget(owner)

    monkeypatch.setattr(Owner, "name", property(name))
    monkeypatch.setattr(Owner, "sure", property(lambda owner: not losses and sure.fget(owner)))
    Worker(engine, JobQueue(Email), lambda email: None, drain=True, poll=SOON).run()

    assert names(heard) == ["after_lock_lost"]


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
