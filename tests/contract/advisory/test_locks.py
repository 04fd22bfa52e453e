"""A claim by advisory locks locks exactly the rows that it takes."""

from __future__ import annotations

import pytest
from sqlalchemy import URL, Engine, func, select, text, update
from sqlalchemy.orm import Session

from sa_jobqueue import ClaimLost, complete, release
from tests.contract.claimers import Finished, LogBase, drain_by_locks, run_processes
from tests.contract.subscriptions import (
    Subscription,
    SubscriptionBase,
    add_subscriptions,
    claim_subscriptions,
    ids,
    in_autocommit,
    kept,
)
from tests.support import make_engine

pytestmark = pytest.mark.only_on("postgresql")

PLANS = {
    "as the planner likes": {},
    "sequential": {"enable_indexscan": "off", "enable_bitmapscan": "off"},
    "by index": {"enable_seqscan": "off", "enable_bitmapscan": "off"},
    "by bitmap": {"enable_seqscan": "off", "enable_indexscan": "off"},
    "without sort": {"enable_sort": "off", "enable_incremental_sort": "off"},
    "parallel": {
        "max_parallel_workers_per_gather": "2",
        "min_parallel_table_scan_size": "0",
        "min_parallel_index_scan_size": "0",
        "parallel_setup_cost": "0",
        "parallel_tuple_cost": "0",
        "enable_indexscan": "off",
        "enable_bitmapscan": "off",
    },
}

ORDERS = {
    "no order": (),
    "by key": Subscription.id,
    "backwards": Subscription.id.desc(),
    "by index": (Subscription.kind, Subscription.mailed),
    "by nothing that is indexed": Subscription.divisor.desc(),
}


@pytest.fixture
def many(engine: Engine, full: bool) -> int:
    """Subscriptions, every second of which was mailed."""
    rows = 1_000_000 if full else 20_000
    fill = (
        "INSERT INTO subscription (id, kind, mailed, divisor) "
        f"SELECT n, n % 3, n % 2, n % 7 FROM generate_series(1, {rows}) AS n"
    )
    with in_autocommit(engine) as connection:
        connection.execute(text(fill))
        connection.execute(text("VACUUM ANALYZE subscription"))
    return rows


# -- how many locks ------------------------------------------------------------


def test_exactly_as_many_rows_are_locked_as_wanted(
    many: int, engine: Engine, mailing: Session
) -> None:
    for plan, settings in PLANS.items():
        for order, order_by in ORDERS.items():
            set_locally(mailing, settings)

            claimed = claim_subscriptions(mailing, limit=100, order_by=order_by)

            assert (len(claimed), claimed.lost, kept(engine)) == (100, 0, 100), (plan, order)
            release(mailing, claimed)
            mailing.rollback()


def set_locally(session: Session, settings: dict[str, str]) -> None:
    for name, value in settings.items():
        session.execute(text(f"SET LOCAL {name} = {value}"))


def test_one_of_the_plans_is_parallel(many: int, mailing: Session) -> None:
    """The test above means something only if one of its plans is parallel."""
    set_locally(mailing, PLANS["parallel"])
    statement = "SELECT * FROM (SELECT id FROM subscription WHERE mailed = 0 OFFSET 0) AS c"

    plan = mailing.scalars(text(f"EXPLAIN {statement} WHERE pg_try_advisory_lock(1, id)")).all()

    assert any("Gather" in line for line in plan), plan
    mailing.rollback()


# -- rows that the session has already -----------------------------------------


def test_a_session_never_gets_rows_that_it_has(engine: Engine, mailing: Session) -> None:
    add_subscriptions(mailing, 8)

    claimed = [ids(claim_subscriptions(mailing))]
    claimed.append(ids(claim_subscriptions(mailing)))
    mailing.commit()
    claimed.append(ids(claim_subscriptions(mailing)))
    mailing.rollback()
    claimed.append(ids(claim_subscriptions(mailing)))

    assert claimed == [[1, 2], [3, 4], [5, 6], [7, 8]]
    assert kept(engine) == 8
    assert not claim_subscriptions(mailing)


def test_rows_that_were_released_come_back_and_the_old_claim_is_lost(
    engine: Engine, mailing: Session
) -> None:
    add_subscriptions(mailing, 2)
    old = claim_subscriptions(mailing)
    old_fences = old.fences
    release(mailing, old)
    assert kept(engine) == 0

    new = claim_subscriptions(mailing)

    with pytest.raises(ClaimLost):
        complete(mailing, old_fences)
    complete(mailing, new)
    mailing.commit()


# -- what a claim is, and does not do ------------------------------------------


def test_a_claim_takes_no_transaction_id(mailing: Session) -> None:
    add_subscriptions(mailing, 2)

    claimed = claim_subscriptions(mailing)

    assert len(claimed) == 2
    assert mailing.scalar(select(func.pg_current_xact_id_if_assigned())) is None


def test_a_claim_waits_for_nobody_and_keeps_nobody_waiting(
    engine: Engine, mailing: Session
) -> None:
    add_subscriptions(mailing, 4)
    with Session(engine) as other, Session(engine) as reader:
        other.execute(update(Subscription).where(Subscription.id == 1).values(kind=5))
        other.scalars(select(Subscription).with_for_update()).all()
        for session in (mailing, reader):
            session.execute(text("SET lock_timeout = '1ms'"))

        claimed = claim_subscriptions(mailing, limit=4)

        assert ids(claimed) == [1, 2, 3, 4]
        assert len(reader.scalars(select(Subscription)).all()) == 4
        other.rollback()
        reader.rollback()


@pytest.mark.load
@pytest.mark.xdist_group("concurrency")
@pytest.mark.timeout(300)
def test_many_processes_finish_every_row_once_and_none_ever_waits(
    fresh_database: URL, full: bool
) -> None:
    processes, rows = (50, 20_000) if full else (8, 2_000)
    engine = make_engine(fresh_database)
    for metadata in (SubscriptionBase.metadata, LogBase.metadata):
        metadata.create_all(engine)
    with Session(engine) as session:
        add_subscriptions(session, rows)
    url = fresh_database.render_as_string(hide_password=False)

    run_processes(drain_by_locks, [(url, 20, seed) for seed in range(processes)])

    with Session(engine) as session:
        finished = session.scalars(select(Finished.job)).all()
        assert sorted(finished) == list(range(1, rows + 1))
        assert len(set(session.scalars(select(Finished.process)))) > 1
        assert set(session.scalars(select(Subscription.mailed))) == {1}
    assert kept(engine) == 0
    engine.dispose()
