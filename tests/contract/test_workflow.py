"""Workflows: jobs that pass through several statuses, on every engine."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, event, select, update
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from sa_jobqueue import (
    ArgumentError,
    ClaimLost,
    JobStatus,
    Owner,
    cancel,
    count_by_status,
    fence_of,
    prune,
    queue_stats,
    reprioritize,
    retry,
)
from sa_jobqueue.doctor import examine
from sa_jobqueue.owners.named_lock import NamedLock
from sa_jobqueue.worker import Cancel, Retry, Worker
from sa_jobqueue.worker.lanes import FAIR_EVERY
from sa_jobqueue.workflow import InvalidTransition, NotWaiting, Transition, Workflow
from tests.support import statements_seen
from tests.videos import S, Video, VideoLog, add_videos, videos

SOON = timedelta(milliseconds=20)
FORCE = timedelta(0)


def work(engine: Engine, steps: Any, **options: Any) -> None:
    """Drain steps with a worker that does not idle for long."""
    options = {"drain": True, "poll": SOON, "backoff": lambda attempts: SOON, **options}
    Worker(engine, steps, **options).run()


def statuses(session: Session) -> dict[str, str]:
    session.rollback()
    found = session.execute(select(Video.title, Video.status))
    return {row.title: row.status for row in found}


def logged(session: Session, *columns: str) -> list[Any]:
    columns = columns or ("before", "after", "verb")
    found = session.execute(
        select(*(getattr(VideoLog, name) for name in columns)).order_by(VideoLog.id)
    )
    return [tuple(row) for row in found]


def step_of(workflow: Workflow[Video], name: str) -> Any:
    (found,) = [step for step in workflow if step.name == name]
    return found


def at_farm(session: Session, title: str = "a") -> Video:
    """Commit a video that was handed off."""
    (video,) = add_videos(session, title, status=S.AT_FARM)
    return video


# -- steps ------------------------------------------------------------------


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


def test_a_handler_takes_a_branch(engine: Engine, session: Session) -> None:
    workflow = videos(check=lambda video: S.REJECTED if video.title == "bad" else None)
    add_videos(session, "good", "bad", "fine")

    work(engine, workflow, limit=3)

    assert statuses(session) == {"good": "at farm", "bad": "rejected", "fine": "at farm"}


@pytest.mark.parametrize("outcome", [S.PUBLISHED, "published", "at farm", "nonsense", "x" * 20])
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


def test_a_finish_to_an_undeclared_status_writes_nothing(session: Session) -> None:
    check = step_of(videos(), "check")
    add_videos(session, "a")
    claimed = check.queue.claim(session, owner="w")

    with pytest.raises(InvalidTransition) as raised:
        check.queue.complete(session, claimed, then=S.PUBLISHED)

    assert raised.value.declared == ("checked", "rejected")
    session.commit()
    assert statuses(session) == {"a": "checking"}


def test_a_job_that_waits_for_its_next_step_belongs_to_nobody(session: Session) -> None:
    check = step_of(videos(), "check")
    (video,) = add_videos(session, "a")
    check.queue.complete(session, check.queue.claim(session, owner="w"))
    assert (video.status, video.owner, video.owner_date, video.attempts) == (
        ("checked", None, None, 0)
    )

    session.commit()
    session.refresh(video)

    assert (video.status, video.owner, video.owner_date, video.attempts) == (
        ("checked", None, None, 0)
    )


@pytest.mark.parametrize("then", [S.REJECTED, JobStatus.FAILED])
def test_a_job_that_ends_keeps_who_ended_it_and_when(session: Session, then: str) -> None:
    workflow = Workflow(Video, S, final=[S.REJECTED])

    @workflow.step(S.UPLOADED, during=S.CHECKING, then=then)
    def check(video: Video) -> None: ...

    (video,) = add_videos(session, "a")
    before = fence_of(check.queue.claim(session, owner="w")[0]).owner_date
    assert before is not None

    check.queue.complete(session, video)

    session.commit()
    session.refresh(video)
    assert (video.status, video.owner, video.attempts) == (str(then), "w", 1)
    assert video.owner_date is not None
    assert video.owner_date >= before


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


def test_a_failed_attempt_goes_back_to_its_own_step_and_at_last_fails(
    engine: Engine, session: Session
) -> None:
    def fail(video: Video) -> None:
        raise ValueError("no")

    add_videos(session, "a", max_attempts=2)

    work(engine, videos(send=fail))

    assert statuses(session) == {"a": "failed"}
    assert logged(session)[2:] == [
        ("checked", "sending", "claim"),
        ("sending", "checked", "fail"),
        ("checked", "sending", "claim"),
        ("sending", "failed", "fail"),
    ]


def test_a_handler_asks_for_another_try_or_cancels(engine: Engine, session: Session) -> None:
    def send(video: Video) -> Retry | Cancel | None:
        if video.title == "never":
            return Cancel("withdrawn")
        return Retry(in_=SOON) if video.attempts == 1 else None

    add_videos(session, "again", "never")

    work(engine, videos(send=send))

    assert statuses(session) == {"again": "at farm", "never": "cancelled"}


def test_a_step_may_lead_back_to_an_earlier_one(engine: Engine, session: Session) -> None:
    workflow = videos(publish=lambda video: S.CHECKED)
    add_videos(session, "a", status=S.RENDERED)

    work(engine, workflow)

    assert statuses(session) == {"a": "at farm"}


def test_only_done_jobs_are_deleted(engine: Engine, session: Session) -> None:
    workflow = videos(check=lambda video: S.REJECTED if video.title == "bad" else None)
    add_videos(session, "bad", "good")
    add_videos(session, "last", status=S.RENDERED)

    work(engine, workflow, delete=True)

    assert statuses(session) == {"bad": "rejected", "good": "at farm"}
    assert ("publishing", "published", "complete") in logged(session)


def test_a_turn_finishes_a_step_of_one_batch_and_claims_the_next(session: Session) -> None:
    check = step_of(videos(), "check")
    add_videos(session, "a", "b")
    first = check.queue.claim(session, owner="w")

    second = check.queue.turn(session, first, owner="w")

    assert [video.title for video in second] == ["b"]
    session.commit()
    assert statuses(session) == {"a": "checked", "b": "checking"}
    assert logged(session)[1:] == [
        ("checking", "checked", "complete"),
        ("uploaded", "checking", "claim"),
    ]


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


# -- hand-offs and signals --------------------------------------------------


def test_a_drain_does_not_wait_for_signals(engine: Engine, session: Session) -> None:
    add_videos(session, "a", "b")

    work(engine, videos())

    assert statuses(session) == {"a": "at farm", "b": "at farm"}


@pytest.mark.parametrize(
    "name_it",
    [lambda video: video, lambda video: video.id, lambda video: (video.id,)],
    ids=["entity", "key", "tuple"],
)
def test_a_signal_moves_a_job_by_whatever_names_it(
    session: Session, name_it: Callable[[Video], Any]
) -> None:
    video = at_farm(session)

    videos().signal(session, name_it(video), S.RENDERED)

    assert video.status == "rendered"  # the entity in this session shows it
    session.commit()
    assert statuses(session) == {"a": "rendered"}


def test_a_signal_takes_a_fence(session: Session) -> None:
    workflow = videos()
    send = step_of(workflow, "send")
    add_videos(session, "a", status=S.CHECKED)
    fence = fence_of(send.queue.claim(session, owner="w")[0])
    send.queue.complete(session, fence)

    workflow.signal(session, fence, S.RENDERED)

    session.commit()
    assert statuses(session) == {"a": "rendered"}


def test_a_signal_to_a_final_status_notes_when(session: Session) -> None:
    video = at_farm(session)

    videos().signal(session, video, S.REJECTED)

    assert (video.status, video.owner) == ("rejected", None)
    assert video.owner_date is not None  # prune() goes by it
    session.commit()
    assert prune(session, Video, older_than=timedelta(hours=-1), statuses=["rejected"]) == 1


def test_a_second_signal_is_reported_and_changes_nothing(session: Session) -> None:
    workflow, video = videos(), at_farm(session)
    workflow.signal(session, video, S.RENDERED)
    session.commit()

    with pytest.raises(NotWaiting) as raised:
        workflow.signal(session, video.id, S.RENDERED)

    assert raised.value.status == "rendered"
    assert f"Video {video.id} is 'rendered'" in str(raised.value)
    session.commit()
    assert statuses(session) == {"a": "rendered"}
    assert len(logged(session)) == 1


def test_of_two_signals_at_once_one_is_reported(
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

    other = new_session()
    workflow.signal(session, video, S.RENDERED)
    thread = threading.Thread(target=signal_too, args=[other])
    with statement_begun(engine) as begun:
        thread.start()
        assert begun.wait(10)  # it is at it, and waits for our row, or for our database
    session.commit()
    thread.join(20)

    assert [error.status for error in caught] == ["rendered"]
    assert statuses(session) == {"a": "rendered"}


@contextmanager
def statement_begun(engine: Engine) -> Iterator[threading.Event]:
    """Give an event that is set when a statement begins."""
    begun = threading.Event()

    def begin(*_: object) -> None:
        begun.set()

    event.listen(engine, "before_cursor_execute", begin)
    try:
        yield begun
    finally:
        event.remove(engine, "before_cursor_execute", begin)


@pytest.mark.parametrize("status", [S.UPLOADED, S.SENDING, S.PUBLISHED, S.RENDERED])
def test_a_signal_for_a_job_that_does_not_wait_is_refused(session: Session, status: str) -> None:
    (video,) = add_videos(session, "a", status=status, owner="w")

    with pytest.raises(NotWaiting) as raised:
        videos().signal(session, video, S.RENDERED)

    assert raised.value.status == status
    session.commit()
    assert (statuses(session), video.owner) == ({"a": status}, "w")


def test_a_signal_for_a_job_that_is_not_there_says_so(session: Session) -> None:
    with pytest.raises(NotWaiting, match="Video 77 is not there") as raised:
        videos().signal(session, 77, S.RENDERED)

    assert raised.value.status is None


@pytest.mark.parametrize("status", [S.PUBLISHED, "nonsense"])
def test_a_signal_where_none_leads_names_those_that_there_are(
    session: Session, status: str
) -> None:
    video = at_farm(session)

    with pytest.raises(InvalidTransition, match="'at farm' a job goes to 'rendered', 'rejected'"):
        videos().signal(session, video, status)

    assert statuses(session) == {"a": "at farm"}


def test_a_signal_that_is_rolled_back_has_not_been(session: Session) -> None:
    workflow, video = videos(), at_farm(session)
    workflow.signal(session, video, S.RENDERED)

    session.rollback()

    assert (video.status, logged(session)) == ("at farm", [])
    workflow.signal(session, video, S.RENDERED)


# -- transitions are told ---------------------------------------------------


def test_what_is_told_is_committed_with_its_transition_or_not_at_all(session: Session) -> None:
    check = step_of(videos(), "check")
    add_videos(session, "a")
    claimed = check.queue.claim(session, owner="w")
    session.commit()

    check.queue.complete(session, claimed)
    session.rollback()

    assert logged(session, "verb", "owner") == [("claim", "w")]


def test_a_lost_claim_is_not_told(session: Session, other: Session) -> None:
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


def test_every_verb_is_told_and_legal(session: Session) -> None:
    workflow = videos()
    check = step_of(workflow, "check")
    (video,) = add_videos(session, "a", max_attempts=9)

    def claimed() -> Any:
        return check.queue.claim(session, owner="w")

    check.queue.release(session, claimed())
    check.queue.fail(session, claimed(), error="no")
    check.queue.fail(session, claimed(), error="no")
    claimed()
    session.commit()
    check.queue.reap(session, max_runtime=FORCE)
    check.queue.cancel_claimed(session, claimed())
    workflow.retry(session, video)
    workflow.cancel(session, video)
    workflow.retry(session, video, S.RENDERED)
    session.commit()

    told = logged(session)
    assert {verb for *_, verb in told} == {
        *("claim", "release", "fail", "reap", "cancel_claimed", "retry", "cancel")
    }
    assert set(told) <= workflow.arrows
    assert all(before == after for (_, after, _), (before, *_) in pairwise(told))


# -- crashes ----------------------------------------------------------------


def test_a_crash_in_a_step_comes_back_to_where_the_step_claims_from(session: Session) -> None:
    workflow = videos()
    for name, ready in (("check", S.UPLOADED), ("send", S.CHECKED), ("publish", S.RENDERED)):
        add_videos(session, name, status=ready)
        step_of(workflow, name).queue.claim(session, owner="dead")
    session.commit()

    reaped = workflow.reap(session, max_runtime=FORCE)

    session.commit()
    assert len(reaped) == 3
    assert statuses(session) == {"check": "uploaded", "send": "checked", "publish": "rendered"}


def test_a_crash_that_used_up_the_attempts_ends_in_failed_and_is_told_so(
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


def test_a_step_takes_back_its_own_claims_only(session: Session) -> None:
    workflow = videos()
    for name, ready in (("check", S.UPLOADED), ("send", S.CHECKED)):
        add_videos(session, name, status=ready)
        step_of(workflow, name).queue.claim(session, owner="dead")
    session.commit()

    step_of(workflow, "send").queue.reap(session, max_runtime=FORCE)

    session.commit()
    assert statuses(session) == {"check": "checking", "send": "checked"}


def test_a_worker_takes_back_claims_of_all_its_steps(engine: Engine, session: Session) -> None:
    workflow = videos(lease=timedelta(microseconds=1))
    for name, ready in (("check", S.UPLOADED), ("send", S.CHECKED), ("publish", S.RENDERED)):
        add_videos(session, name, status=ready)
        step_of(workflow, name).queue.claim(session, owner="unknown")
    session.commit()

    work(engine, [step for step in workflow if step.name != "publish"])

    assert statuses(session) == {"check": "at farm", "send": "at farm", "publish": "publishing"}


def test_a_job_finished_and_claimed_anew_by_a_commit_in_doubt_is_not_lost(
    engine: Engine, session: Session
) -> None:
    """The COMMIT that ends one step has claimed the same job for the next."""
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
    assert in_hand == [1] * 4  # never more than the limit
    assert statuses(session) == {"a": "at farm", "b": "at farm"}


# -- one worker, several steps ----------------------------------------------


def test_a_worker_of_some_steps_leaves_the_others_alone(engine: Engine, session: Session) -> None:
    workflow = videos()
    add_videos(session, "a")
    add_videos(session, "b", status=S.RENDERED)

    work(engine, step_of(workflow, "check"))

    assert statuses(session) == {"a": "checked", "b": "rendered"}


def test_what_is_begun_is_finished_before_more_is_begun(engine: Engine, session: Session) -> None:
    order: list[tuple[str, str]] = []
    add_videos(session, "a", "b")

    work(engine, videos(*[lambda video: order.append((video.title, video.status))] * 3))

    assert order == [("a", "checking"), ("a", "sending"), ("b", "checking"), ("b", "sending")]


def test_no_step_is_starved_by_a_later_one_that_never_runs_empty(
    engine: Engine, session: Session
) -> None:
    handled: list[str] = []
    add_videos(session, *"abc")
    add_videos(session, *map(str, range(30)), status=S.RENDERED)

    work(engine, videos(*[lambda video: handled.append(video.status)] * 3))

    assert handled.index("checking") < FAIR_EVERY
    assert handled.index("sending") <= 3 * FAIR_EVERY


def test_a_batch_is_filled_from_several_steps(engine: Engine, session: Session) -> None:
    claims: list[Sequence[str]] = []
    add_videos(session, "a", "b")
    add_videos(session, "c", status=S.RENDERED)

    work(engine, videos(), limit=3, on_claim=lambda claim: claims.append([v.title for v in claim]))

    assert claims[:2] == [["c"], ["a", "b"]]


def test_a_lock_that_is_lost_between_two_steps_costs_the_worker_no_job(
    engine: Engine, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one has claimed by then, the other claims under the next name."""
    add_videos(session, "begun", status=S.RENDERED)
    add_videos(session, "new")
    workflow = videos()
    worker = Worker(engine, workflow, limit=3, drain=True, poll=SOON)
    check = step_of(workflow, "check").queue
    claim, names = check.claim, list[str]()

    def lose_lock_and_claim(*args: Any, **options: Any) -> Any:
        if not names:
            assert isinstance(worker.owner, Owner)
            names.append(worker.owner.name)
            held = worker.owner._held
            assert held is not None
            monkeypatch.setattr(NamedLock, "lost", property(lambda lock: lock is held.lock))
        return claim(*args, **options)

    monkeypatch.setattr(check, "claim", lose_lock_and_claim)
    worker.run()

    assert statuses(session) == {"begun": "published", "new": "at farm"}
    owners = dict(logged(session, "after", "owner"))
    assert [owners["publishing"]] == names != [owners["checking"]]


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


