"""A claim by advisory locks locks exactly the rows that it takes, and checks them again."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import URL, Engine, delete, event, func, select, text, update
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
from tests.support import make_engine, only_seeing

pytestmark = pytest.mark.only_on("postgresql")

# How many locks

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


def test_exactly_as_many_rows_are_locked_as_wanted(
    many: int, engine: Engine, mailing: Session
) -> None:
    for plan, settings in PLANS.items():
        for name, value in settings.items():
            mailing.execute(text(f"SET LOCAL {name} = {value}"))
        if plan == "parallel":  # it is, in a statement like that of a claim
            inner = "SELECT id FROM subscription WHERE mailed = 0 OFFSET 0"
            statement = f"SELECT * FROM ({inner}) AS c WHERE pg_try_advisory_lock(1, id)"
            assert "Gather" in str(mailing.scalars(text(f"EXPLAIN {statement}")).all())
        for order, order_by in ORDERS.items():
            claimed = claim_subscriptions(mailing, limit=100, order_by=order_by)

            assert (len(claimed), claimed.lost, kept(engine)) == (100, 0, 100), (plan, order)
            release(mailing, claimed)
        mailing.rollback()


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


def test_a_claim_waits_for_nobody_keeps_nobody_waiting_and_takes_no_transaction_id(
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
        assert mailing.scalar(select(func.pg_current_xact_id_if_assigned())) is None
        assert len(reader.scalars(select(Subscription)).all()) == 4


# Which rows


def test_criteria_of_the_sessions_hooks_hold_and_starve_nobody(
    engine: Engine, mailing: Session
) -> None:
    add_subscriptions(mailing, 50, kind=1)
    mailing.execute(update(Subscription).where(Subscription.id > 40).values(kind=2))
    mailing.commit()

    only_seeing(mailing, Subscription, Subscription.kind == 2)
    claimed = claim_subscriptions(mailing, limit=5)

    assert ids(claimed) == [41, 42, 43, 44, 45]
    assert (claimed.lost, kept(engine)) == (0, 5)


def before_the_check(mailing: Session, step: Any) -> None:
    """Take a step each time that a claim has locked its rows, and not yet checked them."""

    def see(conn: Any, cursor: Any, statement: str, *args: Any) -> None:
        if "WHERE subscription.id = ANY" in statement:
            step()

    event.listen(mailing.connection(), "before_cursor_execute", see)


def test_the_whole_predicate_is_checked_again(engine: Engine, mailing: Session) -> None:
    add_subscriptions(mailing, 4)
    changes = [{"id": 1, "kind": 2}, {"id": 2, "divisor": 7}]

    def change() -> None:
        with Session(engine) as other:
            other.execute(update(Subscription), changes)
            other.execute(delete(Subscription).where(Subscription.id == 3))
            other.commit()

    before_the_check(mailing, change)
    claimed = claim_subscriptions(
        mailing, Subscription.kind == 1, Subscription.divisor == 1, limit=4
    )

    assert ids(claimed) == [4]
    assert (claimed.candidates, claimed.lost, kept(engine)) == (4, 3, 1)


@pytest.mark.parametrize("limit", [1, 3])
def test_a_claim_goes_on_behind_rows_that_failed_the_check(
    engine: Engine, mailing: Session, limit: int
) -> None:
    add_subscriptions(mailing, 40)
    finished = iter(range(limit, 30 + limit, limit))

    def finish_more() -> None:
        with Session(engine) as other:
            finish = update(Subscription).where(Subscription.id <= next(finished, 0))
            other.execute(finish.values(mailed=1))
            other.commit()

    before_the_check(mailing, finish_more)
    claimed = claim_subscriptions(mailing, limit=limit)

    assert ids(claimed) == list(range(31, 31 + limit))
    assert (claimed.lost, kept(engine)) == (30, limit)


# Many processes


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
