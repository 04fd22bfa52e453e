"""Signals move jobs that were handed off."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from sa_jobqueue import fence_of, prune
from sa_jobqueue.workflow import InvalidTransition, NotWaiting
from tests.contract.worker.faults import heard
from tests.contract.workflow.support import statuses, step_of
from tests.videos import S, Video, add_videos, videos

pytestmark = pytest.mark.by_turns("sqlite", "postgresql", "mysql", "mariadb")


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


@pytest.mark.parametrize("status", [S.UPLOADED, S.SENDING, S.PUBLISHED])
def test_a_signal_for_a_job_that_does_not_wait_is_refused(session: Session, status: str) -> None:
    (video,) = add_videos(session, "a", status=status, owner="w")

    with pytest.raises(NotWaiting) as raised:
        videos().signal(session, video, S.RENDERED)

    assert raised.value.status == status
    session.commit()
    assert (statuses(session), video.owner) == ({"a": status}, "w")
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
