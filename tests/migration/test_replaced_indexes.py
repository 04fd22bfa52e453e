"""A claim index with other columns replaces the one in use, which serves claims until then."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from alembic.operations import Operations
from sqlalchemy import (
    Column,
    Connection,
    Engine,
    ForeignKey,
    Integer,
    MetaData,
    Table,
    event,
    inspect,
    text,
)

from sa_jobqueue import ArgumentError, JobMixin
from sa_jobqueue.migration import (
    add_job_columns,
    create_claim_index,
    create_index_online,
    create_key_index,
    drop_claim_index,
    drop_index_online,
)
from tests.migration.support import (
    MIXINS,
    breaks_at,
    columns_of,
    index_names,
    migrating,
    scalar,
    writing_script,
)

BY_NOTE = {"equality": "note", "order_by": ["amount desc"]}
CHANGES = ("ALTER", "CREATE", "DROP", "COMMIT")


@pytest.fixture
def served(queue: Engine) -> Engine:
    """A queue whose claim index is in use."""
    with migrating(queue) as op:
        create_claim_index(op, "orders", *MIXINS)
    return queue


def replace(op: Operations, **options: Any) -> None:
    create_claim_index(op, "orders", *MIXINS, queue_args=BY_NOTE, replace=True, **options)


@contextmanager
def claim_index_seen(engine: Engine, observer: Engine) -> Iterator[list[bool]]:
    """Note after each statement that commits whether other connections see the claim index."""
    seen: list[bool] = []
    # Inside of a transaction the observer could wait for the lock of the index for ever.
    commits = ("CREATE", "ALTER TABLE", "COMMIT")

    def look(connection: Connection, cursor: Any, statement: str, *args: Any) -> None:
        if statement.startswith(commits):
            seen.append("ix_orders_claim" in index_names(observer))

    event.listen(engine, "after_cursor_execute", look)
    try:
        yield seen
    finally:
        event.remove(engine, "after_cursor_execute", look)


def test_claims_have_an_index_at_every_moment_of_a_replacement(
    served: Engine, observer: Engine
) -> None:
    with claim_index_seen(served, observer) as seen, migrating(served) as op:
        replace(op)

    assert len(seen) >= 2
    assert all(seen)
    assert index_names(served) == {"ix_orders_claim"}
    assert columns_of(served, "ix_orders_claim") == ["note", "status", "amount", "id"]


def test_a_broken_off_replacement_is_run_again(served: Engine) -> None:
    def run() -> None:
        with migrating(served) as op:
            replace(op)

    stop = 1
    while breaks_at(served, stop, run, before=CHANGES):
        assert "ix_orders_claim" in index_names(served)
        stop += 1
    run()

    assert stop > 1
    assert index_names(served) == {"ix_orders_claim"}
    assert columns_of(served, "ix_orders_claim")[0] == "note"


def test_a_leftover_of_other_columns_is_built_anew(served: Engine) -> None:
    with served.begin() as connection:
        connection.execute(text("CREATE INDEX ix_orders_claim_new ON orders (amount)"))

    with migrating(served) as op:
        replace(op)

    assert columns_of(served, "ix_orders_claim")[0] == "note"
    assert "ix_orders_claim_new" not in index_names(served) or served.name == "sqlite"


def test_a_dropped_index_leaves_no_broken_off_replacement(served: Engine) -> None:
    with served.begin() as connection:
        connection.execute(text("CREATE INDEX ix_orders_claim_new ON orders (status, amount)"))

    with migrating(served) as op:
        drop_claim_index(op, "orders")

    assert index_names(served) == set()


def test_a_dropped_index_leaves_another_that_is_named_like_its_replacement(queue: Engine) -> None:
    with migrating(queue) as op:
        create_index_online(op, "ix_note", "orders", ["note"])
        create_index_online(op, "ix_note_new", "orders", ["note"])
        drop_index_online(op, "ix_note", "orders")

    assert index_names(queue) == {"ix_note_new"}


@pytest.mark.parametrize("online", [True, False])
def test_where_there_is_no_index_or_the_wanted_one_nothing_is_replaced(
    queue: Engine, online: bool
) -> None:
    for _ in range(2):
        with migrating(queue) as op:
            replace(op, online=online)

    assert index_names(queue) == {"ix_orders_claim"}
    assert columns_of(queue, "ix_orders_claim")[0] == "note"


def test_an_index_is_replaced_in_the_transaction_of_the_migration(served: Engine) -> None:
    with migrating(served) as op:
        replace(op, online=False)

    assert columns_of(served, "ix_orders_claim")[0] == "note"


def test_the_index_of_a_key_is_replaced(queue: Engine) -> None:
    with migrating(queue) as op:
        create_key_index(op, "orders", JobMixin, queue_args={"per_key": "amount"})
        args = {"per_key": "amount", "equality": "note"}
        create_key_index(op, "orders", JobMixin, queue_args=args, replace=True)

    assert columns_of(queue, "ix_orders_key_amount")[0] == "note"


@pytest.mark.only_on("postgresql")
def test_the_indexes_of_partitions_are_replaced_and_named_as_before(engine: Engine) -> None:
    with engine.begin() as connection:
        for statement in (
            "CREATE TABLE orders (id int, note text, status text, amount int, PRIMARY KEY (id)) "
            "PARTITION BY RANGE (id)",
            "CREATE TABLE orders_1 PARTITION OF orders FOR VALUES FROM (0) TO (10)",
            "CREATE TABLE orders_2 PARTITION OF orders FOR VALUES FROM (10) TO (20)",
        ):
            connection.execute(text(statement))

    with migrating(engine) as op:
        create_claim_index(op, "orders", JobMixin)
        create_claim_index(op, "orders", JobMixin, queue_args=BY_NOTE, replace=True)

    assert index_names(engine) == {"ix_orders_claim"}
    assert index_names(engine, "orders_2") == {"ix_orders_claim_orders_2"}
    assert scalar(engine, "SELECT bool_and(indisvalid) FROM pg_index") is True


@pytest.mark.parametrize(
    ("engine_name", "swap"),
    [
        (
            "postgresql",
            [
                "CREATE INDEX CONCURRENTLY ix_orders_claim_new",
                "DROP INDEX ix_orders_claim;",
                "ALTER INDEX ix_orders_claim_new RENAME TO ix_orders_claim",
            ],
        ),
        (
            "mysql",
            [
                "CREATE INDEX ix_orders_claim_new",
                "ALTER TABLE orders DROP INDEX ix_orders_claim, "
                "RENAME INDEX ix_orders_claim_new TO ix_orders_claim",
            ],
        ),
    ],
)
def test_a_script_builds_the_new_index_beside_the_old_one(
    engine_name: str, swap: list[str]
) -> None:
    with writing_script(engine_name) as (op, script):
        replace(op, key="id")

    written = script.getvalue()
    found = [written.find(statement) for statement in swap]
    assert -1 not in found
    assert found == sorted(found)


@pytest.mark.only_on("mysql", "mariadb")
def test_a_script_for_mysql_drops_an_index_on_mariadb_too(served: Engine) -> None:
    with writing_script("mysql") as (op, script):
        drop_claim_index(op, "orders")
    written = [statement.strip() for statement in script.getvalue().split(";")]

    with served.connect() as connection:
        for statement in filter(None, written):
            connection.exec_driver_sql(statement)

    assert any("DROP INDEX" in statement for statement in written)
    assert index_names(served) == set()


@pytest.mark.parametrize("online", [True, False])
def test_an_index_that_a_foreign_key_needs_is_replaced_and_dropped(
    engine: Engine, online: bool
) -> None:
    """InnoDB keeps no foreign key without an index of its columns."""
    metadata = MetaData()
    customers = Table("customers", metadata, Column("id", Integer, primary_key=True))
    Table(
        "bills",
        metadata,
        Column("id", Integer, primary_key=True),
        Column("customer_id", ForeignKey(customers.c.id, name="fk_customer")),
    )
    metadata.create_all(engine)
    with migrating(engine) as op:
        add_job_columns(op, "bills", existing_rows="done")
        by_customer = {"equality": "customer_id"}
        create_claim_index(op, "bills", queue_args=by_customer, online=online)

    with migrating(engine) as op:
        create_claim_index(op, "bills", replace=True, online=online)
    assert columns_of(engine, "ix_bills_claim", "bills") == ["status", "id"]
    with migrating(engine) as op:
        create_claim_index(op, "bills", queue_args=by_customer, replace=True, online=online)
    with migrating(engine) as op:
        drop_claim_index(op, "bills", online=online)

    assert "ix_bills_claim" not in index_names(engine, "bills")
    assert len(inspect(engine).get_foreign_keys("bills")) == 1


def test_an_index_of_ones_own_is_made_replaced_and_dropped_online(queue: Engine) -> None:
    with migrating(queue) as op:
        create_index_online(op, "ix_own", "orders", ["note"])
        create_index_online(op, "ix_own", "orders", ["note", "amount"], replace=True)

    assert columns_of(queue, "ix_own") == ["note", "amount"]

    with migrating(queue) as op:
        drop_index_online(op, "ix_own", table_name="orders")

    assert index_names(queue) == set()


def uniques(engine: Engine) -> dict[str | None, bool]:
    return {each["name"]: bool(each["unique"]) for each in inspect(engine).get_indexes("orders")}


def test_an_index_becomes_unique_and_common_again(queue: Engine) -> None:
    for unique in (False, True, False):
        with migrating(queue) as op:
            create_index_online(op, "ix_own", "orders", ["note"], unique=unique, replace=True)

        assert uniques(queue) == {"ix_own": unique}


def test_an_index_that_is_not_unique_is_not_taken_for_a_unique_one(queue: Engine) -> None:
    with migrating(queue) as op:
        create_index_online(op, "ix_own", "orders", ["note"])

    with (
        migrating(queue) as op,
        pytest.raises(ArgumentError, match=r"ix_own \(note\).* need UNIQUE \(note\): replace=True"),
    ):
        create_index_online(op, "ix_own", "orders", ["note"], unique=True)


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


@pytest.mark.only_on("postgresql", "sqlite")
def test_an_index_of_expressions_alone_is_made_online(queue: Engine) -> None:
    with migrating(queue) as op:
        create_index_online(op, "ix_own", "orders", [text("lower(note)")])

    assert scalar(queue, "SELECT count(*) FROM orders") == 0
    with migrating(queue) as op:
        drop_index_online(op, "ix_own", table_name="orders")
