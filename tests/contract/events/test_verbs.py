"""Each verb tells once what it did, when its transaction is committed."""

from __future__ import annotations

from datetime import timedelta

import pytest
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from sa_jobqueue import (
    Claim,
    ClaimLost,
    JobQueue,
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
    start_round,
)
from sa_jobqueue.events import listen, remove
from tests.contract.events.conftest import Hear
from tests.contract.events.support import names, told
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

    session.add(Email(id=7, recipient="a"))
    session.flush()
    enqueue(session, Email, [{"id": 8, "recipient": "b"}, {"id": 9, "recipient": "c"}])
    enqueue(session, Email, [{"recipient": "d"}])
    assert heard == []
    session.commit()

    assert [(event.verb, [job.key for job in event.jobs], event.count) for event in heard] == [
        ("flush", [(7,)], 1),
        ("enqueue", [(8,), (9,)], 2),
        ("enqueue", [], 1),
    ]


def test_a_row_that_is_no_job_yet_is_not_told_of(session: Session, hear: Hear) -> None:
    heard = hear(Email)

    session.add(Email(recipient="a", status="done"))
    session.commit()

    assert heard == []


def test_a_claim_is_told_of_with_its_fences(session: Session, strategy: str, hear: Hear) -> None:
    add_tasks(session, "a", "b")
    heard = hear(Task, "after_claim")

    claimed = claim(session, Task, owner="w", limit=2, strategy=strategy)
    fences = claimed.fences
    assert heard == []
    session.commit()

    (event,) = heard
    assert [job.key for job in event.jobs] == [fence.identity for fence in fences]
    assert [job.owner_date for job in event.jobs] == [fence.owner_date for fence in fences]
    assert {(job.fence_status, job.owner) for job in event.jobs} == {(fences[0].token.status, "w")}
    assert [job.attempts for job in event.jobs] == [1, 1]
    assert (event.entity, event.count, event.at) == (Task, 2, fences[-1].owner_date)


def test_claimed_rows_are_told_of_as_entities_are(session: Session, hear: Hear) -> None:
    add_tasks(session, "a")
    heard = hear(Task, "after_claim")

    claimed = JobQueue(Task).claim_rows(session, owner="w")
    session.commit()

    ((job,),) = [event.jobs for event in heard]
    assert (job.key, job.attempts, job.owner_dates) == (
        claimed.fences[0].identity,
        1,
        tuple(claimed.fences[0].token.dates),
    )


def test_a_claim_of_nothing_is_not_told_of(session: Session, hear: Hear) -> None:
    heard = hear(Email)

    claim(session, Email, owner="w")
    session.commit()

    assert heard == []


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


@pytest.mark.parametrize(
    ("verb", "name"),
    [(complete, "after_finish"), (release, "after_release"), (cancel_claimed, "after_cancel")],
)
def test_each_finish_has_its_event(session: Session, hear: Hear, verb: object, name: str) -> None:
    claimed = claimed_task(session)
    heard = hear(Task)

    verb(session, claimed)  # type: ignore[operator]  # each takes these two
    session.commit()

    assert names(heard) == [name]


def test_a_lost_claim_is_told_of_however_the_transaction_ends(session: Session, hear: Hear) -> None:
    claimed = claimed_task(session)
    reap(session, Task, max_runtime=timedelta(0))
    session.commit()
    heard = hear(Task)

    for end in (session.commit, session.rollback):
        with pytest.raises(ClaimLost):
            complete(session, claimed)
        end()

    assert told(heard) == [("after_lost", "complete", 1)] * 2


def test_a_reap_is_told_of_with_the_fence_that_it_ended(session: Session, hear: Hear) -> None:
    claimed = claimed_task(session)
    heard = hear(Task)

    reap(session, Task, max_runtime=timedelta(0))
    session.commit()

    (event,) = heard
    assert (event.name, event.error) == ("after_reap", "max_runtime over")
    assert event.jobs[0].owner_date == claimed.fences[0].owner_date
    assert (event.jobs[0].status, event.jobs[0].owner) == ("unclaimed", "w")


def test_changes_of_jobs_that_nobody_has_are_told_of(session: Session, hear: Hear) -> None:
    tasks = add_tasks(session, "a", "b")
    heard = hear(Task)

    cancel(session, tasks[0])
    retry(session, tasks[0])
    reprioritize(session, tasks[0], 5)
    cancel(session, tasks)
    cancel(session, tasks)  # which are cancelled already
    prune(session, Task, older_than=timedelta(0), statuses=["cancelled"])
    session.commit()

    assert told(heard) == [
        ("after_cancel", "cancel", 1),
        ("after_change", "retry", 1),
        ("after_change", "reprioritize", 1),
        ("after_cancel", "cancel", 2),
        ("after_change", "prune", 2),
    ]


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


def test_a_removed_listener_is_not_called(session: Session, hear: Hear) -> None:
    heard: list[object] = []
    listen(Email, "after_enqueue", heard.append)
    remove(Email, "after_enqueue", heard.append)

    add_emails(session, "a")

    assert heard == []


def test_an_event_says_which_status_each_job_had_before(session: Session, hear: Hear) -> None:
    add_tasks(session, *"abc")
    queue, heard = JobQueue(Task), hear(Task)

    a, b, c = queue.claim(session, owner="w", limit=3)
    queue.release(session, a)
    queue.complete(session, b, delete=True)
    queue.fail(session, c)
    session.commit()
    retry(session, cancel(session, [a, c]))
    session.commit()

    assert [(event.verb, job.before, job.status) for event in heard for job in event.jobs] == [
        *[("claim", "unclaimed", "claimed")] * 3,
        ("release", "claimed", "unclaimed"),
        ("complete", "claimed", None),
        ("fail", "claimed", "unclaimed"),
        *[("cancel", "unclaimed", None)] * 2,
        *[("retry", "cancelled", None)] * 2,
    ]
