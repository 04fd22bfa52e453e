"""Claims by advisory locks: what is locked, what is checked again, and who is refused."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest
from sqlalchemy import (
    URL,
    Connection,
    Engine,
    ForeignKey,
    NullPool,
    String,
    cast,
    delete,
    event,
    exc,
    func,
    select,
    text,
    update,
)
from sqlalchemy.orm import (
    Mapped,
    ORMExecuteState,
    Session,
    mapped_column,
    relationship,
    with_loader_criteria,
)

from sa_jobqueue import (
    ArgumentError,
    ClaimLost,
    JobQueue,
    UnsupportedDatabase,
    advisory_session,
    cancel_claimed,
    claim,
    complete,
    fail,
    release,
    renew,
)
from sa_jobqueue.strategies.advisory import Advisory
from tests.contract.claimers import Finished, LogBase, drain_by_locks
from tests.contract.subscriptions import (
    NOT_MAILED,
    Subscription,
    SubscriptionBase,
    add_subscriptions,
    claim_subscriptions,
    ids,
    in_autocommit,
    kept,
    mark,
)
from tests.contract.test_concurrency import run_processes
from tests.models import Email, Task, add_emails, add_tasks, names, recipients
from tests.servers.errors import NotHere
from tests.servers.pgbouncer import transaction_pooler
from tests.support import make_engine, statements_seen

pytestmark = pytest.mark.only_on("postgresql")

#: What the locking statement has that the check has not, and the other way round.
LOCKING, CHECKING = "pg_try_advisory_lock", "WHERE subscription.id = ANY"


@pytest.fixture
def engine(engine: Engine) -> Iterator[Engine]:
    SubscriptionBase.metadata.create_all(engine)
    with engine.begin() as connection:
        for table in reversed(SubscriptionBase.metadata.sorted_tables):
            connection.execute(delete(table))
    yield engine
    assert kept(engine) == 0


@pytest.fixture
def mailing(engine: Engine) -> Iterator[Session]:
    with advisory_session(engine) as session:
        yield session


@contextmanager
def before(connection: Connection, words: str, step: Callable[[], None]) -> Iterator[None]:
    """Take a step before each statement with these words."""

    def see(conn: Any, cursor: Any, statement: str, *args: Any) -> None:
        if words in statement:
            step()

    event.listen(connection, "before_cursor_execute", see)
    yield
    event.remove(connection, "before_cursor_execute", see)


# -- how many locks ------------------------------------------------------------

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
    """Subscriptions of which every other one was mailed."""
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
        for order, order_by in ORDERS.items():
            set_locally(mailing, settings)

            claimed = claim_subscriptions(mailing, limit=100, order_by=order_by)

            assert (len(claimed), claimed.lost, kept(engine)) == (100, 0, 100), (plan, order)
            release(mailing, claimed)
            mailing.rollback()


def set_locally(session: Session, settings: dict[str, str]) -> None:
    for name, value in settings.items():
        session.execute(text(f"SET LOCAL {name} = {value}"))


def test_a_parallel_plan_is_among_them(many: int, mailing: Session) -> None:
    """So that the test above speaks of one."""
    set_locally(mailing, PLANS["parallel"])
    statement = "SELECT * FROM (SELECT id FROM subscription WHERE mailed = 0 OFFSET 0) AS c"

    plan = mailing.scalars(text(f"EXPLAIN {statement} WHERE pg_try_advisory_lock(1, id)")).all()

    assert any("Gather" in line for line in plan), plan
    mailing.rollback()


def test_a_claim_in_order_is_in_order(many: int, mailing: Session) -> None:
    first = claim_subscriptions(mailing, limit=5)
    last = claim_subscriptions(mailing, limit=3, order_by=Subscription.id.desc())

    assert ids(first) == [2, 4, 6, 8, 10]
    assert ids(last) == [many, many - 2, many - 4]


def test_a_queue_is_claimed_in_its_own_order_by_steps_of_priority(
    engine: Engine, mailing: Session
) -> None:
    add_tasks(mailing, "last", "later", priority=2)
    add_tasks(mailing, "first", priority=-1)

    claimed = claim(mailing, Task, strategy="advisory", limit=2)

    assert names(claimed) == ["first", "last"]
    assert kept(engine) == 2


def test_a_claim_passes_over_rows_that_others_have(engine: Engine, mailing: Session) -> None:
    add_subscriptions(mailing, 5)
    with advisory_session(engine) as other:
        theirs = claim_subscriptions(other, limit=3)

        claimed = claim_subscriptions(mailing, limit=3)

        assert (ids(theirs), ids(claimed)) == ([1, 2, 3], [4, 5])
        assert (claimed.candidates, claimed.lost) == (2, 0)


# -- the post-check ------------------------------------------------------------

#: A lock that the tests hold, to stop another session's statement half way.
GATE = 4_711


def test_a_row_finished_between_the_snapshot_and_the_lock_is_given_back(
    engine: Engine, mailing: Session
) -> None:
    add_subscriptions(mailing, 2)
    gate = cast(func.pg_advisory_xact_lock_shared(GATE), String) == ""
    found: list[int] = []

    with advisory_session(engine) as other, in_autocommit(engine) as porter:
        (theirs,) = claim_subscriptions(other, limit=1)
        porter.execute(select(func.pg_advisory_lock(GATE)))
        claimer = threading.Thread(
            target=lambda: found.extend(ids(claim_subscriptions(mailing, gate, limit=2)))
        )
        claimer.start()
        # Its snapshot is taken, and its first row not tried.
        wait_for_a_waiter(porter)
        mark([theirs])
        complete(other, theirs)
        other.commit()
        porter.execute(select(func.pg_advisory_unlock(GATE)))
        claimer.join(10)

    assert found == [2]
    assert kept(engine) == 1
    mailing.rollback()


def wait_for_a_waiter(connection: Connection) -> None:
    waiting = text(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
        "AND wait_event_type = 'Lock' AND wait_event = 'advisory'"
    )
    deadline = time.monotonic() + 10
    while not connection.execute(waiting).scalar():
        assert time.monotonic() < deadline


def test_the_whole_predicate_is_checked_again(engine: Engine, mailing: Session) -> None:
    add_subscriptions(mailing, 3)
    changes = [{"id": 1, "kind": 2}, {"id": 2, "divisor": 7}]

    def change() -> None:
        with Session(engine) as other:
            other.execute(update(Subscription), changes)
            other.commit()

    with before(mailing.connection(), CHECKING, change):
        claimed = claim_subscriptions(
            mailing, Subscription.kind == 1, Subscription.divisor == 1, limit=3
        )

    assert ids(claimed) == [3]
    assert (claimed.candidates, claimed.lost, kept(engine)) == (3, 2, 1)


def test_rows_that_went_away_are_given_back(engine: Engine, mailing: Session) -> None:
    add_subscriptions(mailing, 2)

    def remove() -> None:
        with Session(engine) as other:
            other.execute(delete(Subscription).where(Subscription.id == 1))
            other.commit()

    with before(mailing.connection(), CHECKING, remove):
        claimed = claim_subscriptions(mailing)

    assert ids(claimed) == [2]
    assert kept(engine) == 1


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

    with before(mailing.connection(), CHECKING, finish_more):
        claimed = claim_subscriptions(mailing, limit=limit)

    assert ids(claimed) == list(range(31, 31 + limit))
    assert (claimed.lost, kept(engine)) == (30, limit)


def test_rows_that_never_pass_the_check_hold_nobody_up(engine: Engine, mailing: Session) -> None:
    add_subscriptions(mailing, 5)
    # True in the locking statement alone, for the rows at the head.
    locking = func.current_setting("sa_jobqueue.locking", True) == "on"
    switch = text("SELECT set_config('sa_jobqueue.locking', :value, true)")

    def turn(value: str) -> Callable[[], None]:
        return lambda: mailing.connection().execute(switch, {"value": value}).close()

    connection = mailing.connection()
    with before(connection, LOCKING, turn("on")), before(connection, CHECKING, turn("off")):
        claimed = claim_subscriptions(mailing, locking | (Subscription.id > 3), limit=1)

    assert ids(claimed) == [4]
    assert kept(engine) == 1


def test_of_rows_with_one_lock_only_one_is_claimed(
    engine: Engine, mailing: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys of more than 32 bits are hashed; their locks may be the same."""
    monkeypatch.setattr(Advisory, "_small_key", lambda self: Subscription.kind)
    add_subscriptions(mailing, 3)
    seen = []

    for _ in range(3):
        claimed = claim_subscriptions(mailing, limit=3)
        assert len(claim_subscriptions(mailing, limit=3)) == 0
        assert (len(claimed), kept(engine)) == (1, 1)
        mark(claimed)
        complete(mailing, claimed)
        mailing.commit()
        assert kept(engine) == 0
        seen += ids(claimed)

    assert seen == [1, 2, 3]


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


