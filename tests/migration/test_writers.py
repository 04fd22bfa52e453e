"""Columns are added while others write, and what was interrupted is taken up again."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import pytest
from alembic.migration import MigrationContext
from alembic.operations import Operations
from sqlalchemy import URL, Connection, Engine, event, insert, text
from sqlalchemy.orm import Session

from sa_jobqueue import ArgumentError, LockTimeout, claim, complete
from sa_jobqueue.migration import (
    Progress,
    add_job_columns,
    create_claim_index,
    create_reap_index,
    drop_claim_index,
    drop_job_columns,
)
from tests.migration.support import (
    MIXINS,
    ORDERS,
    Order,
    adopt,
    breaks_at,
    claimed,
    column_names,
    insert_orders,
    migrating,
    scalar,
    statuses,
    writing,
)
from tests.support import SERVERS, make_engine, statements_seen

#: How long a test tries to get a lock.
SHORT = timedelta(seconds=1)


# How it is done


@pytest.mark.only_on("postgresql")
def test_no_row_is_rewritten_while_a_writer_goes_on(shop: Engine, fresh_database: URL) -> None:
    insert_orders(shop, range(1_000))
    file = "SELECT relfilenode FROM pg_class WHERE oid = 'orders'::regclass"
    before = scalar(shop, file)

    with writing(fresh_database):
        adopt(shop, "done")
        with migrating(shop) as op:
            create_claim_index(op, "orders", *MIXINS)
            drop_claim_index(op, "orders")
            drop_job_columns(op, "orders", *MIXINS)

    assert scalar(shop, file) == before
    assert scalar(shop, "SELECT n_tup_upd FROM pg_stat_user_tables WHERE relname = 'orders'") == 0


@pytest.mark.only_on("mysql", "mariadb")
def test_the_columns_are_added_instantly_while_a_writer_goes_on(
    shop: Engine, fresh_database: URL
) -> None:
    insert_orders(shop, range(1_000))

    with statements_seen(shop) as seen, writing(fresh_database):
        adopt(shop, "done")
        with migrating(shop) as op:
            drop_job_columns(op, "orders", *MIXINS)

    altered = list(dict.fromkeys(one for one in seen if one.startswith("ALTER TABLE")))
    assert len(altered) == 4  # a statement that met the writer was tried again
    assert "run_at SET DEFAULT (UTC_TIMESTAMP(6))" in altered[2]
    assert all(statement.endswith(", ALGORITHM=INSTANT") for statement in altered)


@pytest.mark.only_on("sqlite")
def test_no_row_has_a_status_that_a_claim_knows_before_all_are_done(shop: Engine) -> None:
    insert_orders(shop, range(10))
    seen: list[list[str]] = []

    def look(connection: Connection, cursor: Any, statement: str, *args: Any) -> None:
        if statement.startswith(("UPDATE", "ALTER")):
            seen.append([row[1] for row in cursor.connection.execute("PRAGMA table_info(orders)")])

    event.listen(shop, "before_cursor_execute", look)
    adopt(shop, "done")

    updates = [names for names in seen if "sa_jobqueue_adopting" in names]
    assert updates
    assert all("status" not in names for names in updates)
    assert set(statuses(shop).values()) == {"done"}


@pytest.mark.only_on("sqlite")
def test_rows_inserted_before_the_last_step_count_as_existing_rows(
    shop: Engine, fresh_database: URL
) -> None:
    insert_orders(shop, range(10))
    other = make_engine(fresh_database)
    keys = iter(range(-1, -100, -1))  # behind the rows that have their status already

    def insert_one(connection: Connection, cursor: Any, statement: str, *args: Any) -> None:
        if statement == "BEGIN IMMEDIATE" and "status" not in column_names(other):
            key = next(keys)
            with other.begin() as another:
                another.execute(insert(ORDERS), {"id": key, "amount": key})

    event.listen(shop, "before_cursor_execute", insert_one)
    adopt(shop, "done")
    event.remove(shop, "before_cursor_execute", insert_one)
    insert_orders(shop, [100])

    assert next(keys) < -3
    assert {amount for amount, status in statuses(shop).items() if status != "done"} == {100}


@pytest.mark.parametrize("existing_rows", ["done", "amount > 1"])
def test_an_interrupted_run_is_continued(shop: Engine, existing_rows: str) -> None:
    insert_orders(shop, [1, 2])

    for stop in range(1, 30):
        if not breaks_at(
            shop, stop, lambda: adopt(shop, existing_rows), before=("ALTER", "UPDATE")
        ):
            break

    assert stop > 2
    assert statuses(shop) == {1: "done", 2: "done" if existing_rows == "done" else "unclaimed"}
    assert column_names(shop)[3:] == [
        column.name for column in Order.__table__.columns if column.name in column_names(shop)[3:]
    ]


def test_rows_get_their_status_in_batches(shop: Engine) -> None:
    insert_orders(shop, range(10))
    told: list[Progress] = []

    adopt(shop, "amount >= 5", batch=4, pause=timedelta(0), progress=told.append)

    assert [each.batches for each in told] == [1, 2, 3]
    assert told[-1].written == 5
    assert claimed(shop) == [5, 6, 7, 8, 9]


def test_a_batch_of_no_row_is_refused_before_anything_is_changed(shop: Engine) -> None:
    before = column_names(shop)

    with pytest.raises(ArgumentError, match="at least one row"):
        adopt(shop, "done", batch=0)

    assert column_names(shop) == before


def test_running_it_again_makes_no_done_job_claimable(shop: Engine) -> None:
    insert_orders(shop, [1, 2])
    adopt(shop, "amount = 2")
    with Session(shop) as session:
        complete(session, claim(session, Order, owner="worker"))
        session.commit()

    adopt(shop, "amount = 2")

    assert statuses(shop) == {1: "done", 2: "done"}


# Others' locks


@pytest.mark.only_on(*SERVERS)
def test_a_migration_gives_up_on_a_table_that_others_lock_and_changes_nothing(shop: Engine) -> None:
    before = column_names(shop)
    insert_orders(shop, [1])

    with shop.connect() as reader:
        reader.execute(text("SELECT * FROM orders"))  # a long report
        with pytest.raises(LockTimeout, match="run the migration again"):
            adopt(shop, "done", patience=SHORT)
        insert_orders(shop, [2])  # no writer waits behind the migration any more

    assert column_names(shop) == before


@pytest.mark.only_on(*SERVERS)
def test_a_migration_gets_a_lock_that_is_freed_meanwhile(shop: Engine) -> None:
    insert_orders(shop, [1])
    reader = shop.connect()
    reader.execute(text("SELECT * FROM orders"))
    end = threading.Timer(1.5, reader.close)

    end.start()
    adopt(shop, "done")
    end.join()

    assert statuses(shop) == {1: "done"}


@pytest.mark.only_on("mysql", "mariadb")
def test_a_row_inserted_between_two_statements_waits_and_becomes_a_job(shop: Engine) -> None:
    insert_orders(shop, [1])
    writers: list[threading.Thread] = []

    def insert(connection: Connection, cursor: Any, statement: str, *args: Any) -> None:
        if "status SET DEFAULT" in statement:
            writers.append(threading.Thread(target=insert_orders, args=(shop, [2])))
            writers[0].start()
            writers[0].join(0.5)  # it waits for the table

    event.listen(shop, "before_cursor_execute", insert)
    adopt(shop, "done")
    writers[0].join()

    assert statuses(shop) == {1: "done", 2: "unclaimed"}


@pytest.mark.only_on("mysql", "mariadb")
def test_the_sessions_own_lock_timeout_is_restored(shop: Engine) -> None:
    with migrating(shop) as op:
        connection = op.get_bind()
        before = scalar(connection, "SELECT @@lock_wait_timeout")
        add_job_columns(op, "orders", existing_rows="done")
        after = scalar(op.get_bind(), "SELECT @@lock_wait_timeout")

    assert (before, after) == (10, 10)  # as tests.support sets it


def test_a_transaction_that_is_not_alembics_is_refused(shop: Engine) -> None:
    with shop.connect() as connection:
        connection.begin()
        op = Operations(MigrationContext.configure(connection))

        with pytest.raises(ArgumentError, match="a transaction that is not Alembic's is open"):
            add_job_columns(op, "orders", existing_rows="done")


def test_no_lock_is_kept_while_the_migration_goes_on(shop: Engine) -> None:
    insert_orders(shop, [1])

    with migrating(shop) as op:
        add_job_columns(op, "orders", *MIXINS, existing_rows="done")
        insert_orders(shop, [2])
        create_claim_index(op, "orders", *MIXINS)
        insert_orders(shop, [3])
        create_reap_index(op, "orders", *MIXINS)
        insert_orders(shop, [4])

    assert claimed(shop) == [2, 3, 4]
