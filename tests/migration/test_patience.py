"""Patience bounds the wait for others' locks, not the work; errors tell what is left."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from time import sleep
from typing import Any

import pytest
from alembic.operations import Operations
from sqlalchemy import Connection, Engine, event, text
from sqlalchemy.engine import ExceptionContext

from sa_jobqueue import LockTimeout
from sa_jobqueue.migration import (
    add_job_columns,
    backfill,
    create_job_indexes,
    drop_job_indexes,
)
from tests.migration.support import (
    Order,
    index_names,
    insert_orders,
    migrating,
    scalar,
    statuses,
)
from tests.support import SERVERS, statements_seen, until

pytestmark = pytest.mark.only_on(*SERVERS)

#: How long a test tries to get a lock.
SHORT = timedelta(seconds=1)

BOTH = {"ix_orders_claim", "ix_orders_reap"}


def create(engine: Engine, patience: timedelta) -> None:
    with migrating(engine) as op:
        create_job_indexes(op, Order, patience=patience)


@contextmanager
def old_snapshot(engine: Engine, *reads: str) -> Iterator[Connection]:
    """Keep a transaction open that sees the database as it is now."""
    with engine.connect().execution_options(isolation_level="REPEATABLE READ") as connection:
        for statement in reads or ("SELECT 1",):
            connection.execute(text(statement))
        yield connection


def built(seen: list[str]) -> list[str]:
    """Return a word for each change of an index."""
    return [one.split()[0] for one in seen if one.startswith(("CREATE INDEX", "DROP INDEX"))]


# Indexes


@pytest.mark.by_turns("mysql", "mariadb")
@pytest.mark.only_on("mysql", "mariadb")
def test_the_time_of_a_build_does_not_count_as_waiting_for_a_lock(queue: Engine) -> None:
    readers: list[Connection] = []

    def build_for_long(connection: Connection, cursor: Any, statement: str, *args: Any) -> None:
        if statement.startswith("CREATE INDEX") and not readers:
            sleep(2)  # the build takes time; then a reader comes and goes on reading
            readers.append(queue.connect())
            readers[0].execute(text("SELECT * FROM orders"))

    def end_reading(context: ExceptionContext) -> None:
        readers[0].close()

    event.listen(queue, "before_cursor_execute", build_for_long)
    event.listen(queue, "handle_error", end_reading)
    create(queue, 2 * SHORT)

    assert readers[0].closed
    assert index_names(queue) == BOTH


@pytest.mark.only_on("postgresql")
def test_a_concurrent_build_waits_for_an_old_snapshot_without_beginning_anew(
    queue: Engine,
) -> None:
    with old_snapshot(queue) as snapshot, statements_seen(queue) as seen:
        end = threading.Timer(1, snapshot.close)
        end.start()
        create(queue, timedelta(seconds=30))
        end.join()

    assert built(seen) == ["CREATE", "CREATE"]
    assert index_names(queue) == BOTH


@pytest.mark.only_on("postgresql")
def test_the_next_run_ends_a_build_or_a_drop_that_was_abandoned(queue: Engine) -> None:
    with old_snapshot(queue, "SELECT * FROM orders"):
        with pytest.raises(LockTimeout, match="ix_orders_claim may be there and invalid"):
            create(queue, SHORT)
        assert index_names(queue) == {"ix_orders_claim"}

    create(queue, SHORT)
    assert index_names(queue) == BOTH
    assert scalar(queue, "SELECT bool_and(indisvalid) FROM pg_index") is True

    with (
        old_snapshot(queue, "SELECT * FROM orders"),
        pytest.raises(LockTimeout, match="serves no query"),
        migrating(queue) as op,
    ):
        drop_job_indexes(op, Order, patience=SHORT)
    with migrating(queue) as op:
        drop_job_indexes(op, Order)
    assert index_names(queue) == set()


# Tables


@pytest.mark.by_turns("mysql", "mariadb")
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
    with migrating(shop) as op:
        add_job_columns(op, "orders", existing_rows="done")
        after = scalar(op.get_bind(), "SELECT @@lock_wait_timeout")
    writers[0].join()

    assert statuses(shop) == {1: "done", 2: "unclaimed"}
    assert after == 10  # as tests.support sets it


# Rows


@contextmanager
def locked_row(engine: Engine, key: int) -> Iterator[Connection]:
    with engine.connect() as connection:
        connection.execute(text(f"SELECT id FROM orders WHERE id = {key} FOR UPDATE"))
        yield connection


def mark(op: Operations, patience: timedelta) -> int:
    values = {"note": "old"}
    return backfill(op, "orders", "note IS NULL", values=values, batch=10, patience=patience)


def marked(engine: Engine) -> int:
    found: int = scalar(engine, "SELECT COUNT(*) FROM orders WHERE note = 'old'")
    return found


def test_a_batch_abandons_a_locked_row_and_keeps_what_is_written(shop: Engine) -> None:
    keys = insert_orders(shop, range(50))

    variables = {"postgresql": ["lock_timeout"]}.get(
        shop.name, ["innodb_lock_wait_timeout", "lock_wait_timeout"]
    )
    asked = "SHOW {}" if shop.name == "postgresql" else "SELECT @@{}"
    with locked_row(shop, keys[25]), migrating(shop) as op:
        with pytest.raises(LockTimeout, match=r"orders: UPDATE.*batches before .* are committed"):
            mark(op, SHORT)
        after = [scalar(op.get_bind(), asked.format(name)) for name in variables]
    assert marked(shop) == 20
    assert {str(value).removesuffix("s") for value in after} == {"10"}  # as tests.support sets it

    with migrating(shop) as op:
        assert mark(op, SHORT) == 30


@pytest.mark.by_turns("mysql", "mariadb")
def test_a_batch_is_tried_again_until_the_row_is_free(
    shop: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    keys = insert_orders(shop, range(50))

    with (
        locked_row(shop, keys[25]) as holder,
        caplog.at_level(logging.INFO, "sa_jobqueue"),
        migrating(shop) as op,
    ):

        def free_the_row() -> None:
            until(lambda: "orders: UPDATE: another transaction has it locked" in caplog.text)
            holder.close()

        freeing = threading.Thread(target=free_the_row)
        freeing.start()
        written = mark(op, timedelta(seconds=30))
        freeing.join()

    assert written == 50