def test_an_outcome_is_told_as_the_handler_said_it(engine: Engine, session: Session) -> None:
    told: list[tuple[str, object]] = []
    add_videos(session, "a", "bad")

    work(
        engine,
        step_of(videos(lambda video: S.REJECTED if video.title == "bad" else None), "check"),
        on_outcome=lambda video, outcome: told.append((video.title, outcome)),
    )

    assert told == [("a", None), ("bad", "rejected")]


# -- other verbs know the statuses ------------------------------------------


def test_counts_and_stats_know_the_statuses(session: Session) -> None:
    workflow = videos()
    for status in (S.UPLOADED, S.CHECKED, S.CHECKED, S.RENDERED, S.AT_FARM):
        add_videos(session, "a", status=status)
    step_of(workflow, "send").queue.claim(session, owner="w", limit=2)
    session.execute(
        update(Video)
        .where(Video.status == S.RENDERED)
        .values(run_at=datetime.now(UTC) - timedelta(hours=1))
    )
    session.commit()

    counts, stats = count_by_status(session, Video), queue_stats(session, Video)

    empty = dict.fromkeys(["checking", "checked", "publishing", "published"], 0)
    unused = dict.fromkeys(["failed", "cancelled"], 0)
    there = {"uploaded": 1, "sending": 2, "rendered": 1, "at farm": 1}
    assert counts == {**there, **empty, **unused}
    assert (stats.depth, stats.claimed) == (2, {"w": 2})
    assert stats.oldest_waiting is not None
    assert stats.oldest_waiting > timedelta(minutes=59)  # the one that waits for the last step


