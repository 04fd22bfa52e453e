"""A job that is moved, or whose worker crashes, is lost to no step."""

from __future__ import annotations

from datetime import timedelta

import pytest
from sqlalchemy import Engine, select, update
from sqlalchemy.orm import Session

from sa_jobqueue import ClaimLost, reap
from tests.contract.worker.faults import LostAnswer
from tests.contract.workflow.support import logged, statuses, step_of, work
from tests.videos import S, Video, add_videos, videos

pytestmark = pytest.mark.by_turns("sqlite", "postgresql", "mysql", "mariadb")

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
