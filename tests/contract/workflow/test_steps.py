"""Jobs pass through the steps of a workflow, and none is lost on its way."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, select, update
from sqlalchemy.orm import Session

from sa_jobqueue import ArgumentError, ClaimLost, fence_of, prune, reap
from sa_jobqueue.workflow import InvalidTransition, NotWaiting, Transition, Workflow
from tests.contract.worker.faults import LostAnswer
from tests.contract.workflow.support import logged, statuses, step_of, work
from tests.support import heard
from tests.videos import S, Video, add_videos, videos

pytestmark = pytest.mark.by_turns("sqlite", "postgresql", "mysql", "mariadb")


def test_a_step_takes_new_jobs_which_no_other_step_claims(session: Session) -> None:
    first, second, _ = videos()

    second.queue.enqueue(session, [{"title": "a"}])

    assert not first.queue.claim(session, owner="w")
    assert second.queue.claim(session, owner="w")


def test_a_step_cancels_its_own_unclaimed_jobs_and_takes_ended_ones_again(session: Session) -> None:
    _, step, _ = videos()
    jobs = [add_videos(session, status, status=status)[0] for status in S]

    gone, again = step.queue.cancel(session, jobs), step.queue.retry(session, jobs)

    assert [job.title for job in gone] == ["checked"]
    assert {job.title for job in again} == {"checked", "published", "rejected"}
    assert {job.status for job in again} == {S.CHECKED}
    session.flush()
    assert ("rejected", "checked", "retry") in logged(session)


def test_a_step_prunes_jobs_that_have_ended_and_no_others(session: Session) -> None:
    _, step, _ = videos()
    add_videos(session, "a", status=S.PUBLISHED, owner_date=datetime(2020, 1, 1, tzinfo=UTC))

    with pytest.raises(ArgumentError, match=r"'at farm' is not final: the final statuses are"):
        step.queue.prune(session, older_than=timedelta(0), statuses=[S.AT_FARM])

    assert step.queue.prune(session, older_than=timedelta(days=1)) == 1


def test_a_job_goes_through_every_step_to_its_end(engine: Engine, session: Session) -> None:
    handled: list[tuple[str, str]] = []
    workflow = videos(*[lambda video: handled.append((video.title, video.status))] * 3)
    add_videos(session, "a")

    work(engine, workflow)
    workflow.signal(session, session.scalars(select(Video)).one(), S.RENDERED)
    session.commit()
    work(engine, workflow)

    assert handled == [("a", "checking"), ("a", "sending"), ("a", "publishing")]
    assert statuses(session) == {"a": "published"}
    assert logged(session) == [
        ("uploaded", "checking", "claim"),
        ("checking", "checked", "complete"),
        ("checked", "sending", "claim"),
        ("sending", "at farm", "complete"),
        ("at farm", "rendered", "signal"),
        ("rendered", "publishing", "claim"),
        ("publishing", "published", "complete"),
    ]


@pytest.mark.parametrize("outcome", [S.PUBLISHED, "at farm", "nonsense"])
def test_an_undeclared_transition_fails_its_job_and_names_the_declared_ones(
    engine: Engine, session: Session, outcome: str
) -> None:
    add_videos(session, "a", max_attempts=1)

    work(engine, videos(check=lambda video: outcome))

    video = session.scalars(select(Video)).one()
    assert video.status == "failed"
    assert video.last_error == (
        "InvalidTransition: from 'checking' a job goes to 'checked', 'rejected', not to "
        f"{str(outcome)!r}"
    )


def test_attempts_are_counted_from_zero_in_each_step(engine: Engine, session: Session) -> None:
    tried: list[tuple[str, int]] = []

    def fail_first(video: Video) -> None:
        tried.append((video.status, video.attempts))
        if video.attempts == 1:
            raise ValueError("not yet")

    add_videos(session, "a", max_attempts=2)

    work(engine, videos(check=fail_first, send=fail_first))

    assert tried == [("checking", 1), ("checking", 2), ("sending", 1), ("sending", 2)]
    assert statuses(session) == {"a": "at farm"}


def test_plain_rows_go_through_steps_too(engine: Engine, session: Session) -> None:
    told: list[Transition] = []
    workflow = Workflow(Video)
    workflow.on_transition(lambda connection, transition: told.append(transition))
    send = workflow.step("uploaded", during="sending", then="published")(lambda row: None)
    add_videos(session, "a", "b")

    with engine.begin() as connection:
        rows = send.queue.claim_rows(connection, owner="w", limit=2)
        send.queue.complete(connection, rows)

    assert statuses(session) == {"a": "published", "b": "published"}
    assert [(one.verb, one.owner) for one in told] == [("claim", "w")] * 2 + [("complete", "w")] * 2


FORCE = timedelta(0)


def test_a_step_does_not_finish_a_job_that_was_moved_into_another_step(session: Session) -> None:
    check = step_of(videos(), "check")
    add_videos(session, "a")
    claimed = check.queue.claim(session, owner="w")
    session.execute(update(Video).values(status=S.SENDING))

    with pytest.raises(ClaimLost):
        check.queue.complete(session, claimed)

    assert not check.queue.reap(session, max_runtime=FORCE)
    assert not reap(session, Video, max_runtime=FORCE)  # it would begin again with the first step
    assert logged(session, "verb") == [("claim",)]


def test_a_worker_takes_back_claims_of_all_its_steps(engine: Engine, session: Session) -> None:
    workflow = videos(lease=timedelta(microseconds=1))
    for name, ready in (("check", S.UPLOADED), ("send", S.CHECKED), ("publish", S.RENDERED)):
        add_videos(session, name, status=ready)
        step_of(workflow, name).queue.claim(session, owner="unknown")
    session.commit()

    work(engine, [step for step in workflow if step.name != "publish"])

    assert statuses(session) == {"check": "at farm", "send": "at farm", "publish": "publishing"}


def test_a_job_that_a_doubtful_commit_finished_and_claimed_anew_is_not_lost(
    engine: Engine, session: Session
) -> None:
    """The COMMIT that finishes one step has claimed the same job for the next step."""
    add_videos(session, "a", "b")
    handled: list[str] = []
    in_hand: list[int] = []

    def handle(video: Video) -> None:
        handled.append(video.status)
        with Session(engine) as other:
            in_hand.append(len(other.scalars(select(Video).where(Video.owner.is_not(None))).all()))

    with LostAnswer(engine, 1):  # the first COMMIT is that of the first claim
        work(engine, videos(*[handle] * 3), owner="w", reap_every=None)

    assert handled == ["checking", "sending"] * 2
    assert in_hand == [1] * 4  # at most the limit
    assert statuses(session) == {"a": "at farm", "b": "at farm"}


def at_farm(session: Session, title: str = "a") -> Video:
    """Commit a video that was handed off."""
    (video,) = add_videos(session, title, status=S.AT_FARM)
    return video


NAMES: list[Callable[[Video], Any]] = [
    lambda video: video,
    lambda video: video.id,
    lambda video: (video.id,),
    fence_of,
]


@pytest.mark.parametrize("name_it", NAMES, ids=["entity", "key", "tuple", "fence"])
def test_a_signal_takes_any_way_to_name_a_job(
    session: Session, name_it: Callable[[Video], Any]
) -> None:
    workflow = videos()
    add_videos(session, "a", status=S.CHECKED)
    send = step_of(workflow, "send").queue
    (video,) = send.claim(session, owner="w")
    name = name_it(video)
    send.complete(session, video)

    workflow.signal(session, name, S.RENDERED)

    assert video.status == "rendered"  # the entity in this session shows it
    session.commit()
    assert statuses(session) == {"a": "rendered"}


def test_a_signal_to_a_final_status_notes_when(session: Session) -> None:
    video = at_farm(session)

    videos().signal(session, video, S.REJECTED)

    assert (video.status, video.owner) == ("rejected", None)
    assert video.owner_date is not None  # prune() goes by this date
    session.commit()
    assert prune(session, Video, older_than=timedelta(0), statuses=["rejected"]) == 1


def test_one_of_two_simultaneous_signals_is_reported_as_not_waiting(
    engine: Engine, session: Session, new_session: Callable[..., Session]
) -> None:
    workflow, video = videos(), at_farm(session)
    caught: list[NotWaiting] = []

    def signal_too(other: Session) -> None:
        try:
            workflow.signal(other, video.id, S.REJECTED)
        except NotWaiting as error:
            caught.append(error)
        other.rollback()

    begun, other = threading.Event(), new_session()
    workflow.signal(session, video, S.RENDERED)
    thread = threading.Thread(target=signal_too, args=[other])
    with heard(engine, "before_cursor_execute", lambda *_: begun.set()):
        thread.start()
        assert begun.wait(10)  # the signal has begun, and waits for our row or for our database
    session.commit()
    thread.join(20)

    assert [error.status for error in caught] == ["rendered"]
    assert statuses(session) == {"a": "rendered"}


def test_a_signal_for_a_job_that_is_not_there_is_refused(session: Session) -> None:
    with pytest.raises(NotWaiting, match="Video 77 is not there"):
        videos().signal(session, 77, S.RENDERED)


@pytest.mark.parametrize("status", [S.PUBLISHED, "nonsense"])
def test_the_error_of_an_undeclared_signal_names_the_declared_signals(
    session: Session, status: str
) -> None:
    video = at_farm(session)

    with pytest.raises(InvalidTransition, match="'at farm' a job goes to 'rendered', 'rejected'"):
        videos().signal(session, video, status)

    assert statuses(session) == {"a": "at farm"}
