"""The indexes of a queue are those of its model, are built online, and replace one another."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import (
    Connection,
    Engine,
    String,
    event,
    inspect,
    text,
)
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sa_jobqueue import (
    ArgumentError,
    JobMixin,
    JobQueue,
)
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
    migrating,
    scalar,
    writing_script,
)
from tests.support import statements_seen

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
@pytest.mark.by_turns("mysql", "mariadb")
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


# For queues of one's own


class MailBase(DeclarativeBase):
    pass


class Subscription(MailBase):
    """A class without the mixin, claimed by advisory locks."""

    __tablename__ = "subscriptions"

    id: Mapped[int] = mapped_column(primary_key=True)
    kind: Mapped[int]
    language: Mapped[str] = mapped_column(String(2))
    last_mail_at: Mapped[datetime]
    joined_at: Mapped[datetime]


STARTED = datetime(2030, 1, 1, tzinfo=UTC)


def mailing(*more: Any, **options: Any) -> JobQueue[Subscription]:
    return JobQueue(
        Subscription,
        Subscription.last_mail_at < STARTED,
        Subscription.kind == 1,
        *more,
        strategy="advisory",
        **options,
    )


@pytest.mark.only_on("postgresql")
def test_an_index_serves_a_queue_on_a_class_without_the_mixin(engine: Engine) -> None:
    table: Any = Subscription.__table__
    table.create(engine)
    german = Subscription.language == "de"
    by_age = (Subscription.joined_at.desc(), Subscription.language)
    for queue, columns in (
        (mailing(), ["kind", "last_mail_at", "id"]),
        (mailing(german), ["kind", "language", "last_mail_at", "id"]),
        (
            mailing(Subscription.joined_at > STARTED, order_by=by_age),
            ["kind", "joined_at", "language", "id"],
        ),
        (mailing(order_by=Subscription.last_mail_at), ["kind", "last_mail_at", "id"]),
    ):
        with migrating(engine) as op:
            create_job_indexes(op, queue)
        (name,) = index_names(engine, "subscriptions")
        assert name is not None
        assert columns_of(engine, name, "subscriptions") == columns
        assert table.indexes == set()
        with migrating(engine) as op:
            drop_job_indexes(op, queue)


def test_an_order_that_no_index_serves_beside_a_range_is_refused() -> None:
    with (
        writing_script("postgresql") as (op, _),
        pytest.raises(ArgumentError, match=r"Or use rounds"),
    ):
        create_job_indexes(op, mailing(order_by=Subscription.joined_at))


@pytest.mark.by_turns("mysql", "mariadb")
def test_an_index_serves_a_queue_with_a_predicate_of_its_own(queue: Engine) -> None:
    urgent = JobQueue(Order, Order.note == "urgent", order_by=Order.amount, ready="packed")

    with migrating(queue) as op:
        create_job_indexes(op, urgent, name="ix_orders_urgent")

    assert columns_of(queue, "ix_orders_urgent") == ["note", "status", "amount", "id"]
    assert sorted(str(each.name) for each in Order.__table__.indexes) == sorted(BOTH)  # type: ignore[attr-defined]  # a Table


# What an earlier run has left


@pytest.mark.only_on("postgresql")
def test_an_invalid_index_that_was_left_behind_is_built_anew(queue: Engine) -> None:
    insert_orders(queue, [1, 1])
    with (
        queue.connect().execution_options(isolation_level="AUTOCOMMIT") as connection,
        pytest.raises(DBAPIError, match="could not create unique index"),
    ):
        connection.execute(text(f"CREATE UNIQUE INDEX CONCURRENTLY {CLAIM} ON orders (amount)"))

    with migrating(queue) as op:
        create_job_indexes(op, Order)

    valid = "SELECT bool_and(indisvalid) FROM pg_index WHERE indrelid = 'orders'::regclass"
    assert scalar(queue, valid) is True
    assert columns_of(queue, CLAIM) == ["status", "priority", "run_at", "id"]


# An index replaces the one in use


@pytest.fixture
def served(queue: Engine) -> Engine:
    """A queue whose claim index is in use."""
    with migrating(queue) as op:
        create_job_indexes(op, "orders", *MIXINS)
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

    event.listen(engine, "after_cursor_execute", look)
    try:
        yield seen
    finally:
        event.remove(engine, "after_cursor_execute", look)


@pytest.mark.by_turns("mysql", "mariadb")
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
    with migrating(served) as op:
        drop_job_indexes(op, "orders")
    assert index_names(served) == set()


@pytest.mark.by_turns("mysql", "mariadb")
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


def uniques(engine: Engine) -> dict[str | None, bool]:
    return {each["name"]: bool(each["unique"]) for each in inspect(engine).get_indexes("orders")}


@pytest.mark.by_turns("mysql", "mariadb")
def test_an_index_of_ones_own_is_made_replaced_and_dropped_online(queue: Engine) -> None:
    with migrating(queue) as op:
        create_index_online(op, "ix_own", "orders", ["note"])
        create_index_online(op, "ix_own_new", "orders", ["note"])
        create_index_online(op, "ix_own", "orders", ["note", "amount"], replace=True)
    assert columns_of(queue, "ix_own") == ["note", "amount"]

    for unique in (True, False):
        with migrating(queue) as op:
            create_index_online(op, "ix_own", "orders", ["note"], unique=unique, replace=True)
        assert uniques(queue) == {"ix_own": unique, "ix_own_new": False}

    with (
        migrating(queue) as op,
        pytest.raises(ArgumentError, match=r"ix_own \(note\).* need UNIQUE \(note\): replace=True"),
    ):
        create_index_online(op, "ix_own", "orders", ["note"], unique=True)
    with migrating(queue) as op:
        drop_index_online(op, "ix_own", table_name="orders")
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
    with migrating(queue) as op:
        drop_index_online(op, "ix_own", table_name="orders")
