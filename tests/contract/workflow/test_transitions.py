"""Every transition is told to the listener, and crashes lose no job."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest
from sqlalchemy import Connection, Engine, event, select, update
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from sa_jobqueue import ClaimLost, fence_of, reap
from tests.contract.workflow.support import logged, statuses, step_of, work
from tests.videos import S, Video, add_videos, videos

pytestmark = pytest.mark.by_turns("sqlite", "postgresql", "mysql", "mariadb")

FORCE = timedelta(0)


# -- transitions are told ---------------------------------------------------


def test_the_listener_does_not_hear_of_a_lost_claim(session: Session, other: Session) -> None:
    workflow = videos()
    check = step_of(workflow, "check")
    add_videos(session, "a", "b")
    claimed = check.queue.claim(session, owner="w", limit=2)
    session.commit()
    check.queue.release(other, fence_of(claimed[0]))
    other.commit()

    with pytest.raises(ClaimLost):
        check.queue.complete(session, (video for video in claimed))

    session.commit()
    told = logged(session, "video_id", "verb")[2:]
    assert told == [(claimed[0].id, "release"), (claimed[1].id, "complete")]
    assert statuses(session) == {"a": "uploaded", "b": "checked"}


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


# -- crashes ----------------------------------------------------------------


def test_a_crash_at_the_last_attempt_fails_the_job_and_the_listener_hears_of_it(
    session: Session,
) -> None:
    workflow = videos()
    add_videos(session, "a", max_attempts=1, status=S.CHECKED)
    step_of(workflow, "send").queue.claim(session, owner="dead")
    session.commit()

    workflow.reap(session, max_runtime=FORCE)

    session.commit()
    assert statuses(session) == {"a": "failed"}
    assert logged(session, "before", "after", "verb", "owner")[1:] == [
        ("sending", "failed", "reap", "dead")
    ]


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

    doubt = threading.Event()

    def commit_unheard(connection: Connection) -> None:
        if handled == ["checking"] and not doubt.is_set():
            doubt.set()
            connection.connection.driver_connection.commit()  # type: ignore[union-attr]
            raise OperationalError("COMMIT", None, Exception("gone"), connection_invalidated=True)

    event.listen(engine, "commit", commit_unheard)
    try:
        work(engine, videos(*[handle] * 3))
    finally:
        event.remove(engine, "commit", commit_unheard)

    assert handled == ["checking", "sending"] * 2
    assert in_hand == [1] * 4  # at most the limit
    assert statuses(session) == {"a": "at farm", "b": "at farm"}
