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
    ClaimLost,
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
from sa_jobqueue.model.round_table import round_table
from sa_jobqueue.rounds import RoundProgress, RoundStart
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


@pytest.mark.parametrize("chunk", [None, 2, 5])
def test_rows_outside_of_the_criteria_stay_as_they_are(
    session: Session, start_either: Start, chunk: int | None
) -> None:
    add(session, Subscriber, 5)
    session.execute(update(Subscriber).where(Subscriber.id.in_([2, 4])).values(kind=2))
    finish_all(session, Subscriber)

    start_either(Subscriber, Subscriber.kind == 1, chunk=chunk)

    new, old = ("unclaimed", 1), ("done", 0)
    assert state(session) == {1: new, 2: old, 3: new, 4: old, 5: new}


def test_rows_that_an_older_round_has_not_finished_move_to_the_new_one(
    session: Session, start_either: Start
) -> None:
    add(session, Subscriber, 4)
    start_either(Subscriber)
    complete(session, claim(session, Subscriber, owner="w", limit=2))
    session.commit()

    number = start_either(Subscriber)

    assert round_progress(session, Subscriber, 1).total == 0
    assert round_progress(session, Subscriber, number).unclaimed == 4


def test_two_rounds_at_once_do_not_mix(session: Session, start: Start, strategy: str) -> None:
    add(session, Subscriber, 9)
    odd = start(Subscriber, Subscriber.id % 2 == 1)
    even = start(Subscriber, Subscriber.id % 2 == 0)

    found = {}
    for number in (odd, even):
        of_round = Subscriber.round == number
        jobs = claim(session, Subscriber, of_round, owner="w", limit=9, strategy=strategy)
        found[number] = [job.id for job in jobs]

    assert found == {odd: [1, 3, 5, 7, 9], even: [2, 4, 6, 8]}
    session.rollback()


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
    add(session, Subscriber, 2, round=6, status="done")

    assert start(Subscriber) == 7
    assert state(session) == dict.fromkeys((1, 2), ("unclaimed", 7))


def test_a_row_that_joins_a_round_counts_where_the_table_of_rounds_was_lost(
    session: Session, start: Start
) -> None:
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


def test_a_claim_that_was_lost_writes_nothing_to_a_row_that_joined(
    session: Session, start: Start
) -> None:
    add(session, Subscriber, 1)
    jobs = claim(session, Subscriber, owner="w")
    session.commit()
    start(Subscriber)
    reap(session, Subscriber, max_runtime=timedelta(0))
    session.commit()
    complete(session, claim(session, Subscriber, owner="other"))
    session.commit()

    with pytest.raises(ClaimLost):
        complete(session, jobs)

    assert state(session) == {1: ("done", 1)}


def test_reap_does_not_fail_a_row_that_joins_a_round(session: Session, start: Start) -> None:
    add(session, Subscriber, 1, max_attempts=1)
    claim(session, Subscriber, owner="w")
    session.commit()
    start(Subscriber)

    reaped = reap(session, Subscriber, max_runtime=timedelta(0))

    assert (reaped.failed, reaped.unclaimed) == (0, 1)


def test_a_deleting_finish_deletes_a_row_that_joins_a_round(session: Session, start: Start) -> None:
    add(session, Subscriber, 1)
    jobs = claim(session, Subscriber, owner="w")
    session.commit()
    start(Subscriber)

    complete(session, jobs, delete=True)

    assert state(session) == {}


def test_a_row_in_a_status_that_the_class_does_not_know_is_left_alone_and_counted(
    session: Session, start: Start
) -> None:
    add(session, Subscriber, 3)
    JobQueue(Subscriber, during="rendering").claim(session, owner="w")
    session.commit()
    told: list[RoundStart] = []

    number = start(Subscriber, on_progress=told.append)

    assert state(session)[1] == ("rendering", 0)
    assert told[-1] == RoundStart(number, rows=2, skipped=1)


@pytest.mark.parametrize("chunk", [None, 10])
def test_rows_in_further_statuses_of_the_class_come_into_a_round_too(
    session: Session, start: Start, chunk: int | None
) -> None:
    """One job is ready for its second step; the second step has claimed the other."""
    add(session, Sheet, 2, status="printed")
    folding = JobQueue(Sheet, ready="printed", during="folding")
    jobs = folding.claim(session, owner="w")
    session.commit()

    number = start(Sheet, chunk=chunk)

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


