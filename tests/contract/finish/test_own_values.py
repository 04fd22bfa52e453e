"""A finish writes the application's own columns in its own statement, behind its fence."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
from sqlalchemy import Engine, inspect, select, update
from sqlalchemy.orm import Session

from sa_jobqueue import (
    ArgumentError,
    ClaimLost,
    JobQueue,
    cancel_claimed,
    claim,
    complete,
    fail,
    release,
)
from sa_jobqueue.databases.clock import as_utc
from tests.models import Cat, Dog, Email, Message, Render, Task, add_renders, add_tasks
from tests.support import statements_seen

X = {Render.result: "x"}

RENDERS = JobQueue(Render, backoff=lambda attempts: timedelta(0))


def results(session: Session) -> list[tuple[Any, ...]]:
    session.rollback()
    found = select(Render.status, Render.result, Render.frames).order_by(Render.id)
    return [tuple(row) for row in session.execute(found)]


@pytest.mark.by_turns("sqlite", "postgresql", "mysql", "mariadb")
@pytest.mark.parametrize(
    ("finish", "after"),
    [
        (RENDERS.complete, "done"),
        (RENDERS.fail, "unclaimed"),
        (RENDERS.release, "unclaimed"),
        (RENDERS.cancel_claimed, "cancelled"),
    ],
)
def test_own_columns_are_written_by_the_finish_itself_and_shown(
    engine: Engine, session: Session, other: Session, finish: Callable[..., None], after: str
) -> None:
    add_renders(session, 2)
    claimed = claim(session, Render, owner="w", limit=2)
    session.commit()

    with statements_seen(engine) as seen:
        finish(session, claimed, values={Render.result: "seen", Render.frames: 7})
        updates = [statement for statement in seen if "SET result=" in statement]
        seen.clear()
        assert [(job.status, job.result, job.frames) for job in claimed] == [(after, "seen", 7)] * 2

    assert (len(updates), seen) == (1, [])
    session.commit()
    assert results(other) == [(after, "seen", 7)] * 2


def test_a_function_gives_each_job_its_values(
    engine: Engine, session: Session, other: Session
) -> None:
    ids = [render.id for render in add_renders(session, 7)]
    claimed = claim(session, Render, owner="w", limit=7)
    two, others = {Render.frames: 2, Render.result: "two"}, [{Render.frames: n} for n in (3, 4, 5)]
    values: list[dict[Any, Any]] = [{Render.frames: 1}, two, {Render.frames: 1}, {}, *others]
    given = dict(zip(ids, values, strict=True))

    with statements_seen(engine) as seen:
        complete(session, claimed, values=lambda job: given[job.id])
    session.commit()

    assert sum(statement.startswith("UPDATE moved_render") for statement in seen) == 4
    assert [job.frames for job in claimed] == [1, 2, 1, None, 3, 4, 5]
    one, rest = ("done", None, 1), [("done", None, number) for number in (None, 3, 4, 5)]
    assert results(other) == [one, ("done", "two", 2), one, *rest]


def test_times_of_several_jobs_are_written_in_one_statement(
    engine: Engine, session: Session, other: Session
) -> None:
    (first, *_) = add_tasks(session, "a", "b", "c")
    claimed = claim(session, Task, owner="w", limit=3)
    noon = datetime(2026, 1, 31, 12, 0, 0, 123456, tzinfo=UTC)

    def values(task: Task) -> dict[Any, Any]:
        return {Task.run_at: noon + timedelta(hours=task.id - first.id)}

    with statements_seen(engine) as seen:
        complete(session, claimed, values=values)
    session.commit()

    assert sum(statement.startswith("UPDATE task") for statement in seen) == 1
    found = [as_utc(time) for time in other.scalars(select(Task.run_at).order_by(Task.id))]
    assert found == [noon + timedelta(hours=hours) for hours in range(3)]


@pytest.mark.parametrize(("finish", "after"), [(complete, "done"), (RENDERS.fail, "unclaimed")])
def test_nothing_is_written_to_the_rows_of_lost_claims_which_are_told_in_order(
    session: Session, other: Session, finish: Callable[..., None], after: str
) -> None:
    add_renders(session, 4)
    claimed = claim(session, Render, owner="w", limit=4)
    *lost, kept = claimed
    session.execute(update(Render).where(Render.id != kept.id).values(owner="thief"))

    with pytest.raises(ClaimLost) as raised:
        finish(session, claimed, values=lambda job: {Render.frames: int(job is lost[2])})
    session.commit()

    assert (list(raised.value.lost), list(raised.value.kept)) == (lost, [kept])
    assert results(other) == [("claimed", None, None)] * 3 + [(after, None, 0)]


def test_rows_and_held_claims_are_finished_with_values_too(
    engine: Engine, session: Session, db_alias: str
) -> None:
    add_renders(session, 2)
    with engine.begin() as connection:
        rows = RENDERS.claim_rows(connection, owner="w")
        complete(connection, rows, values=lambda row: {Render.result: f"of {row.owner}"})
    how: Any = {"owner": "w"} if db_alias == "sqlite" else {"strategy": "held"}
    release(session, claim(session, Render, **how), values=X)
    session.commit()

    assert results(session) == [("done", "of w", None), ("unclaimed", "x", None)]


@pytest.mark.by_turns("sqlite", "postgresql", "mysql", "mariadb")
@pytest.mark.parametrize(
    ("finish", "values", "words"),
    [
        (complete, {Render.id: 1}, "Render.id: it is of the primary key"),
        (complete, {Render.status: "x"}, "complete() writes Render.status itself"),
        (complete, {Render.owner: "x"}, "complete() writes Render.owner itself"),
        (release, {Render.owner_date: None}, "release() writes Render.owner_date itself"),
        (complete, {Render.attempts: 1}, "complete() writes Render.attempts itself"),
        (fail, {Render.last_error: "x"}, "fail() writes Render.last_error itself"),
        (cancel_claimed, {Render.last_error: "x"}, "cancel_claimed() writes Render.last_error"),
        (complete, {Email.subject: "x"}, "takes attributes of Render that are columns"),
        (complete, {"result": "x"}, "takes attributes of Render that are columns"),
        (complete, {Render.frames: Render.frames + 1}, "is an SQL expression"),
        (complete, [Render.frames], "a function that returns them for a job"),
        (complete, lambda job: None, "a function that returns them for a job"),
        (partial(complete, delete=True), X, "keep the rows by delete=False"),
    ],
)
def test_what_a_finish_cannot_write_is_refused_before_anything_is_written(
    session: Session, finish: Callable[..., None], values: Any, words: str
) -> None:
    add_renders(session, 1)
    claimed = claim(session, Render, owner="w")

    with pytest.raises(ArgumentError) as raised:
        finish(session, claimed, values=values)

    assert words in str(raised.value)
    session.commit()
    assert results(session) == [("claimed", None, None)]


def test_rows_that_are_deleted_and_columns_of_a_joined_table_take_no_values(
    session: Session,
) -> None:
    session.add_all([Message(sequence=1), Message(sequence=0), Dog(), Cat()])
    session.commit()
    message, gone = claim(session, Message, owner="w", limit=2)
    (dog,), (cat,) = claim(session, Dog, owner="w"), claim(session, Cat, owner="w")

    with pytest.raises(ArgumentError, match="those of Message are deleted"):
        complete(session, message, values={Message.sequence: 2})
    with pytest.raises(ArgumentError, match=r"writes to the table animal, and Dog.trick is in dog"):
        complete(session, dog, values={Dog.trick: "roll"})
    complete(session, message, delete=False, values={Message.sequence: 2})
    complete(session, gone)
    complete(session, cat, values={Cat.kind: "cat"})

    assert (message.sequence, dog.status, cat.status) == (2, "claimed", "done")
    assert inspect(gone).deleted
