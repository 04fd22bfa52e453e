"""Queues without the mixin, claimed by advisory locks: what index serves them, or none can."""

from __future__ import annotations

from datetime import timedelta

import pytest
from sqlalchemy import Engine, Index, insert
from sqlalchemy.orm import Session

from sa_jobqueue import JobQueue
from sa_jobqueue.doctor import Report, examine
from sa_jobqueue.indexes import index_serving

from .models import Subscription, advisory, run

pytestmark = pytest.mark.only_on("postgresql")

MAILED, KIND = Subscription.mailed, Subscription.kind


def add_subscriptions(engine: Engine, number: int) -> None:
    """Commit subscriptions of ten kinds, and have the planner know them."""
    with engine.begin() as connection:
        connection.execute(insert(Subscription), [{"kind": n % 10} for n in range(number)])
    run(engine, "ANALYZE doctor_subscription")


def replace_index(engine: Engine, columns: str = "") -> None:
    run(engine, "DROP INDEX ix_due")
    if columns:
        run(engine, f"CREATE INDEX ix_due ON doctor_subscription {columns}")


def errors(report: Report) -> list[str]:
    return [f"{one.check}: {one.message}" for one in report.findings if one.check != "version"]


@pytest.mark.parametrize("number", [0, 10_000])
@pytest.mark.parametrize(
    "queue",
    [
        advisory(),
        advisory(order_by=MAILED),
        advisory(order_by=[MAILED.desc(), Subscription.id.desc()]),
        advisory(KIND == 1, MAILED == 0, order_by=Subscription.id),
        advisory(KIND == 1, MAILED.between(0, 7)),
    ],
)
def test_equality_range_and_key_are_served_by_one_index(
    engine: Engine, queue: JobQueue[Subscription], number: int
) -> None:
    if number:
        add_subscriptions(engine, number)

    report = examine(engine, queue, limit=20, old_snapshot=timedelta(days=1))

    assert errors(report) == []
    assert "ix_due (kind, mailed, id) fits the claim" in [fact.message for fact in report.facts]
    assert report.cost is not None
    assert report.cost.rows_locked == report.cost.claimed == min(number, 20)


@pytest.mark.parametrize("number", [0, 10_000])
@pytest.mark.parametrize("columns", ["", "(mailed, id)", "(kind, id)", "(kind)"])
def test_an_index_that_is_missing_or_short_is_found(
    engine: Engine, columns: str, number: int
) -> None:
    replace_index(engine, columns)
    if number:
        add_subscriptions(engine, number)

    report = examine(engine, advisory(), old_snapshot=timedelta(days=1))

    (finding,) = (one for one in report.errors if one.check == "index")
    assert "wants (kind, mailed, id)" in finding.message
    assert "ON doctor_subscription (kind, mailed, id)" in finding.fix


@pytest.mark.parametrize("number", [0, 10_000])
def test_an_order_that_no_index_serves_beside_the_range_names_rounds(
    engine: Engine, number: int
) -> None:
    if number:
        add_subscriptions(engine, number)

    report = examine(
        engine, advisory(order_by=Subscription.id.desc()), old_snapshot=timedelta(days=1)
    )

    (finding,) = report.errors
    assert "no index can serve ORDER BY id DESC beside a range of mailed" in finding.message
    assert "make rounds of it" in finding.fix
    assert "an index of (kind, round, id DESC) serves both" in finding.fix


def test_an_index_of_the_users_that_is_partial_serves_too(engine: Engine) -> None:
    replace_index(engine, "(kind, mailed, id) WHERE kind = 1")

    assert errors(examine(engine, advisory(), old_snapshot=timedelta(days=1))) == []


def test_an_index_that_is_partial_on_something_else_is_found(engine: Engine) -> None:
    replace_index(engine, "(kind, mailed, id) WHERE kind = 2")

    (finding,) = examine(engine, advisory(), old_snapshot=timedelta(days=1)).errors

    assert finding.check == "index"
    assert "WHERE (kind = 2) does not fit the claim" in finding.message


@pytest.mark.parametrize(
    "queue", [advisory(), advisory(order_by=MAILED), advisory(KIND == 1, order_by=MAILED.desc())]
)
def test_the_index_that_is_made_for_a_queue_is_the_one_that_is_wanted(
    engine: Engine, queue: JobQueue[Subscription]
) -> None:
    replace_index(engine)
    spec = queue.plan.spec
    index: Index = index_serving(queue.mapping, spec.where, order=spec.order_by)
    index.create(engine)

    assert errors(examine(engine, queue, old_snapshot=timedelta(days=1))) == []


def test_no_lock_is_left_behind(engine: Engine) -> None:
    add_subscriptions(engine, 100)

    with Session(engine) as session:
        examine(session, advisory())
        asked = session.connection().exec_driver_sql(
            "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND database = "
            "(SELECT oid FROM pg_database WHERE datname = current_database())"
        )

        assert asked.scalar_one() == 0
