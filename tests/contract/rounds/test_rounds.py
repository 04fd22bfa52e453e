"""Rounds over the same rows: what they write to rows that are free and rows that are claimed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, select, update
from sqlalchemy.orm import Session

from sa_jobqueue import (
    ArgumentError,
    JobQueue,
    cancel_claimed,
    claim,
    claimed_by,
    complete,
    enqueue,
    fail,
    reap,
    release,
    renew,
    retry,
    round_progress,
    start_round,
)
from sa_jobqueue.rounds import RoundProgress
from tests.contract.round_models import Reader, Sheet, Subscriber, add, finish_all, state
from tests.contract.steps import before, unless_refused
from tests.models import Email
from tests.support import SERVERS, Sessions, impatient

Start = Callable[..., int]


# -- what a round makes of its rows ---------------------------------------------


def test_finished_rows_are_claimable_once_more_under_the_next_number(
    session: Session, start_either: Start
) -> None:
    add(session, Subscriber, 5)
    finish_all(session, Subscriber)

    numbers = [start_either(Subscriber), start_either(Subscriber)]

    assert numbers == [1, 2]
    assert state(session) == dict.fromkeys(range(1, 6), ("unclaimed", 2))
    assert finish_all(session, Subscriber) == [1, 2, 3, 4, 5]


def test_a_row_comes_into_a_round_without_owner_attempts_or_error(
    session: Session, start: Start
) -> None:
    add(session, Subscriber, 1)
    failed = claim(session, Subscriber, owner="w")
    fail(session, failed, error="unreachable")
    session.commit()
    gone = claim(session, Subscriber, owner="w")
    cancel_claimed(session, gone, reason="no such address")
    session.commit()

    start(Subscriber)

    (row,) = session.scalars(select(Subscriber))
    assert (row.status, row.owner, row.owner_date) == ("unclaimed", None, None)
    assert (row.attempts, row.last_error) == (0, None)


@pytest.mark.parametrize("chunk", [2, 5])
def test_rows_outside_of_the_criteria_stay_as_they_are(
    session: Session, start_either: Start, chunk: int
) -> None:
    add(session, Subscriber, 5)
    session.execute(update(Subscriber).where(Subscriber.id.in_([2, 4])).values(kind=2))
    finish_all(session, Subscriber)

    start_either(Subscriber, Subscriber.kind == 1, chunk=chunk)

    new, old = ("unclaimed", 1), ("done", 0)
    assert state(session) == {1: new, 2: old, 3: new, 4: old, 5: new}


def test_rows_that_are_new_are_in_no_round_and_join_the_next(
    session: Session, start: Start
) -> None:
    add(session, Subscriber, 2)
    number = start(Subscriber)
    enqueue(session, Subscriber, [{"id": 3}])
    session.commit()

    assert round_progress(session, Subscriber, number).total == 2
    assert state(session)[3] == ("unclaimed", 0)
    assert start(Subscriber) == number + 1
    assert round_progress(session, Subscriber).total == 3


def test_numbers_go_on_after_the_table_of_rounds_was_lost(session: Session, start: Start) -> None:
    add(session, Subscriber, 1, round=6, status="done")
    session.add(Subscriber(id=2, round=-8, status="claimed", owner="w"))
    session.commit()

    assert start(Subscriber) == 9
    assert state(session) == {1: ("unclaimed", 9), 2: ("claimed", -9)}


# -- rows that are claimed meanwhile --------------------------------------------

ENDS: dict[str, Callable[[Session, Any], object]] = {
    "complete": complete,
    "fail": lambda session, jobs: fail(session, jobs, error="unreachable"),
    "release": release,
    "cancel_claimed": lambda session, jobs: cancel_claimed(session, jobs, reason="gone"),
    "reap": lambda session, jobs: reap(session, Subscriber, max_runtime=timedelta(0)),
}


@pytest.mark.parametrize("end", ENDS)
def test_a_claimed_row_joins_the_round_when_its_claim_ends(
    session: Session, start: Start, end: str
) -> None:
    add(session, Subscriber, 2, max_attempts=1)
    jobs = claim(session, Subscriber, owner="w")
    session.commit()

    number = start(Subscriber)
    progress = round_progress(session, Subscriber)
    ENDS[end](session, jobs)
    session.commit()

    assert (progress.joining, progress.unclaimed, progress.total) == (1, 1, 2)
    (job,) = jobs
    for shown in ("now", "read again"):
        assert (job.status, job.round, job.owner) == ("unclaimed", number, None), shown
        assert (job.owner_date, job.attempts, job.last_error) == (None, 0, None), shown
        session.expire_all()
    assert finish_all(session, Subscriber) == [1, 2]
    assert round_progress(session, Subscriber).done == 2


def test_nothing_is_reset_under_a_living_owner(
    session: Session, start: Start, new_session: Sessions
) -> None:
    add(session, Subscriber, 1)
    (job,) = claim(session, Subscriber, owner="w")
    session.commit()
    before = (job.status, job.owner, job.owner_date, job.attempts)

    start(Subscriber)

    session.refresh(job)
    assert (job.status, job.owner, job.owner_date, job.attempts) == before
    assert not claim(session, Subscriber, owner="other", limit=5)
    renew(session, job)
    session.commit()
    with new_session() as later:
        assert [found.id for found in claimed_by(later, Subscriber, "w")] == [1]
        complete(later, claimed_by(later, Subscriber, "w"))


def test_a_row_that_is_claimed_over_two_starts_joins_the_newest(
    session: Session, start: Start
) -> None:
    add(session, Subscriber, 1)
    jobs = claim(session, Subscriber, owner="w")
    session.commit()

    start(Subscriber)
    number = start(Subscriber)
    complete(session, jobs)
    session.commit()

    assert state(session) == {1: ("unclaimed", number)}


def test_a_deleting_finish_deletes_a_row_that_joins_a_round(session: Session, start: Start) -> None:
    add(session, Subscriber, 1)
    jobs = claim(session, Subscriber, owner="w")
    session.commit()
    start(Subscriber)

    complete(session, jobs, delete=True)

    assert state(session) == {}


def test_rows_in_a_status_that_the_class_does_not_know_are_left_alone_and_logged(
    session: Session, start_either: Start, caplog: pytest.LogCaptureFixture
) -> None:
    """A chunk of such rows only does not stop the start, and is not repeated forever."""
    add(session, Subscriber, 5)
    JobQueue(Subscriber, during="rendering").claim(session, owner="w", limit=2)
    session.commit()

    number = start_either(Subscriber, chunk=2)

    left = dict.fromkeys((1, 2), ("rendering", 0))
    assert state(session) == left | dict.fromkeys((3, 4, 5), ("unclaimed", number))
    assert f"2 rows were left out of round {number}" in caplog.text


def test_rows_in_further_statuses_of_the_class_come_into_a_round_too(
    session: Session, start: Start
) -> None:
    """One job is ready for its second step; the second step has claimed the other."""
    add(session, Sheet, 2, status="printed")
    folding = JobQueue(Sheet, ready="printed", during="folding")
    jobs = folding.claim(session, owner="w")
    session.commit()

    number = start(Sheet)

    assert state(session, Sheet) == {1: ("folding", -number), 2: ("unclaimed", number)}
    assert round_progress(session, Sheet).joining == 1
    folding.complete(session, jobs)
    assert state(session, Sheet) == dict.fromkeys((1, 2), ("unclaimed", number))
    session.execute(update(Sheet).values(status="printed"))
    folding.claim(session, owner="w")
    progress = round_progress(session, Sheet)
    assert (progress.unclaimed, progress.claimed, progress.total) == (1, 1, 2)


def test_a_row_that_a_new_round_waits_for_keeps_the_values_of_its_finish(
    session: Session, start: Start
) -> None:
    add(session, Subscriber, 1)
    start(Subscriber)
    jobs = claim(session, Subscriber, owner="w")
    session.commit()
    number = start(Subscriber)

    complete(session, jobs, values={Subscriber.kind: 7})

    assert (jobs[0].status, jobs[0].kind) == ("unclaimed", 7)
    session.commit()
    assert session.scalars(select(Subscriber.kind)).all() == [7]
    assert state(session) == {1: ("unclaimed", number)}


def test_a_retried_row_stays_in_its_round(session: Session, start: Start) -> None:
    add(session, Subscriber, 1)
    start(Subscriber)
    jobs = claim(session, Subscriber, owner="w")
    complete(session, jobs)

    retry(session, jobs[0])

    assert state(session) == {1: ("unclaimed", 1)}


@pytest.mark.parametrize("step", ["claimed", "claimed and finished"])
def test_a_row_that_is_claimed_just_before_the_update_is_not_forgotten(
    engine: Engine, session: Session, new_session: Sessions, step: str
) -> None:
    add(session, Subscriber, 1)
    other = new_session(impatient(engine))
    theirs: list[Any] = []

    def take() -> None:
        theirs.extend(claim(other, Subscriber, owner="other"))
        if step == "claimed and finished":
            complete(other, theirs)
        other.commit()

    step_in = unless_refused(take, other)
    with before(engine, "UPDATE round_subscriber SET round", step_in) as stepped:
        start_round(engine, Subscriber)

    assert stepped
    if theirs and step == "claimed":
        assert state(session) == {1: ("claimed", -1)}
        complete(other, theirs)
        other.commit()
        session.rollback()
    assert state(session) == {1: ("unclaimed", 1)}


@pytest.mark.only_on(*SERVERS)
def test_a_row_whose_finish_is_under_way_is_waited_for(
    engine: Engine, session: Session, new_session: Sessions
) -> None:
    add(session, Subscriber, 2)
    other = new_session()
    complete(other, claim(other, Subscriber, owner="w", strategy="held"))

    with before(engine, "UPDATE round_subscriber SET round", lambda: None) as arrived:
        starter = threading.Thread(target=start_round, args=(engine, Subscriber))
        starter.start()
        while not arrived:
            starter.join(0.01)
        other.commit()
        starter.join(30)

    assert state(session) == dict.fromkeys((1, 2), ("unclaimed", 1))


# -- progress -------------------------------------------------------------------


def test_progress_counts_the_rows_of_a_round_by_status(session: Session, start: Start) -> None:
    add(session, Subscriber, 8)
    claim(session, Subscriber, owner="before")
    session.commit()
    number = start(Subscriber, Subscriber.id < 8)
    jobs = claim(session, Subscriber, Subscriber.round == number, owner="w", limit=5)
    complete(session, jobs[:2])
    cancel_claimed(session, jobs[2])
    session.execute(update(Subscriber).where(Subscriber.id == jobs[3].id).values(status="failed"))
    session.commit()

    progress = round_progress(session, Subscriber)

    assert progress == RoundProgress(
        number, started=True, unclaimed=1, claimed=1, joining=1, done=2, failed=1, cancelled=1
    )
    assert (progress.total, progress.finished) == (7, 4)


def test_before_the_first_round_progress_counts_the_rows_of_no_round(session: Session) -> None:
    add(session, Subscriber, 3)
    claim(session, Subscriber, owner="w")

    progress = round_progress(session, Subscriber)

    assert progress == round_progress(session, Subscriber, 0)
    assert (progress.round, progress.started) == (0, False)
    assert (progress.unclaimed, progress.claimed, progress.joining, progress.total) == (2, 1, 0, 3)


def test_with_round_mixin_alone_no_row_is_done_before_the_first_round(session: Session) -> None:
    add(session, Reader, 3)

    progress = round_progress(session, Reader)

    assert (progress.unclaimed, progress.done, progress.total) == (3, 0, 3)


# -- refusals -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("entity", "options", "said"),
    [
        (Email, {}, "Email has no rounds: add RoundMixin"),
        (Subscriber, {"chunk": 0}, "at least 1"),
        (Subscriber, {"chunk": True}, "at least 1"),
        (Subscriber, {"chunk": None}, "at least 1"),
        (Subscriber, {"where": Email.id == 1}, r"other tables than that of Subscriber: .* exists"),
    ],
)
def test_invalid_arguments_are_refused_with_the_way_out(
    start_either: Start, entity: Any, options: dict[str, Any], said: str
) -> None:
    where = [options["where"]] if "where" in options else []
    options = {name: given for name, given in options.items() if name != "where"}
    with pytest.raises(ArgumentError, match=said):
        start_either(entity, *where, **options)


def test_a_connection_starts_no_round_and_a_class_without_rounds_has_no_progress(
    engine: Engine, session: Session
) -> None:
    with engine.connect() as connection, pytest.raises(ArgumentError, match="a Connection"):
        start_round(connection, Subscriber)  # type: ignore[arg-type]  # the mistake under test
    with pytest.raises(ArgumentError, match="Email has no rounds: add RoundMixin"):
        round_progress(session, Email)


def test_the_rounds_are_recorded_in_a_table_of_their_own(session: Session, start: Start) -> None:
    add(session, Subscriber, 1)
    rounds = Subscriber.metadata.tables["round_subscriber_rounds"]

    start(Subscriber)
    start(Subscriber, Subscriber.kind == 1)

    found = session.execute(select(rounds).order_by(rounds.c.round)).all()
    assert [row.round for row in found] == [1, 2]
    assert len({row.criteria for row in found}) == 2
    assert all(row.begun_at <= row.started_at for row in found)