def test_waiting_jobs_of_every_step_change_priority_and_are_cancelled(session: Session) -> None:
    jobs = [add_videos(session, status, status=status)[0] for status in S]

    changed = reprioritize(session, jobs, -5)
    gone = cancel(session, jobs)

    waiting = ["uploaded", "checked", "rendered"]
    assert [job.title for job in changed] == [job.title for job in gone] == waiting
    assert {job.title for job in videos().cancel(session, jobs)} == {"at farm"}


@pytest.mark.parametrize("status", [S.CHECKED, S.SENDING, S.CHECKING, S.UPLOADED])
def test_jobs_on_their_way_are_not_pruned(session: Session, status: str) -> None:
    with pytest.raises(ArgumentError, match="only finished jobs are pruned"):
        prune(session, Video, older_than=FORCE, statuses=[status])


def test_ended_jobs_begin_again_or_go_on_at_a_step(session: Session) -> None:
    workflow = videos()
    jobs = [add_videos(session, status, status=status)[0] for status in (*S, "failed")]

    again = workflow.retry(session, jobs, S.RENDERED)

    assert {job.title for job in again} == {"published", "rejected", "failed"}
    assert {job.status for job in again} == {"rendered"}
    (first,) = add_videos(session, "b", status="failed")
    assert retry(session, first) == [first]
    assert first.status == "uploaded"
    with pytest.raises(InvalidTransition, match="'uploaded', 'checked', 'rendered', not to"):
        workflow.retry(session, first, S.AT_FARM)


def test_the_doctor_finds_the_claims_and_the_reaps_of_every_step_served(
    engine: Engine, session: Session
) -> None:
    add_videos(session, "a")

    for step in videos():
        report = examine(engine, step.queue, run=False)

        found = {one.check: one.severity for one in (*report.findings, *report.facts)}
        assert [found[check] for check in ("index", "plan", "reap")] == ["ok"] * 3


def test_a_step_that_nobody_listens_to_costs_no_statement(engine: Engine, session: Session) -> None:
    workflow = Workflow(Video, S, final=[S.REJECTED])
    check = workflow.step(S.UPLOADED, during=S.CHECKING, then=S.REJECTED)(lambda video: None)
    add_videos(session, "a")
    claimed = check.queue.claim(session, owner="w")
    session.commit()

    with statements_seen(engine) as seen:
        check.queue.fail(session, claimed, error="no")

    assert [one.split()[0] for one in seen if one.startswith("UPDATE")] == ["UPDATE"]
    assert len(seen) <= 3
