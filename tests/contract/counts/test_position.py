"""The positions of jobs are their ranks in claim order, and tell how long the jobs wait."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import func, inspect, select, text
from sqlalchemy.orm import Session

from sa_jobqueue import (
    ArgumentError,
    JobQueue,
    cancel,
    claim,
    position,
    reprioritize,
)

# Inner: docs/reference/observing.md offers this package.
from sa_jobqueue.counts import Listed
from tests.contract.round_models import Device, Member
from tests.contract.steps import before_statement
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
    add_tasks,
)
from tests.support import Sessions, only_seeing

from .models import Crate, Hall, Ticket, keys, keys_in_claim_order, pages

HOUR = timedelta(hours=1)


def places(session: Session, jobs: Any) -> list[int | None]:
    return [position(session, job) for job in jobs]


# -- the claim order ----------------------------------------------------


def rows_of(entity: type[Any]) -> list[Any]:
    """Make rows with many equal values, due and not, and some that are done."""
    by_chance = random.Random(entity.__name__)
    return [row_of(entity, number, by_chance) for number in range(24)]


def row_of(entity: type[Any], number: int, by_chance: random.Random) -> Any:
    columns = inspect(entity).columns
    given: dict[str, Any] = {}
    for name in ("round", "mailing", "priority", "job_priority", "sequence", "created"):
        if name in columns and not (entity is Order and name == "priority"):
            given[name] = by_chance.randint(-2, 2)
    if "run_at" in columns:
        hours = by_chance.choice([-2, -2, -1, 1])
        given["run_at"] = datetime.now(UTC).replace(microsecond=7) + hours * HOUR
    if entity is Pair:
        given |= {"left": number % 7, "right": f"r{number}"}
    if entity is Member:
        given |= {"club": f"c{number % 2}", "number": number}
    if entity is Crate:
        given |= {"hall": by_chance.choice([*Hall]), "mark": number}
    if entity is Ticket:
        given["weight"] = by_chance.choice([None, 0.1, 0.7])
        given["hall"] = by_chance.choice([None, *Hall])
        given["seat"] = by_chance.choice([None, "a", "b"])
    for name, value in {"name": "n", "recipient": "r", "channel": "sms"}.items():
        if name in columns:
            given[name] = value
    if number % 6 == 0:
        given["job_status" if entity in (Order, Member) else "status"] = "done"
    return entity(**given)


IN_CLAIM_ORDER = [
    JobQueue(Email),
    JobQueue(Task),
    JobQueue(Task, strict_order=True),
    JobQueue(Task, Task.id % 3 > 0),
    JobQueue(Order),
    JobQueue(Pair),
    JobQueue(Member),
    JobQueue(Device),
    JobQueue(Device, Device.round == 1),
    JobQueue(Letter),
    JobQueue(Animal),
    JobQueue(Cat),
    JobQueue(Dog),
    JobQueue(Crate),
]

IN_OWN_ORDER = [
    JobQueue(Email, order_by=[func.length(Email.recipient), Email.subject.desc()]),
    JobQueue(Task, order_by=[Task.run_at.desc(), Task.priority]),
    JobQueue(Message, Message.channel == "sms"),
    JobQueue(Message),
    JobQueue(Document),
    JobQueue(Ticket),
    JobQueue(Ticket, order_by=[Ticket.hall.desc(), Ticket.weight]),
]


@pytest.mark.parametrize("queue", [*IN_CLAIM_ORDER, *IN_OWN_ORDER], ids=str)
def test_positions_and_lists_of_due_jobs_follow_the_claim_order(
    session: Session, queue: JobQueue[Any], db_alias: str
) -> None:
    session.add_all(rows_of(queue.entity))
    if queue.entity in (Animal, Cat):
        session.add_all(rows_of(Cat if queue.entity is Animal else Animal))
    session.commit()
    jobs = list(session.scalars(select(queue.entity)).unique())
    order = keys_in_claim_order(session, queue)
    assert 0 < len(order) < len(jobs)

    listed = keys(pages(session, queue, Listed.DUE))

    only_page = order[:4] if queue in IN_OWN_ORDER else order
    assert listed == only_page
    if queue in IN_OWN_ORDER:
        with pytest.raises(ArgumentError, match="order of the mixins"):
            queue.position(session, jobs[0])
        return
    if queue.entity is Crate and db_alias in ("mysql", "mariadb"):  # its key is an ENUM
        return
    ranks = {key: rank for rank, key in enumerate(order, 1)}
    assert [queue.position(session, job) for job in jobs] == [
        ranks.get(inspect(job).identity) for job in jobs
    ]


@pytest.mark.only_on("sqlite")
def test_times_in_other_formats_keep_their_position(session: Session) -> None:
    """SQLite compares times as text; read and bound again, they would be another text."""
    for name in ("a", "b", "c"):
        session.execute(
            text("INSERT INTO task (name, run_at) VALUES (:name, '2020-01-01 00:00:00')"),
            {"name": name},
        )
    session.commit()

    assert places(session, session.scalars(select(Task).order_by(Task.id))) == [1, 2, 3]


# -- who has a place ----------------------------------------------------


def test_a_new_priority_changes_the_position_at_once(session: Session) -> None:
    session.autoflush = False
    a, b, c = add_tasks(session, "a", "b", "c")
    (later,) = add_tasks(session, "later", run_at=datetime.now(UTC) + HOUR)

    changed = reprioritize(session, [c, later], -1)
    b.priority = 1  # pending

    assert changed == [c, later]
    assert places(session, [a, b, c, later]) == [2, 3, 1, None]


def test_criteria_of_hooks_hold_for_positions(session: Session, new_session: Sessions) -> None:
    jobs = add_tasks(session, *["one", "two"] * 2)
    tenant = new_session()
    only_seeing(tenant, Task, Task.name == "two")

    assert places(tenant, jobs) == [None, 1, None, 2]


# -- while others change the queue -------------------------------------------


@pytest.mark.parametrize(
    ("change", "place"),
    [
        (lambda other, job: reprioritize(other, job, 5), 4),
        (lambda other, job: reprioritize(other, job, -5), 1),
        (lambda other, job: claim(other, Task, Task.id == job.id, owner="w"), None),
        (lambda other, job: cancel(other, job), None),
        (lambda other, job: other.delete(job), None),
        (lambda other, job: setattr(job, "run_at", datetime.now(UTC) + HOUR), None),
    ],
    ids=["later", "sooner", "claimed", "cancelled", "deleted", "postponed"],
)
def test_a_job_that_changes_meanwhile_has_its_new_position(
    session: Session, other: Session, change: Any, place: int | None
) -> None:
    first = add_tasks(session, "a", "b", "c", "d")[0]
    reprioritize(session, first, 2)
    session.commit()

    def step() -> None:
        change(other, other.get_one(Task, first.id))
        other.commit()

    with before_statement(session, 1, step):  # after the first look at the job
        found = position(session, first)

    assert found == place