def test_rows_that_are_left_alone_are_looked_at_once(session: Session, start: Start) -> None:
    """Else a chunk of such rows only would be repeated forever."""
    add(session, Subscriber, 6)
    JobQueue(Subscriber, during="rendering").claim(session, owner="w", limit=2)
    session.commit()
    told: list[RoundStart] = []

    def tell(progress: RoundStart) -> None:
        told.append(progress)
        assert len(told) < 6

    number = start(Subscriber, chunk=2, on_progress=tell)

    assert told[-1] == RoundStart(number, rows=4, skipped=2)


def test_a_retried_row_stays_in_its_round(session: Session, start: Start) -> None:
    add(session, Subscriber, 1)
    start(Subscriber)
    jobs = claim(session, Subscriber, owner="w")
    complete(session, jobs)

    retry(session, jobs[0])

    assert state(session) == {1: ("unclaimed", 1)}


@pytest.mark.parametrize("chunk", [None, 10])
@pytest.mark.parametrize("step", ["claimed", "claimed and finished"])
def test_a_row_that_is_claimed_just_before_the_update_is_not_forgotten(
    engine: Engine, session: Session, new_session: Sessions, chunk: int | None, step: str
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
        start_round(engine, Subscriber, chunk=chunk)

    assert stepped
    if theirs and step == "claimed":
        assert state(session) == {1: ("claimed", -1)}
        complete(other, theirs)
        other.commit()
        session.rollback()
    assert state(session) == {1: ("unclaimed", 1)}


@pytest.mark.only_on(*SERVERS)
@pytest.mark.parametrize("chunk", [None, 10])
def test_a_row_whose_finish_is_under_way_is_waited_for(
    engine: Engine, session: Session, new_session: Sessions, chunk: int | None
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


def test_before_the_first_round_progress_counts_no_rows(session: Session) -> None:
    add(session, Subscriber, 3)
    claim(session, Subscriber, owner="w")

    progress = round_progress(session, Subscriber)

    assert (progress.round, progress.started) == (0, False)
    assert (progress.unclaimed, progress.claimed, progress.joining, progress.total) == (2, 1, 0, 3)


def test_rows_in_no_round_are_counted_as_round_0(session: Session, start: Start) -> None:
    add(session, Subscriber, 3)
    start(Subscriber, Subscriber.id > 1)

    progress = round_progress(session, Subscriber, 0)

    assert (progress.round, progress.started, progress.total) == (0, False, 1)


def test_with_round_mixin_alone_no_row_is_done_before_the_first_round(session: Session) -> None:
    add(session, Reader, 3)

    progress = round_progress(session, Reader)

    assert (progress.unclaimed, progress.done, progress.total) == (3, 0, 3)


# -- refusals -------------------------------------------------------------------


def test_invalid_arguments_are_refused_with_the_way_out(engine: Engine, session: Session) -> None:
    with pytest.raises(ArgumentError, match="Email has no rounds: add RoundMixin"):
        start_round(session, Email)
    with pytest.raises(ArgumentError, match="Email has no rounds: add RoundMixin"):
        round_progress(session, Email)
    for chunk in (0, True, 1.5):
        with pytest.raises(ArgumentError, match="at least 1"):
            start_round(session, Subscriber, chunk=chunk)  # type: ignore[arg-type]  # the mistake under test
    for where_to in (session, engine):
        with pytest.raises(ArgumentError, match=r"other tables than that of Subscriber: .* exists"):
            start_round(where_to, Subscriber, Email.id == 1)
    with engine.connect() as connection, pytest.raises(ArgumentError, match="a Connection"):
        start_round(connection, Subscriber)  # type: ignore[arg-type]  # the mistake under test


def test_the_rounds_are_recorded_in_a_table_of_their_own(session: Session, start: Start) -> None:
    add(session, Subscriber, 1)
    rounds = round_table(JobQueue(Subscriber).mapping)

    start(Subscriber)
    start(Subscriber, Subscriber.kind == 1)

    found = session.execute(select(rounds).order_by(rounds.c.round)).all()
    assert rounds.name == "round_subscriber_rounds"
    assert [row.round for row in found] == [1, 2]
    assert len({row.criteria for row in found}) == 2
    assert all(row.begun_at <= row.started_at for row in found)
