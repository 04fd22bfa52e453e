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
from sqlalchemy import Column, Connection, Engine, Integer, event, text
from sqlalchemy.engine import ExceptionContext

from sa_jobqueue import LockTimeout
from sa_jobqueue.migration import backfill, create_claim_index, drop_claim_index, patiently
from tests.migration.support import Order, index_names, insert_orders, migrating, scalar
from tests.support import SERVERS, statements_seen, translating_errors, until

pytestmark = pytest.mark.only_on(*SERVERS)

#: How long a test tries to get a lock.
SHORT = timedelta(seconds=1)

CLAIM = "ix_orders_claim"


@pytest.fixture
def queue(engine: Engine) -> Engine:
    """A queue with its columns and without its indexes, and with a job."""
    Order.__table__.create(engine)  # type: ignore[attr-defined]  # a Table
    with engine.begin() as connection:
        for index in Order.__table__.indexes:  # type: ignore[attr-defined]  # as above
            index.drop(connection)
    insert_orders(engine, [1])
    return engine


def create(engine: Engine, patience: timedelta) -> None:
    with migrating(engine) as op:
        create_claim_index(op, Order, patience=patience)


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
    assert index_names(queue) == {CLAIM}


@pytest.mark.only_on("postgresql")
def test_a_concurrent_build_waits_for_an_old_snapshot_without_beginning_anew(
    queue: Engine,
) -> None:
    with old_snapshot(queue) as snapshot, statements_seen(queue) as seen:
        end = threading.Timer(1, snapshot.close)
        end.start()
        create(queue, timedelta(seconds=30))
        end.join()

    assert built(seen) == ["CREATE"]
    assert index_names(queue) == {CLAIM}


@pytest.mark.only_on("postgresql")
def test_a_concurrent_build_that_is_abandoned_leaves_nothing(queue: Engine) -> None:
    with old_snapshot(queue):
        with pytest.raises(LockTimeout, match="Nothing was changed by this step"):
            create(queue, SHORT)

        assert index_names(queue) == set()

    create(queue, SHORT)
    assert index_names(queue) == {CLAIM}


@pytest.mark.only_on("postgresql")
def test_the_error_about_an_index_that_remains_shows_the_command_that_drops_it(
    queue: Engine,
) -> None:
    with old_snapshot(queue, "SELECT * FROM orders"):
        with pytest.raises(LockTimeout, match="invalid index") as caught:
            create(queue, SHORT)

        assert "Nothing was changed" not in str(caught.value)
        assert index_names(queue) == {CLAIM}

    command = "DROP INDEX CONCURRENTLY ix_orders_claim"
    assert command in str(caught.value)
    with queue.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text(command))
    assert index_names(queue) == set()


@pytest.mark.only_on("postgresql")
def test_a_concurrent_build_that_failed_is_dropped_before_the_next_try(queue: Engine) -> None:
    # The session that looks for a deadlock while there is one is ended: the build looks once, after
    # it has waited for so long, and the writer does not look.
    with queue.begin() as connection:
        name = connection.scalar(text("SELECT quote_ident(current_database())"))
        connection.execute(text(f"ALTER DATABASE {name} SET deadlock_timeout = '4s'"))
    queue.dispose()
    writer = queue.connect()
    writer.execute(text("SET deadlock_timeout = '10min'"))
    writer.execute(text("INSERT INTO orders (amount) VALUES (2)"))  # the build waits for it

    def wait_for_the_build() -> None:  # each waits for the other, so the server ends one of them
        waiting = text(
            "SELECT count(*) FROM pg_stat_activity "
            "WHERE query LIKE 'CREATE INDEX CONCURRENTLY%' AND wait_event_type = 'Lock' "
            "AND datname = current_database()"
        )
        with queue.connect().execution_options(isolation_level="AUTOCOMMIT") as other:
            while not other.scalar(waiting):
                sleep(0.01)
        writer.execute(text("LOCK TABLE orders IN SHARE UPDATE EXCLUSIVE MODE"))
        writer.close()

    deadlocked = threading.Thread(target=wait_for_the_build)
    deadlocked.start()
    with statements_seen(queue) as seen:
        create(queue, timedelta(seconds=30))
    deadlocked.join()

    assert built(seen) == ["CREATE", "DROP", "CREATE"]
    assert scalar(queue, "SELECT bool_and(indisvalid) FROM pg_index") is True


