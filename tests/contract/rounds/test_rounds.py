"""Rounds over the same rows: what they write to rows that are free and rows that are claimed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, insert, select, update
from sqlalchemy.orm import Session

from sa_jobqueue import (
    ArgumentError,
    JobQueue,
    cancel_claimed,
    claim,
    complete,
    fail,
    reap,
    release,
    round_progress,
    start_round,
)
from sa_jobqueue.rounds import RoundProgress
from tests.contract.round_models import (
    Cat,
    Device,
    Member,
    Pet,
    Reader,
    Sheet,
    Subscriber,
    add,
    finish_all,
    state,
)
from tests.contract.steps import before, unless_refused
from tests.models import Email
from tests.support import SERVERS, Sessions, impatient

pytestmark = pytest.mark.by_turns("sqlite", "postgresql", "mysql", "mariadb")

#: Where it matters which database runs the test.
two_by_turns = pytest.mark.by_turns("mysql", "mariadb")

Start = Callable[..., int]


# What a round makes of its rows


def test_rows_that_have_ended_are_claimable_once_more_as_if_they_were_new(
    session: Session, start_either: Start
) -> None:
    add(session, Subscriber, 3)
    fail(session, claim(session, Subscriber, owner="w"), error="unreachable")
    session.commit()
    cancel_claimed(session, claim(session, Subscriber, owner="w"), reason="no such address")
    finish_all(session, Subscriber)

    numbers = [start_either(Subscriber), start_either(Subscriber)]

    assert numbers == [1, 2]
    for row in session.scalars(select(Subscriber)):
        assert (row.status, row.round, row.owner, row.owner_date) == ("unclaimed", 2, None, None)
        assert (row.attempts, row.last_error) == (0, None)
    session.commit()
    assert {2, 3} <= set(finish_all(session, Subscriber))  # the first may wait for its next try


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


# Rows that are claimed meanwhile

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

    before = [(job.status, job.owner, job.owner_date, job.attempts) for job in jobs]
    start(Subscriber)
    number = start(Subscriber)
    progress = round_progress(session, Subscriber)
    session.expire_all()
    assert [(job.status, job.owner, job.owner_date, job.attempts) for job in jobs] == before
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


@two_by_turns
@pytest.mark.parametrize("step", ["claimed", "claimed and finished", "in a newer round"])
def test_a_row_that_changes_just_before_the_update_is_not_forgotten(
    engine: Engine, session: Session, new_session: Sessions, step: str
) -> None:
    add(session, Subscriber, 1)
    other = new_session(impatient(engine))
    theirs: list[Any] = []

    def take() -> None:
        if step == "in a newer round":
            theirs.append(start_round(other, Subscriber))
        else:
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
    assert state(session) == {1: ("unclaimed", 2 if theirs == [2] else 1)}


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


# Every kind of class


def test_a_class_with_its_own_names_words_and_several_key_columns_has_rounds(
    session: Session, start_either: Start
) -> None:
    keys = [(club, number) for club in "abc" for number in range(3)]
    rows = [{"club": club, "number": number} for club, number in keys]
    session.execute(insert(Member), rows)
    session.commit()
    complete(session, claim(session, Member, owner="w", limit=4))
    session.commit()

    number = start_either(Member, chunk=2)

    assert {(row.job_status, row.mailing) for row in session.scalars(select(Member))} == {
        ("unsent", 1)
    }
    claimed = claim(session, Member, Member.mailing == number, owner="w", limit=9)
    assert [(row.club, row.number) for row in claimed] == keys
    session.rollback()


def test_a_start_for_a_class_of_a_hierarchy_takes_only_its_rows(
    session: Session, start_either: Start
) -> None:
    session.add_all([Pet(id=1), Cat(id=2), Cat(id=3)])
    session.commit()

    start_either(Cat, chunk=2)

    assert {id_: round_ for id_, (_, round_) in state(session, Pet).items()} == {1: 0, 2: 1, 3: 1}
    assert round_progress(session, Cat).total == 2


def test_with_round_mixin_alone_a_row_that_is_done_joins_no_older_round(
    engine: Engine, session: Session
) -> None:
    add(session, Reader, 4)
    start_round(engine, Reader)
    session.execute(update(Reader).where(Reader.id == 1).values(round=-1))  # as complete() writes
    session.commit()

    assert round_progress(session, Reader, 1).done == 1
    session.commit()
    assert start_round(engine, Reader, Reader.id < 3) == 2
    assert list(session.scalars(select(Reader.round).order_by(Reader.id))) == [2, 2, 1, 1]


# The order of claims, and the index that they walk


def put(session: Session, entity: Any, **columns: list[Any]) -> None:
    """Commit rows with these values, their ids from 1 on."""
    values = zip(*columns.values(), strict=True)
    rows = [dict(zip(columns, row, strict=True)) for row in values]
    session.execute(insert(entity), [{"id": id_, **row} for id_, row in enumerate(rows, 1)])
    session.commit()


LATER = datetime.now(UTC) + timedelta(days=1)
SOON, SOONER = datetime(2020, 1, 2, tzinfo=UTC), datetime(2020, 1, 1, tzinfo=UTC)


@two_by_turns
def test_claims_go_by_round_priority_and_time(session: Session, strategy: str) -> None:
    put(
        session,
        Device,
        round=[1, 1, 1, 2, 2, 0, 2, 1],
        priority=[5, 3, 3, 0, 0, 9, 1, -1],
        run_at=[SOON, SOON, SOONER, SOON, SOONER, SOON, LATER, LATER],
    )
    for queue, keys in (
        (JobQueue(Device, strategy=strategy), [6, 3, 2, 1, 5, 4]),
        (JobQueue(Device, Device.round == 2, strategy=strategy), [5, 4]),
    ):
        assert [job.id for job in queue.claim(session, owner="w", limit=9)] == keys
        session.rollback()
        assert [job.id for job in queue.claim_rows(session, owner="w", limit=2)] == keys[:2]
        session.rollback()


# Progress


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


# Refusals


@pytest.mark.parametrize(
    ("entity", "where", "options", "words"),
    [
        (Email, [], {}, "Email has no rounds: add RoundMixin"),
        (Subscriber, [], {"chunk": 0}, "at least 1"),
        (Subscriber, [], {"chunk": True}, "at least 1"),
        (Subscriber, [], {"chunk": None}, "at least 1"),
        (Subscriber, [Email.id == 1], {}, r"other tables than that of Subscriber: .* exists"),
    ],
)
def test_invalid_arguments_are_refused_with_the_way_out(
    start_either: Start, entity: Any, where: Any, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(ArgumentError, match=words):
        start_either(entity, *where, **options)


def test_a_connection_starts_no_round(engine: Engine) -> None:
    with engine.connect() as connection, pytest.raises(ArgumentError, match="a Connection"):
        start_round(connection, Subscriber)  # type: ignore[arg-type]  # the mistake under test
