"""The positions of jobs are their ranks in claim order."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, delete, event, func, inspect, select, text
from sqlalchemy.orm import ORMExecuteState, Session, with_loader_criteria

from sa_jobqueue import (
    ArgumentError,
    JobQueue,
    cancel,
    claim,
    complete,
    enqueue,
    fence_of,
    position,
    positions,
)
from sa_jobqueue.dialects import database_of
from tests.contract.positions.support import Print, Size, Ticket, claimed_in_order, key_of
from tests.models import (
    Animal,
    Cat,
    Document,
    Dog,
    Email,
    Letter,
    Message,
    Order,
    Pair,
    Task,
    add_emails,
    add_tasks,
)
from tests.support import Sessions, statements_seen

HOUR = timedelta(hours=1)


def held_against_claims(session: Session, queue: JobQueue[Any]) -> None:
    """Hold the place of each row against the claims of the whole queue."""
    jobs = list(session.scalars(select(queue.entity)).unique())
    random.Random(7).shuffle(jobs)
    order = claimed_in_order(session, queue)
    expected = [order.index(key_of(job)) + 1 if key_of(job) in order else None for job in jobs]

    found = queue.positions(session, jobs)

    assert 0 < len(order) < len(jobs)
    assert found == expected
    assert sorted(place for place in found if place) == [*range(1, len(order) + 1)]
    for job, place in [*zip(jobs, expected, strict=True)][:8]:
        assert queue.position(session, job) == place


def rows_of(entity: type[Any]) -> list[Any]:
    """Make rows with many equal values, due and not, and some that are done."""
    by_chance = random.Random(entity.__name__)
    return [row_of(entity, number, by_chance) for number in range(40)]


def row_of(entity: type[Any], number: int, by_chance: random.Random) -> Any:
    columns = inspect(entity).columns
    given: dict[str, Any] = {}
    for name in ("priority", "job_priority", "sequence", "created"):
        if name in columns and not (entity is Order and name == "priority"):
            given[name] = by_chance.randint(-2, 2)
    if "run_at" in columns:
        hours = by_chance.choice([-2, -2, -1, 1])
        given["run_at"] = datetime.now(UTC).replace(microsecond=7) + hours * HOUR
    if entity is Pair:
        given |= {"left": number % 7, "right": f"r{number}"}
    if entity is Ticket:
        given["weight"] = by_chance.choice([None, 0.1, 0.7])
        given["size"] = by_chance.choice([None, *Size])
        given["owner_name"] = by_chance.choice([None, "a", "b"])
    for name, value in {"name": "n", "recipient": "r", "channel": "sms"}.items():
        if name in columns:
            given[name] = value
    if number % 6 == 0:
        status = "job_status" if entity is Order else "status"
        given[status] = "done"
    return entity(**given)


QUEUES = [
    JobQueue(Email),
    JobQueue(Email, order_by=Email.id.desc()),
    JobQueue(Email, order_by=[func.length(Email.recipient), Email.subject]),
    JobQueue(Task),
    JobQueue(Task, strict_order=True),
    JobQueue(Task, Task.id % 3 > 0),
    JobQueue(Task, order_by=Task.run_at.desc()),
    JobQueue(Task, order_by=[Task.run_at, Task.priority.desc()]),
    JobQueue(Order),
    JobQueue(Message, Message.channel == "sms"),
    JobQueue(Message),
    JobQueue(Pair),
    JobQueue(Document),
    JobQueue(Letter),
    JobQueue(Animal),
    JobQueue(Cat),
    JobQueue(Dog),
    JobQueue(Print),
    JobQueue(Ticket),
    JobQueue(Ticket, order_by=[Ticket.size.desc(), Ticket.weight]),
]


# -- the claim order ----------------------------------------------------


@pytest.mark.parametrize("queue", QUEUES, ids=str)
def test_positions_are_ranks_in_claim_order(mine: Session, queue: JobQueue[Any]) -> None:
    mine.add_all(rows_of(queue.entity))
    if queue.entity in (Animal, Cat):
        mine.add_all(rows_of(Cat if queue.entity is Animal else Animal))
    mine.commit()

    held_against_claims(mine, queue)


@pytest.mark.only_on("postgresql", "sqlite")
def test_null_values_stand_where_the_order_says(mine: Session) -> None:
    mine.add_all(rows_of(Ticket))
    mine.commit()

    for order in (
        [Ticket.weight.desc().nulls_last(), Ticket.owner_name.nulls_first()],
        [Ticket.owner_name.nulls_last(), Ticket.weight.desc().nulls_first()],
    ):
        held_against_claims(mine, JobQueue(Ticket, order_by=order))


@pytest.mark.only_on("sqlite")
def test_times_in_other_formats_keep_their_position(session: Session) -> None:
    """SQLite compares times as text; read and bound again, they would be another text."""
    for name in ("a", "b", "c"):
        session.execute(
            text("INSERT INTO task (name, run_at) VALUES (:name, '2020-01-01 00:00:00')"),
            {"name": name},
        )
    session.commit()
    jobs = session.scalars(select(Task).order_by(Task.id)).all()

    assert positions(session, jobs) == [1, 2, 3]
    assert position(session, jobs[2]) == 3


# -- who has a place ----------------------------------------------------


def test_a_job_has_no_position_once_it_is_claimed_or_before_it_is_due(
    session: Session, strategy: str
) -> None:
    a, b, c = add_tasks(session, "a", "b", "c")
    (later,) = add_tasks(session, "later", run_at=datetime.now(UTC) + HOUR, priority=-1)
    assert positions(session, [a, b, c, later]) == [1, 2, 3, None]

    claimed = claim(session, Task, owner="w", strategy=strategy)
    if strategy == "held":
        assert position(session, a) == 1  # nothing was written yet
        complete(session, claimed)

    assert positions(session, [later, c, b, a]) == [None, 2, 1, None]
    assert position(session, later) is None
    assert position(session, a) is None


def test_finished_cancelled_and_deleted_jobs_have_no_position(session: Session) -> None:
    a, b, c, d = add_emails(session, "a", "b", "c", "d")
    complete(session, claim(session, Email, owner="w"))
    cancel(session, b)
    session.execute(delete(Email).where(Email.id == c.id), execution_options=NO_SYNC)

    assert positions(session, [a, b, c, d]) == [None, None, None, 1]
    assert position(session, c) is None


NO_SYNC = {"synchronize_session": False}


def test_positions_count_pending_changes(session: Session) -> None:
    session.autoflush = False
    first, second = add_tasks(session, "a", "b")
    second.priority = -1

    assert positions(session, [first, second]) == [2, 1]


def test_positions_come_in_the_order_of_the_given_jobs_whatever_their_class(
    session: Session,
) -> None:
    emails, tasks = add_emails(session, "a", "b"), add_tasks(session, "a", "b")

    found = positions(session, iter([tasks[1], emails[0], emails[1], tasks[0], emails[0]]))

    assert found == [2, 1, 2, 1, 1]
    assert positions(session, []) == []
    assert positions(session, emails[1]) == [2]


def test_a_claim_and_its_fences_have_no_positions(session: Session) -> None:
    add_emails(session, "a", "b")
    claimed = claim(session, Email, owner="w", limit=2)

    assert positions(session, claimed) == [None, None]
    assert position(session, fence_of(claimed[0])) is None


def test_an_object_that_is_no_job_of_the_queue_is_refused(session: Session) -> None:
    (email,) = add_emails(session, "a")

    with pytest.raises(ArgumentError, match="flush"):
        position(session, Email(recipient="b"))
    with pytest.raises(ArgumentError, match="queue"):
        JobQueue(Task).position(session, email)
    with pytest.raises(ArgumentError, match="is not a job"):
        position(session, [email])


def test_criteria_of_hooks_hold_for_positions(session: Session, new_session: Sessions) -> None:
    jobs = add_tasks(session, *["one", "two"] * 3)
    emails = add_emails(session, *["one", "two"] * 3)
    tenant = new_session()

    @event.listens_for(tenant, "do_orm_execute")
    def of_tenant(state: ORMExecuteState) -> None:
        if state.is_select:
            ours = with_loader_criteria(Task, Task.name == "two")
            emails_too = with_loader_criteria(Email, Email.recipient == "two")
            state.statement = state.statement.options(ours, emails_too)

    for all_of_them in (jobs, emails):
        assert positions(tenant, all_of_them) == [None, 1, None, 2, None, 3]
        assert [position(tenant, job) for job in all_of_them] == [None, 1, None, 2, None, 3]


def test_many_jobs_with_wide_keys_are_looked_up(session: Session) -> None:
    enqueue(session, Pair, ({"left": number // 9, "right": str(number)} for number in range(450)))
    session.commit()
    jobs = session.scalars(select(Pair)).all()

    found = positions(session, jobs)

    assert sorted(place or 0 for place in found) == [*range(1, 451)]


def test_the_positions_of_many_jobs_take_few_statements(session: Session, engine: Engine) -> None:
    jobs = add_emails(session, *map(str, range(30)))

    with statements_seen(engine) as seen:
        positions(session, jobs)

    assert len([one for one in seen if "FROM email" in one]) == 2


def test_without_window_functions_each_job_is_counted(
    session: Session, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = add_tasks(session, "a", "b", "c")
    monkeypatch.setattr(database_of(session.connection()), "window_functions", False)

    with statements_seen(engine) as seen:
        found = positions(session, reversed(jobs))

    assert found == [3, 2, 1]
    assert not [one for one in seen if RANKING in one]


def test_positions_are_found_in_autocommit_sessions(engine: Engine, new_session: Sessions) -> None:
    session = new_session(engine.execution_options(isolation_level="AUTOCOMMIT"))
    jobs = add_tasks(session, "a", "b", "c")

    assert positions(session, jobs) == [1, 2, 3]
    assert position(session, jobs[2]) == 3


@pytest.mark.only_on("postgresql")
@pytest.mark.parametrize("scans", ["on", "off"])
def test_the_planner_is_left_as_it_was(session: Session, scans: str) -> None:
    jobs = add_emails(session, "a", "b")
    names = ("enable_seqscan", "enable_indexscan")
    for name in names:
        session.execute(text(f"SET LOCAL {name} = {scans}"))

    positions(session, jobs)
    with (
        pytest.raises(RuntimeError),
        database_of(session.connection()).by_index(session.connection()),
    ):
        raise RuntimeError

    assert [session.scalar(text(f"SHOW {name}")) for name in names] == [scans] * 2


COUNTING, RANKING = "count(*)", "row_number()"