@pytest.mark.only_on("postgresql")
def test_the_next_run_does_a_drop_that_was_abandoned(queue: Engine) -> None:
    create(queue, SHORT)

    with (
        old_snapshot(queue, "SELECT * FROM orders"),
        pytest.raises(LockTimeout, match="no query uses it any more"),
        migrating(queue) as op,
    ):
        drop_claim_index(op, Order, patience=SHORT)
    with migrating(queue) as op:
        drop_claim_index(op, Order)

    assert index_names(queue) == set()


# Rows


@contextmanager
def locked_row(engine: Engine, key: int) -> Iterator[Connection]:
    with engine.connect() as connection:
        connection.execute(text(f"SELECT id FROM orders WHERE id = {key} FOR UPDATE"))
        yield connection


def mark(engine: Engine, patience: timedelta) -> int:
    with migrating(engine) as op:
        return backfill(
            op, "orders", "note IS NULL", values={"note": "old"}, batch=10, patience=patience
        )


def marked(engine: Engine) -> int:
    found: int = scalar(engine, "SELECT COUNT(*) FROM orders WHERE note = 'old'")
    return found


def test_a_batch_abandons_a_locked_row_and_keeps_what_is_written(shop: Engine) -> None:
    keys = insert_orders(shop, range(50))

    with (
        locked_row(shop, keys[25]),
        pytest.raises(LockTimeout, match=r"orders: UPDATE.*batches before this one are committed"),
    ):
        mark(shop, SHORT)
    assert marked(shop) == 20

    assert mark(shop, SHORT) == 30


def test_a_batch_is_tried_again_until_the_row_is_free(
    shop: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    keys = insert_orders(shop, range(50))

    with locked_row(shop, keys[25]) as holder, caplog.at_level(logging.INFO, "sa_jobqueue"):

        def free_the_row() -> None:
            until(lambda: "orders: UPDATE: another transaction has it locked" in caplog.text)
            holder.close()

        freeing = threading.Thread(target=free_the_row)
        freeing.start()
        written = mark(shop, timedelta(seconds=30))
        freeing.join()

    assert written == 50


def test_the_sessions_own_limits_are_restored_after_it_was_abandoned(shop: Engine) -> None:
    (key,) = insert_orders(shop, [1])
    variables = {"postgresql": ["lock_timeout"]}.get(
        shop.name, ["innodb_lock_wait_timeout", "lock_wait_timeout"]
    )
    asked = "SHOW {}" if shop.name == "postgresql" else "SELECT @@{}"

    with migrating(shop) as op:
        before = [scalar(op.get_bind(), asked.format(name)) for name in variables]
        with locked_row(shop, key), pytest.raises(LockTimeout):
            backfill(op, "orders", "1 = 1", values={"note": "old"}, patience=SHORT)
        after = [scalar(op.get_bind(), asked.format(name)) for name in variables]

    assert after == before
    assert {str(value).removesuffix("s") for value in before} == {"10"}  # of tests.support


def test_a_lock_is_waited_for_whatever_the_application_makes_of_errors(queue: Engine) -> None:
    def add_a_column() -> None:
        with migrating(queue) as op:
            patiently(op, lambda: op.add_column("orders", Column("more", Integer)), patience=SHORT)

    with translating_errors(queue), queue.connect() as reader:
        reader.execute(text("SELECT * FROM orders"))

        with pytest.raises(LockTimeout, match="kept its lock"):
            add_a_column()
