"""One worker serves several steps, and the other verbs know the statuses."""

from __future__ import annotations

import pytest
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from sa_jobqueue import count_by_status, retry
from sa_jobqueue.doctor import examine
from sa_jobqueue.worker import Done, Worker
from sa_jobqueue.workflow import InvalidTransition
from tests.contract.workflow.support import logged, statuses, step_of, work
from tests.videos import S, Video, add_videos, videos

pytestmark = pytest.mark.by_turns("sqlite", "postgresql", "mysql", "mariadb")

#: In every fourth turn a worker begins with the queue that it has passed over for longest.
FAIR_EVERY = 4


# -- one worker, several steps ----------------------------------------------


def test_a_worker_of_some_steps_leaves_the_others_alone(engine: Engine, session: Session) -> None:
    workflow = videos()
    add_videos(session, "a")
    add_videos(session, "b", status=S.RENDERED)

    work(engine, step_of(workflow, "check"))

    assert statuses(session) == {"a": "checked", "b": "rendered"}


def test_a_step_writes_own_columns_and_takes_a_branch(engine: Engine, session: Session) -> None:
    def check(video: Video) -> Done:
        ok = video.title == "good"
        return Done({Video.title: f"{video.title}, seen"}, then=None if ok else S.REJECTED)

    add_videos(session, "good", "bad")

    work(engine, step_of(videos(check), "check"), limit=2)

    assert statuses(session) == {"good, seen": "checked", "bad, seen": "rejected"}
    assert logged(session, "after", "verb")[-2:] == [
        ("checked", "complete"),
        ("rejected", "complete"),
    ]


def test_jobs_that_have_begun_go_on_before_new_jobs_begin(engine: Engine, session: Session) -> None:
    order: list[tuple[str, str]] = []
    add_videos(session, "a", "b")

    work(engine, videos(*[lambda video: order.append((video.title, video.status))] * 3))

    assert order == [("a", "checking"), ("a", "sending"), ("b", "checking"), ("b", "sending")]


def test_a_later_step_that_is_never_empty_starves_no_step(engine: Engine, session: Session) -> None:
    handled: list[str] = []
    add_videos(session, *"abc")
    add_videos(session, *map(str, range(30)), status=S.RENDERED)

    work(engine, videos(*[lambda video: handled.append(video.status)] * 3))

    assert handled.index("checking") < FAIR_EVERY
    assert handled.index("sending") <= 3 * FAIR_EVERY


def test_a_worker_stops_with_jobs_of_several_steps_in_hand(
    engine: Engine, session: Session
) -> None:
    add_videos(session, "a", "b")
    add_videos(session, "c", status=S.RENDERED)
    add_videos(session, "d", status=S.CHECKED)
    workers: list[Worker[Video]] = []

    workers.append(Worker(engine, videos(publish=lambda video: workers[0].stop()), limit=4))
    workers[0].run()

    released = {"a": "uploaded", "b": "uploaded", "d": "checked"}
    assert statuses(session) == {**released, "c": "published"}


# -- other verbs know the statuses ------------------------------------------


def test_jobs_are_counted_by_the_statuses_of_all_steps(session: Session) -> None:
    workflow = videos()
    for status in (S.UPLOADED, S.CHECKED, S.CHECKED, S.RENDERED, S.AT_FARM):
        add_videos(session, "a", status=status)
    step_of(workflow, "send").queue.claim(session, owner="w", limit=2)
    session.commit()

    counts = count_by_status(session, Video)

    empty = dict.fromkeys(["checking", "checked", "publishing", "published"], 0)
    unused = dict.fromkeys(["failed", "cancelled"], 0)
    there = {"uploaded": 1, "sending": 2, "rendered": 1, "at farm": 1}
    assert counts == {**there, **empty, **unused}


def test_a_retry_leads_to_a_ready_status_of_a_step(session: Session) -> None:
    workflow = videos()
    (video,) = add_videos(session, "a", status="failed")

    with pytest.raises(InvalidTransition, match="'uploaded', 'checked', 'rendered', not to"):
        workflow.retry(session, video, S.AT_FARM)

    assert retry(session, video) == [video]
    assert video.status == "uploaded"


def test_the_doctor_finds_the_claims_and_the_reaps_of_every_step_served(
    engine: Engine, session: Session
) -> None:
    add_videos(session, "a")

    for step in videos():
        report = examine(engine, step.queue)

        found = {one.check: one.severity for one in (*report.findings, *report.facts)}
        assert [found[check] for check in ("index", "reap")] == ["ok"] * 2
