"""Jobs pass through the steps of a workflow."""

from __future__ import annotations

import pytest
from sqlalchemy import Engine, select
from sqlalchemy.orm import Session

from sa_jobqueue.workflow import Transition, Workflow
from tests.contract.workflow.support import logged, statuses, work
from tests.videos import S, Video, add_videos, videos

pytestmark = pytest.mark.by_turns("sqlite", "postgresql", "mysql", "mariadb")


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
