"""The indexes of a queue are those of its model, are built online, and replace one another."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, MetaData, func, inspect, select, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Mapped, declarative_base, mapped_column

from sa_jobqueue import ArgumentError, JobMixin, JobQueue
from sa_jobqueue.migration import (
    create_index_online,
    create_job_indexes,
    drop_index_online,
    drop_job_indexes,
)
from tests.migration.support import (
    MIXINS,
    Order,
    breaks_at,
    columns_of,
    execute,
    index_names,
    insert_orders,
    migrate,
    migrating,
    scalar,
    writing_script,
)
from tests.support import heard, statements_seen

CLAIM = "ix_orders_claim"
BOTH = {CLAIM, "ix_orders_reap"}
BY_NOTE = {"equality": "note", "order_by": ["amount desc"]}

# Which indexes


def test_all_indexes_of_a_model_are_made_and_dropped(queue: Engine) -> None:
    args = {"per_key": ["amount", ("note", "amount")], "failed_index": True}
    behind = ["attempts", "priority", "run_at", "id"]
    expected = {
        CLAIM: ["status", "priority", "run_at", "id"],
        "ix_orders_reap": ["status", "owner_date"],
        "ix_orders_key_amount": ["status", "amount", *behind],
        "ix_orders_key_note_amount": ["status", "note", "amount", *behind],
        "ix_orders_failed": ["status", "owner_date", "id"],
    }

    with statements_seen(queue) as seen, migrating(queue) as op:
        for _ in range(2):  # made again they do no harm
            create_job_indexes(op, Order)
            create_job_indexes(op, "orders", *MIXINS, queue_args=args)

    built = [one for one in seen if one.startswith("CREATE INDEX")]
    assert len(built) == len(expected)
    assert index_names(queue) == set(expected)
    assert {name: columns_of(queue, name) for name in expected} == expected
    if queue.name == "postgresql":
        assert all("CREATE INDEX CONCURRENTLY" in one for one in built)
    elif queue.name != "sqlite":
        assert all(one.endswith("ALGORITHM=INPLACE LOCK=NONE") for one in built)

    with migrating(queue) as op:
        drop_job_indexes(op, "orders")
        assert index_names(queue) == expected.keys() - BOTH
        for _ in range(2):
            drop_job_indexes(op, "orders", queue_args=args)

    assert index_names(queue) == set()


@pytest.mark.parametrize(
    ("made", "args", "words"),
    [
        ("(status, amount)", {}, r"\(status, id\)"),
        ("(status, id) WHERE status = 'unsent'", {}, "unclaimed.*replace=True"),
        ("(status, id) WHERE amount > 0", {}, "unclaimed.*replace=True"),
        ("(status, amount, id)", {"order_by": ["amount desc"]}, r"\(status, amount DESC, id\)"),
        ("(status, amount DESC)", {"order_by": ["amount desc"]}, r"\(status, amount DESC, id\)"),
    ],
)
def test_a_different_index_of_its_name_is_not_taken_for_it(
    queue: Engine, made: str, args: dict[str, Any], words: str
) -> None:
    is_partial = queue.name in ("postgresql", "sqlite")
    if is_partial and "WHERE" not in made:
        made += " WHERE status = 'unclaimed'"
    if not is_partial:
        made = made.partition(" WHERE")[0]
    execute(queue, f"CREATE INDEX ix_orders_claim ON orders {made}")

    with migrating(queue) as op:
        if made == "(status, id)":
            create_job_indexes(op, "orders", JobMixin, queue_args=args)
        else:
            with pytest.raises(ArgumentError, match=words):
                create_job_indexes(op, "orders", JobMixin, queue_args=args)
            create_job_indexes(op, "orders", JobMixin, queue_args=args, replace=True)

    assert index_names(queue) == BOTH


@pytest.mark.parametrize(
    "args",
    [
        {"order_by": ["amount desc"]},
        {"ready": ["unclaimed", "failed"]},
        {"names": {"unclaimed": "still: to-send"}},
    ],
    ids=["descending", "several statuses", "own words"],
)
def test_an_index_is_recognized_however_the_database_prints_it(
    queue: Engine, args: dict[str, Any]
) -> None:
    with statements_seen(queue) as seen, migrating(queue) as op:
        for _ in range(2):
            create_job_indexes(op, "orders", JobMixin, queue_args=args)

    assert len([one for one in seen if one.startswith("CREATE INDEX")]) == 2


def test_an_index_is_named_by_the_convention_of_the_environment(queue: Engine) -> None:
    named = MetaData(naming_convention={"ix": "idx_%(table_name)s_%(constraint_name)s"})

    with statements_seen(queue) as seen:
        for _ in range(2):
            with migrating(queue, target_metadata=named) as op:
                create_job_indexes(op, "orders", *MIXINS)

    assert len([one for one in seen if one.startswith("CREATE INDEX")]) == 2
    assert index_names(queue) == {"idx_orders_claim", "idx_orders_reap"}


# For queues of one's own


class Subscription(declarative_base()):  # type: ignore[misc]  # a call
    """A class without the mixin, claimed by advisory locks."""

    __tablename__ = "subscriptions"

    id: Mapped[int] = mapped_column(primary_key=True)
    kind: Mapped[int]
    language: Mapped[str]
    mailed: Mapped[int]


AMOUNT, NOTE = Order.amount, Order.note
KIND, LANGUAGE, MAILED = Subscription.kind, Subscription.language, Subscription.mailed
OF_ITS_KIND = select(MAILED).where(Subscription.id == KIND).scalar_subquery()
NEWEST = select(func.max(MAILED)).scalar_subquery()


def mailing(*where: Any, order_by: Any = ()) -> JobQueue[Subscription]:
    return JobQueue(Subscription, *where, order_by=order_by, strategy="advisory")


@pytest.mark.parametrize(
    ("queue", "written"),
    [
        (JobQueue(Order, order_by=NOTE), "claim_note ON orders (status, note, id)"),
        (JobQueue(Order, order_by=(NOTE, NOTE.desc())), "(status, note, id)"),
        (JobQueue(Order, order_by=(NOTE, Order.status)), "(status, note, id)"),
        (JobQueue(Order, order_by=Order.id.desc()), "claim_id_desc ON orders (status, id DESC)"),
        (JobQueue(Order, ready="new", order_by=NOTE), "(status, note, id) WHERE status = 'new'"),
        (
            JobQueue(Order, NOTE == "r", order_by=(AMOUNT.desc(), NOTE)),
            "claim_note_amount_desc ON orders (note, status, amount DESC, id)",
        ),
        (mailing(KIND == 1, MAILED < 7), "claim_kind_mailed ON subscriptions (kind, mailed, id)"),
        (mailing(KIND == 1, MAILED < 7, LANGUAGE == "de"), "(kind, language, mailed, id)"),
        (mailing(KIND == 1, KIND < 3, MAILED < 7), "(kind, mailed, id)"),
        (mailing(KIND == 1, MAILED == 0, order_by=(MAILED, KIND)), "(kind, mailed, id)"),
        (mailing(KIND == 1, order_by=(KIND, MAILED.desc())), "(kind, mailed DESC, id)"),
        # What is compared with the row's own columns is not constant.
        (mailing(KIND == 1, MAILED == KIND, order_by=MAILED), "(kind, mailed, id)"),
        (mailing(KIND == 1, MAILED == OF_ITS_KIND), "(kind, id)"),
        (mailing(MAILED == NEWEST, order_by=(MAILED, KIND)), "(mailed, kind, id)"),
    ],
)
def test_the_index_of_a_queue_has_its_columns_once(queue: JobQueue[Any], written: str) -> None:
    declared = set(queue.entity.__table__.indexes)

    with writing_script("postgresql") as (op, script):
        create_job_indexes(op, queue)
        create_job_indexes(op, queue, name="ix_own")

    assert written in script.getvalue()
    assert "INDEX CONCURRENTLY ix_own ON" in script.getvalue()
    assert queue.entity.__table__.indexes == declared


def test_an_order_that_no_index_serves_beside_a_range_is_refused() -> None:
    with (
        writing_script("postgresql") as (op, _),
        pytest.raises(ArgumentError, match=r"Or use rounds"),
    ):
        create_job_indexes(op, mailing(MAILED < 7, order_by=KIND))


# What an earlier run has left


@pytest.mark.only_on("postgresql")
def test_an_invalid_index_that_was_left_behind_is_built_anew(queue: Engine) -> None:
    insert_orders(queue, [1, 1])
    with (
        queue.connect().execution_options(isolation_level="AUTOCOMMIT") as connection,
        pytest.raises(DBAPIError, match="could not create unique index"),
    ):
        connection.execute(text(f"CREATE UNIQUE INDEX CONCURRENTLY {CLAIM} ON orders (amount)"))

    migrate(queue, create_job_indexes, Order)

    valid = "SELECT bool_and(indisvalid) FROM pg_index WHERE indrelid = 'orders'::regclass"
    assert scalar(queue, valid) is True
    assert columns_of(queue, CLAIM) == ["status", "priority", "run_at", "id"]


# An index replaces the one in use


@pytest.fixture
def served(queue: Engine) -> Engine:
    """A queue whose claim index is in use."""
    migrate(queue, create_job_indexes, "orders", *MIXINS)
    return queue


def replace(op: Any, **options: Any) -> None:
    create_job_indexes(op, "orders", *MIXINS, queue_args=BY_NOTE, replace=True, **options)


@contextmanager
def claim_index_seen(engine: Engine, observer: Engine) -> Iterator[list[bool]]:
    """Note after each statement that commits whether other connections see the claim index."""
    seen: list[bool] = []
    # Inside of a transaction the observer could wait for the lock of the index for ever.
    commits = ("CREATE", "ALTER TABLE", "COMMIT")

    def look(connection: Connection, cursor: Any, statement: str, *args: Any) -> None:
        if statement.startswith(commits):
            seen.append(CLAIM in index_names(observer))

    with heard(engine, "after_cursor_execute", look):
        yield seen


@pytest.mark.parametrize("leftover", [False, True])
def test_claims_have_an_index_at_every_moment_of_a_replacement(
    served: Engine, observer: Engine, leftover: bool
) -> None:
    if leftover:  # of an interrupted run of an earlier migration
        execute(served, f"CREATE INDEX {CLAIM}_new_of_sa_jobqueue ON orders (amount)")
    with claim_index_seen(served, observer) as seen, migrating(served) as op:
        replace(op)

    assert len(seen) >= 2
    assert all(seen)
    assert columns_of(served, CLAIM) == ["note", "status", "amount", "id"]
    migrate(served, drop_job_indexes, "orders")
    assert index_names(served) == set()


def test_a_broken_off_replacement_is_run_again(served: Engine) -> None:
    def run() -> None:
        with migrating(served) as op:
            replace(op)

    stop = 1
    while breaks_at(served, stop, run, before=("ALTER", "CREATE", "DROP", "COMMIT")):
        assert CLAIM in index_names(served)
        stop += 1
    run()

    assert stop > 1
    assert index_names(served) == BOTH
    assert columns_of(served, CLAIM)[0] == "note"


NEW = f"{CLAIM}_new_of_sa_jobqueue"


@pytest.mark.parametrize(
    ("engine_name", "swap"),
    [
        ("postgresql", f"CONCURRENTLY {NEW} ON.*DROP INDEX {CLAIM};.*{NEW} RENAME TO {CLAIM}"),
        ("mysql", f"INDEX {NEW} ON.*DROP INDEX {CLAIM}, RENAME INDEX {NEW} TO {CLAIM}"),
    ],
)
def test_a_script_builds_the_new_index_beside_the_old_one(engine_name: str, swap: str) -> None:
    with writing_script(engine_name) as (op, script):
        replace(op, key="id")

    assert re.search(swap, script.getvalue(), re.DOTALL)


# Any index


def test_an_index_of_ones_own_is_made_replaced_and_dropped_online(queue: Engine) -> None:
    def make(columns: list[str], name: str = "ix_own", **options: Any) -> None:
        migrate(queue, create_index_online, name, "orders", columns, **options)

    make(["note"])
    make(["note"], "ix_own_new")
    make(["note", "amount"], replace=True)
    assert columns_of(queue, "ix_own") == ["note", "amount"]
    for unique in (True, False):
        make(["note"], unique=unique, replace=True)
        there = {each["name"]: each["unique"] for each in inspect(queue).get_indexes("orders")}
        assert there == {"ix_own": unique, "ix_own_new": False}
    with pytest.raises(
        ArgumentError, match=r"ix_own \(note\).* need UNIQUE \(note\): replace=True"
    ):
        make(["note"], unique=True)
    migrate(queue, drop_index_online, "ix_own", table_name="orders")
    assert index_names(queue) == {"ix_own_new"}


@pytest.mark.only_on("postgresql", "sqlite")
def test_an_index_of_another_expression_replaces_the_one_in_use(queue: Engine) -> None:
    for function in ("lower", "upper"):
        with migrating(queue) as op:
            own = [text(f"({function}(note))")]
            create_index_online(op, "ix_own", "orders", own, replace=True)

    as_written = {
        "postgresql": "SELECT indexdef FROM pg_indexes WHERE indexname = 'ix_own'",
        "sqlite": "SELECT sql FROM sqlite_master WHERE name = 'ix_own'",
    }
    assert "upper" in scalar(queue, as_written[queue.name])