class Reminder(SubscriptionBase):
    """Another class on the table of Subscription."""

    __table__ = Subscription.__table__


class OtherBase(SubscriptionBase):
    """Another metadata, as of another part of an application."""

    __abstract__ = True
    metadata = SubscriptionBase.metadata.__class__()


class Copy(OtherBase):
    """A class on another Table object of the same name, whose key is declared wider."""

    __tablename__ = "subscription"
    id: Mapped[int] = mapped_column(primary_key=True)
    mailed: Mapped[int]


@pytest.mark.parametrize("other", [Reminder, Copy])
def test_a_row_is_locked_for_every_class_on_its_table(
    engine: Engine, mailing: Session, other: type[Any]
) -> None:
    add_subscriptions(mailing, 3)
    claimed = claim_subscriptions(mailing)

    by_other_class = claim(mailing, other, other.mailed == 0, strategy="advisory", limit=3)
    with advisory_session(engine) as elsewhere:
        assert not claim(elsewhere, other, other.mailed == 0, strategy="advisory", limit=3)

    assert (ids(claimed), ids(by_other_class)) == ([1, 2], [3])
    complete(mailing, claimed)
    mailing.commit()
    assert kept(engine) == 1


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


def test_no_lock_is_left_in_a_pool_of_five_after_many_claims(
    db_url: URL, engine: Engine, full: bool
) -> None:
    claims = 10_000 if full else 500
    pool_of_five = make_engine(db_url, pool_size=5, max_overflow=0)
    with Session(engine) as session:
        add_subscriptions(session, 60)

    for number in range(claims // 25):
        use_every_connection(pool_of_five, number)

    assert pool_of_five.pool.status().startswith("Pool size: 5  Connections in pool: 5 ")
    assert kept(engine) == 0
    pool_of_five.dispose()


def use_every_connection(engine: Engine, number: int) -> None:
    """Claim on five connections at once, and end the claims in all manners."""
    connections = [engine.connect() for _ in range(5)]
    for place, connection in enumerate(connections):
        session = Session(connection, expire_on_commit=False)
        for turn in range(5):
            claimed = claim_subscriptions(session, limit=1 + turn)
            end_somehow(session, claimed, (number + place + turn) % 6)
    for connection in connections:
        connection.close()


def end_somehow(session: Session, claimed: Any, how: int) -> None:
    if how in (0, 1):
        complete(session, claimed)
    if how == 2:
        release(session, claimed)
    if how == 3:
        with pytest.raises(exc.ArgumentError):
            claim_subscriptions(session, options=("nonsense",))
    if how == 4:
        return  # not even the transaction is ended
    (session.rollback if how == 1 else session.commit)()


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


# -- the verbs -----------------------------------------------------------------


def test_a_queue_with_all_mixins_is_finished_as_ever(engine: Engine, mailing: Session) -> None:
    add_tasks(mailing, "done", "failed", "given up", "released", "renewed", max_attempts=2)
    claimed = claim(mailing, Task, strategy="advisory", owner="w", limit=5)
    done, failed, cancelled_claimed, released, renewed = claimed
    mailing.commit()

    complete(mailing, done)
    fail(mailing, failed, error="no route")
    cancel_claimed(mailing, cancelled_claimed, reason="bounced")
    release(mailing, released)
    renew(mailing, renewed)
    assert kept(engine) == 4
    mailing.commit()

    assert kept(engine) == 1
    complete(mailing, renewed)
    mailing.commit()
    columns = (Task.name, Task.status, Task.owner, Task.attempts, Task.last_error)
    assert [tuple(row) for row in mailing.execute(select(*columns).order_by(Task.id))] == [
        ("done", "done", "w", 1, None),
        ("failed", "unclaimed", None, 1, "no route"),
        ("given up", "cancelled", "w", 1, "bounced"),
        ("released", "unclaimed", None, 0, None),
        ("renewed", "done", "w", 1, None),
    ]
    assert (done.status, failed.attempts) == ("done", 1)


def test_finished_rows_of_a_queue_can_be_deleted(engine: Engine, mailing: Session) -> None:
    add_emails(mailing, "a", "b")
    claimed = claim(mailing, Email, strategy="advisory", limit=2)

    complete(mailing, claimed[0], delete=True)
    mailing.commit()

    assert list(mailing.scalars(select(Email.recipient))) == ["b"]
    assert kept(engine) == 1


def test_without_the_mixin_nothing_is_written_and_the_rows_are_the_callers(
    engine: Engine, mailing: Session
) -> None:
    add_subscriptions(mailing, 3)
    first, second, third = claim_subscriptions(mailing, limit=3)
    first.mailed = 1
    mailing.delete(second)

    with statements_seen(engine) as seen:
        complete(mailing, [first, second, third])
        mailing.commit()

    assert [line.split()[0] for line in seen] == ["UPDATE", "DELETE"]
    assert kept(engine) == 0
    assert ids(mailing.scalars(select(Subscription).order_by(Subscription.id))) == [1, 3]


@pytest.mark.parametrize(
    ("verb", "way_out"),
    [
        (fail, "Mark the row yourself and complete"),
        (cancel_claimed, "Mark the row yourself and complete"),
        (lambda session, jobs: complete(session, jobs, delete=True), r"session\.delete\(\)"),
    ],
)
def test_what_needs_columns_is_refused_without_them(
    engine: Engine, mailing: Session, verb: Callable[..., None], way_out: str
) -> None:
    add_subscriptions(mailing, 1)
    claimed = claim_subscriptions(mailing)

    with pytest.raises(ArgumentError, match=way_out):
        verb(mailing, claimed)

    assert kept(engine) == 1
    renew(mailing, claimed)
    release(mailing, claimed)
    assert kept(engine) == 0


def test_a_job_queue_claims_rows_and_turns(engine: Engine, mailing: Session) -> None:
    add_emails(mailing, *"abcd")
    queue = JobQueue(Email, Email.recipient != "c", strategy="advisory")

    rows = queue.claim_rows(mailing, limit=2)
    turned = queue.turn(mailing, rows, limit=2)

    assert [row.recipient for row in rows] == ["a", "b"]
    assert recipients(turned) == ["d"]
    assert kept(engine) == 3
    mailing.commit()
    assert kept(engine) == 1


def test_other_classes_are_claimed_as_rows_too(engine: Engine, mailing: Session) -> None:
    add_subscriptions(mailing, 2)
    queue = JobQueue(Subscription, NOT_MAILED, strategy="advisory")

    rows = queue.claim_rows(mailing, limit=2)
    queue.complete(mailing, rows.fences[0])
    mailing.commit()

    assert set(rows[0]._mapping) == {"id", "kind", "mailed", "divisor"}
    assert kept(engine) == 1


def test_criteria_of_the_sessions_hooks_hold_and_starve_nobody(
    engine: Engine, mailing: Session
) -> None:
    add_subscriptions(mailing, 50, kind=1)
    mailing.execute(update(Subscription).where(Subscription.id > 40).values(kind=2))
    mailing.commit()

    @event.listens_for(mailing, "do_orm_execute")
    def of_tenant(state: ORMExecuteState) -> None:
        if state.is_select:
            ours = with_loader_criteria(Subscription, Subscription.kind == 2)
            state.statement = state.statement.options(ours)

    claimed = claim_subscriptions(mailing, limit=5)

    assert ids(claimed) == [41, 42, 43, 44, 45]
    assert (claimed.lost, kept(engine)) == (0, 5)


class Letter(SubscriptionBase):
    """A class whose relationship loads eagerly, by a join."""

    __tablename__ = "subscribed_letter"
    id: Mapped[int] = mapped_column(primary_key=True)
    subscription_id: Mapped[int | None] = mapped_column(ForeignKey("subscription.id"))
    subscription: Mapped[Subscription | None] = relationship(lazy="joined")


def test_relationships_load_and_lock_nothing(engine: Engine, mailing: Session) -> None:
    add_subscriptions(mailing, 1)
    mailing.add_all([Letter(subscription_id=1), Letter()])
    mailing.commit()

    letters = claim(mailing, Letter, strategy="advisory", limit=2, order_by=Letter.id)
    mailing.expunge_all()

    assert [letter.subscription and letter.subscription.id for letter in letters] == [1, None]
    assert kept(engine) == 2


# -- refusals ------------------------------------------------------------------


def test_a_session_on_an_engine_is_refused(engine: Engine, session: Session) -> None:
    add_subscriptions(session, 1)

    with pytest.raises(UnsupportedDatabase, match="use `with advisory_session"):
        claim_subscriptions(session)

    assert kept(engine) == 0


@pytest.mark.parametrize("isolation", ["REPEATABLE READ", "SERIALIZABLE"])
def test_an_isolation_that_hides_what_others_finished_is_refused(
    engine: Engine, isolation: str
) -> None:
    with engine.connect().execution_options(isolation_level=isolation) as connection:
        session = Session(connection)
        add_subscriptions(session, 1)

        with pytest.raises(UnsupportedDatabase, match="use READ COMMITTED"):
            claim_subscriptions(session)

        assert kept(engine) == 0


@pytest.mark.parametrize("isolation", ["SERIALIZABLE", "AUTOCOMMIT"])
def test_an_advisory_session_has_the_right_isolation(
    engine: Engine, db_url: URL, isolation: str
) -> None:
    isolated = make_engine(db_url, isolation_level=isolation)
    with advisory_session(isolated) as session:
        add_subscriptions(session, 2)
        claimed = claim_subscriptions(session)
        mark(claimed)

        complete(session, claimed[0])
        assert kept(engine) == 2
        session.commit()

        assert kept(engine) == 1
    assert kept(engine) == 0
    isolated.dispose()


@pytest.fixture
def through_pgbouncer(db_url: URL) -> Iterator[Engine]:
    try:
        with transaction_pooler(db_url) as url:
            yield make_engine(url, poolclass=NullPool)
    except NotHere as missing:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(missing))


def test_a_transaction_pooler_is_refused(engine: Engine, through_pgbouncer: Engine) -> None:
    with Session(engine) as session:
        add_subscriptions(session, 1)

    # It tells each client another number for its server process, negative ones too.
    for _ in range(8):
        with pytest.raises(UnsupportedDatabase, match="direct URL"):
            through(advisory_session(through_pgbouncer))
        with (
            through_pgbouncer.connect() as connection,
            pytest.raises(UnsupportedDatabase, match="direct URL"),
        ):
            claim_subscriptions(Session(connection))

    assert kept(engine) == 0


def through(context: AbstractContextManager[object]) -> None:
    with context:
        pass


@pytest.mark.only_on("sqlite", "mysql", "mariadb")
def test_other_databases_are_refused(shared_engine: Engine) -> None:
    with pytest.raises(UnsupportedDatabase, match="use strategy='auto'"):
        through(advisory_session(shared_engine))
    with (
        shared_engine.connect() as connection,
        pytest.raises(UnsupportedDatabase, match="use strategy='auto'"),
    ):
        claim_subscriptions(Session(connection))
