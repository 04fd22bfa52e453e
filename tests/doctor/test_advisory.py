"""Queues without the mixin, claimed by advisory locks: which index serves them, if any can."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from sa_jobqueue import ArgumentError, JobQueue, claim_statements
from sa_jobqueue.doctor import Report, examine
from sa_jobqueue.migration import create_job_indexes
from sa_jobqueue.testing import assert_claim_is_indexed
from tests.migration.support import migrating

from .models import Subscription, advisory, run

pytestmark = pytest.mark.only_on("postgresql")

#: So old that other tests' transactions on the server give no finding.
PATIENT = timedelta(days=1)

MAILED, KIND = Subscription.mailed, Subscription.kind


def add_subscriptions(engine: Engine, number: int, *, known: bool = True) -> None:
    """Commit subscriptions of ten kinds; the planner has their statistics or not."""
    run(engine, "ALTER TABLE doctor_subscription SET (autovacuum_enabled = false)")
    run(
        engine,
        "INSERT INTO doctor_subscription (kind, mailed, round) "
        f"SELECT mod(n, 10), 0, 7 FROM generate_series(0, {number - 1}) AS n",
    )
    if known:
        run(engine, "ANALYZE doctor_subscription")


#: Enough rows to judge a plan by: on a small table planners scan and sort.
MANY = 20_000

SIZES = pytest.mark.parametrize(
    ("number", "known"),
    [(0, True), (MANY, True), (MANY, False)],
    ids=["empty", "many", "many unknown"],
)


def replace_index(engine: Engine, columns: str = "") -> None:
    run(engine, "DROP INDEX ix_due")
    if columns:
        run(engine, f"CREATE INDEX ix_due ON doctor_subscription {columns}")


def unwell(report: Report) -> list[str]:
    findings = [finding for finding in report.findings if finding.check != "version"]
    return [f"{finding.check}: {finding.message}" for finding in findings]


@pytest.mark.parametrize("number", [0, MANY])
@pytest.mark.parametrize(
    "queue",
    [
        advisory(),
        advisory(order_by=MAILED),
        advisory(order_by=[MAILED.desc(), Subscription.id.desc()]),
        advisory(KIND == 1, MAILED == 0, order_by=Subscription.id),
        advisory(KIND == 1, MAILED.between(0, 7)),
        advisory(KIND == 1, MAILED < 7, order_by=(KIND, MAILED)),
    ],
)
def test_one_index_serves_equality_range_and_key(
    engine: Engine, queue: JobQueue[Subscription], number: int
) -> None:
    add_subscriptions(engine, number)

    report = examine(engine, queue, limit=20, old_snapshot=PATIENT)

    assert unwell(report) == []
    assert "ix_due (kind, mailed, id) fits the claim" in [fact.message for fact in report.facts]
    assert report.cost is not None
    assert report.cost.rows_locked == report.cost.claimed == min(number, 20)


@SIZES
@pytest.mark.parametrize("columns", ["", "(mailed, id)", "(kind, id)", "(kind)"])
def test_an_index_that_is_missing_or_short_is_found(
    engine: Engine, columns: str, number: int, known: bool
) -> None:
    replace_index(engine, columns)
    add_subscriptions(engine, number, known=known)

    report = examine(engine, advisory(), old_snapshot=PATIENT)

    (finding,) = (finding for finding in report.errors if finding.check == "index")
    assert "wants (kind, mailed, id)" in finding.message
    assert "ON doctor_subscription (kind, mailed, id)" in finding.fix
    with pytest.raises(AssertionError, match=r"wants \(kind, mailed, id\)"):
        assert_claim_is_indexed(engine, advisory())


@SIZES
def test_an_order_that_no_index_serves_beside_the_range_names_rounds(
    engine: Engine, number: int, known: bool
) -> None:
    add_subscriptions(engine, number, known=known)
    queue = advisory(order_by=Subscription.id.desc())

    (finding,) = examine(engine, queue, old_snapshot=PATIENT).errors

    assert "no index can serve ORDER BY id DESC beside a range of mailed" in finding.message
    assert "or use rounds" in finding.fix
    assert "an index of (kind, round, id DESC) serves both" in finding.fix
    with pytest.raises(AssertionError, match="or use rounds"):
        assert_claim_is_indexed(engine, queue)
    with pytest.raises(ArgumentError, match="Or use rounds"), migrating(engine) as op:
        create_job_indexes(op, queue)


@SIZES
def test_an_index_that_begins_with_the_round_removes_the_finding(
    engine: Engine, number: int, known: bool
) -> None:
    add_subscriptions(engine, number, known=known)
    queue = advisory(KIND == 1, Subscription.round == 7, order_by=Subscription.id.desc())

    replace_index(engine, "(kind, round, id DESC)")

    assert not examine(engine, queue, old_snapshot=PATIENT).errors
    if number:
        assert_walks(engine, queue, "ix_due")


def assert_walks(engine: Engine, queue: JobQueue[Subscription], index: str) -> None:
    """Assert by the server's own EXPLAIN that a claim walks an index, and sorts nothing."""
    locking: Any = claim_statements(queue, dialect=engine.dialect)[0]
    compiled = locking.params(sa_jobqueue_backend=1, sa_jobqueue_limit=20).compile(
        dialect=engine.dialect, compile_kwargs={"literal_binds": True}
    )
    with engine.connect() as connection:
        plan = "\n".join(connection.exec_driver_sql(f"EXPLAIN {compiled}").scalars())
    assert f"using {index}" in plan
    assert "Sort" not in plan


def test_a_partial_index_of_the_user_serves(engine: Engine) -> None:
    replace_index(engine, "(kind, mailed, id) WHERE kind = 1")

    assert unwell(examine(engine, advisory(), old_snapshot=PATIENT)) == []


def test_an_index_that_is_partial_on_something_else_is_found(engine: Engine) -> None:
    replace_index(engine, "(kind, mailed, id) WHERE kind = 2")

    (finding,) = examine(engine, advisory(), old_snapshot=PATIENT).errors

    assert finding.check == "index"
    assert "WHERE (kind = 2) does not fit the claim" in finding.message


@SIZES
@pytest.mark.parametrize(
    "queue",
    [
        advisory(),
        advisory(order_by=MAILED),
        advisory(KIND == 1, order_by=MAILED.desc()),
        advisory(KIND == 1, MAILED < 7, order_by=(KIND, MAILED)),
    ],
)
def test_the_index_that_is_made_for_a_queue_is_the_one_that_is_wanted(
    engine: Engine, queue: JobQueue[Subscription], number: int, known: bool
) -> None:
    replace_index(engine)
    add_subscriptions(engine, number, known=known)

    with migrating(engine) as op:
        create_job_indexes(op, queue)

    assert not examine(engine, queue, old_snapshot=PATIENT).errors
    assert_claim_is_indexed(engine, queue)
    if number and known and queue.plan.spec.order_by:
        assert_walks(engine, queue, "ix_doctor_subscription_claim_kind_mailed")


def test_no_lock_is_left_behind(engine: Engine) -> None:
    add_subscriptions(engine, 100)

    with Session(engine) as session:
        examine(session, advisory())
        asked = session.connection().exec_driver_sql(
            "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND database = "
            "(SELECT oid FROM pg_database WHERE datname = current_database())"
        )

        assert asked.scalar_one() == 0
