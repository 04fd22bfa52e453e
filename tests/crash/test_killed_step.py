"""The job of a worker that is killed in a step of a workflow is claimable by that step again."""

from __future__ import annotations

from datetime import timedelta
from multiprocessing.connection import Connection

import pytest
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from sa_jobqueue.worker import Worker
from tests.support import make_engine, until
from tests.videos import S, Video, add_videos, videos

from .support import Victim

pytestmark = pytest.mark.by_turns("sqlite", "postgresql", "mysql", "mariadb")

#: A lease so long that no claim is reaped for its age.
LEASE = timedelta(hours=1)


def stand_still(url: str, pipe: Connection) -> None:
    """Work on videos until a video is to be sent, and report it."""

    def send(video: Video) -> None:
        pipe.send(video.title)
        pipe.recv()

    Worker(make_engine(url), videos(send=send, lease=LEASE), limit=2).run()


def test_a_killed_workers_jobs_are_back_at_their_step(engine: Engine) -> None:
    workflow = videos(lease=LEASE)
    with Session(engine) as session:
        first, second, third = add_videos(session, "a", "b", "c", max_attempts=3)
        with Victim(engine, stand_still) as process:
            process.hears()
            session.rollback()
            assert [first.status, second.status, third.status] == [S.SENDING, S.SENDING, S.UPLOADED]
            session.rollback()

        def taken_back() -> int:
            found = len(workflow.reap(session))
            session.commit()
            return found

        until(taken_back)
        assert [(video.status, video.owner) for video in (first, second, third)] == [
            *[(S.CHECKED, None)] * 2,
            (S.UPLOADED, None),
        ]
        assert first.attempts == 1  # the killed one; those of the step before do not count
