"""A table with rows becomes a queue while writers insert: no writer waits, no old row is a job.

Patience bounds the wait for others' locks, not the work; errors tell what is left.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from time import sleep
from typing import Any

import pytest
from alembic import command
from alembic.operations import Operations
from sqlalchemy import URL, Column, Connection, Engine, String, event, text
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.exc import DBAPIError

from sa_jobqueue import LockTimeout
from sa_jobqueue.migration import (
    add_job_columns,
    backfill,
    create_job_indexes,
    drop_job_indexes,
    patiently,
)
from tests.contract.asyncio.support import make_async_engine
from tests.migration.support import (
    Order,
    alembic_config,
    column_names,
    in_context,
    index_names,
    insert_orders,
    migrate,
    migrating,
    notes,
    scalar,
    statuses,
)
from tests.running import ASYNC_DRIVERS
from tests.support import LOCK_WAIT, SERVERS, make_engine, statements_seen, until

#: Existing rows: in each run, and with --full.
ROWS = 20_000
FULL_ROWS = 1_000_000

#: The seconds that an insert may take with --full. A small table shows nothing: an upgrade that
#: held up its writers would be over in less, and a busy machine takes more.
LONGEST = 1.0

AS_BEFORE = "INSERT INTO example_order (customer, amount, status) VALUES ('new', 1, 'ordered')"


def fill(engine: Engine, rows: int) -> int:
    """Insert rows by doubling them; return the last key."""
    copied = (
        "INSERT INTO example_order (customer, amount, status) "
        "SELECT customer, amount, status FROM example_order LIMIT {}"
    )
    with engine.begin() as connection:
        connection.execute(text(AS_BEFORE))
    there = 1
    while there < rows:
        with engine.begin() as connection:
            connection.execute(text(copied.format(min(there, rows - there))))
        there = scalar(engine, "SELECT COUNT(*) FROM example_order")
    last: int = scalar(engine, "SELECT MAX(id) FROM example_order")
    return last


@contextmanager
def repeating(*works: Callable[[], object]) -> Iterator[None]:
    """Do each work again and again in a thread of its own; raise its error at the end."""
    ended = threading.Event()

    def repeat(work: Callable[[], object]) -> None:
        while not ended.wait(0.002):
            work()

    with ThreadPoolExecutor(len(works)) as pool:
        running = [pool.submit(repeat, work) for work in works]
        try:
            yield
        finally:
            ended.set()
    for each in running:
        each.result()


class Writer:
    """Old code that inserts rows, one by one, and notes when each insert began and ended."""

    def __init__(self, url: URL, statement: str) -> None:
        self.engine = make_engine(url)
        self.statement = text(statement)
        self.inserts: list[tuple[float, float]] = []

    def __call__(self) -> None:
        began = time.monotonic()
        with self.engine.begin() as connection:
            connection.execute(self.statement)
        self.inserts.append((began, time.monotonic()))


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "rows", [ROWS, pytest.param(FULL_ROWS, marks=pytest.mark.only_full, id="full")]
)
def test_a_table_is_adopted_while_writers_insert(
    fresh_database: URL, engine: Engine, observer: Engine, rows: int
) -> None:
    config = alembic_config(fresh_database)
    command.upgrade(config, "0003")
    last = fill(engine, rows)
    writers = [Writer(fresh_database, AS_BEFORE) for _ in range(2)]
    looks: list[int] = []

    def look_at_old_rows() -> None:
        jobs = f"job_status = 'unclaimed' AND id IN (1, {last // 2}, {last})"
        try:
            looks.append(scalar(observer, f"SELECT COUNT(*) FROM example_order WHERE {jobs}"))
        except DBAPIError as error:
            if "job_status" not in str(error.orig):  # the column does not exist yet
                raise

    with repeating(*writers, look_at_old_rows):
        time.sleep(0.3)
        began = time.monotonic()
        command.upgrade(config, "head")
        upgraded = time.monotonic() - began
        until = scalar(engine, "SELECT MAX(id) FROM example_order")
        time.sleep(0.3)

    took = [ended - began for writer in writers for began, ended in writer.inserts]
    longest = max(took)
    sys.stderr.write(
        f"{engine.name}, {rows} rows: upgrade {upgraded:.2f} s, longest insert {longest:.3f} s of "
        f"{len(took)}; looked {len(looks)} times\n"
    )
    if rows == FULL_ROWS:
        assert longest < LONGEST
    assert looks
    assert not any(looks)
    count = "SELECT COUNT(*) FROM example_order WHERE "
    assert scalar(engine, f"{count} job_status = 'unclaimed' AND id <= {last}") == 0
    assert scalar(engine, f"{count} job_status <> 'unclaimed' AND id > {until}") == 0
    command.check(config)


#: Enough for three tries, which wait for a second at most, with pauses of a second between them.
THREE_TRIES = timedelta(seconds=4)

#: Changes that find the table in use: a change of ours, and a change of the user's.
CHANGES: dict[str, Callable[[Any], None]] = {
    "ours": lambda op: add_job_columns(op, "orders", existing_rows="done", patience=THREE_TRIES),
    "own": lambda op: patiently(
        op, lambda: op.add_column("orders", Column("region", String(20))), patience=THREE_TRIES
    ),
}


@pytest.mark.only_on(*SERVERS)
@pytest.mark.parametrize(
    "change", ["ours", pytest.param("own", marks=pytest.mark.by_turns(*SERVERS))]
)
def test_writers_do_not_queue_for_long_behind_a_change_that_waits(
    shop: Engine, fresh_database: URL, change: str
) -> None:
    """An insert waits behind a try, and ends before the last one begins: so on any machine."""
    insert_orders(shop, [1])
    before = column_names(shop)
    writer = Writer(fresh_database, "INSERT INTO orders (amount) VALUES (2)")
    tries: list[float] = []

    def note(conn: Any, cursor: Any, statement: str, *args: Any) -> None:
        if statement.startswith(("ALTER TABLE", "LOCK TABLES")):
            tries.append(time.monotonic())

    event.listen(shop, "before_cursor_execute", note)

    with shop.connect() as reader, repeating(writer):
        reader.execute(text("SELECT * FROM orders"))  # a long report
        with pytest.raises(LockTimeout, match="run the migration again"), migrating(shop) as op:
            CHANGES[change](op)

    assert [ended for _, ended in writer.inserts if tries[0] < ended < tries[-1]]
    assert column_names(shop) == before


def test_a_change_of_the_users_own_is_tried_until_the_table_is_free_and_commits(
    shop: Engine,
) -> None:
    insert_orders(shop, [1])
    tries: list[int] = []
    waits = shop.name != "sqlite"

    with shop.connect() as reader, migrating(shop) as op:
        if waits:
            reader.execute(text("SELECT * FROM orders"))

        def change() -> None:
            tries.append(1)
            if len(tries) == 2:
                reader.rollback()
            op.add_column("orders", Column("region", String(20)))

        patiently(op, change)

        assert "region" in column_names(shop)  # seen from another connection
        patiently(op, lambda: op.drop_column("orders", "region"))

    assert len(tries) == 1 + waits
    assert "region" not in column_names(shop)


@pytest.mark.only_on("mysql", "mariadb")
def test_in_an_async_environment_a_wait_for_a_table_ends_before_the_server_ends_it(
    shop: Engine,
) -> None:
    def change(connection: Connection) -> None:
        with in_context(connection) as op:
            add_job_columns(op, "orders", existing_rows="done", patience=timedelta(seconds=1))

    async def migrate() -> None:
        engine = make_async_engine(shop.url, ASYNC_DRIVERS[shop.url.get_backend_name()])
        async with engine.connect() as connection:
            with pytest.raises(LockTimeout):
                await connection.run_sync(change)
        await engine.dispose()

    with shop.connect() as reader:
        reader.execute(text("SELECT * FROM orders"))
        began = time.monotonic()
        asyncio.run(migrate())

    assert time.monotonic() - began < LOCK_WAIT


#: How long a test tries to get a lock.
SHORT = timedelta(seconds=1)


def create(engine: Engine, patience: timedelta) -> None:
    migrate(engine, create_job_indexes, Order, patience=patience)


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
    assert index_names(queue) == {"ix_orders_claim", "ix_orders_reap"}


@pytest.mark.only_on("postgresql")
def test_a_concurrent_build_waits_for_an_old_snapshot_without_beginning_anew(queue: Engine) -> None:
    with old_snapshot(queue) as snapshot, statements_seen(queue) as seen:
        end = threading.Timer(1, snapshot.close)
        end.start()
        create(queue, timedelta(seconds=30))
        end.join()

    assert built(seen) == ["CREATE", "CREATE"]
    assert index_names(queue) == {"ix_orders_claim", "ix_orders_reap"}


@pytest.mark.only_on("postgresql")
def test_the_next_run_ends_a_build_or_a_drop_that_was_abandoned(queue: Engine) -> None:
    with old_snapshot(queue, "SELECT * FROM orders"):
        with pytest.raises(LockTimeout, match="ix_orders_claim may be there and invalid"):
            create(queue, SHORT)
        assert index_names(queue) == {"ix_orders_claim"}

    create(queue, SHORT)
    assert index_names(queue) == {"ix_orders_claim", "ix_orders_reap"}
    assert scalar(queue, "SELECT bool_and(indisvalid) FROM pg_index") is True

    with (
        old_snapshot(queue, "SELECT * FROM orders"),
        pytest.raises(LockTimeout, match="serves no query"),
        migrating(queue) as op,
    ):
        drop_job_indexes(op, Order, patience=SHORT)
    migrate(queue, drop_job_indexes, Order)
    assert index_names(queue) == set()


# Tables


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


@pytest.mark.only_on(*SERVERS)
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
    assert notes(shop) == 20
    assert {str(value).removesuffix("s") for value in after} == {"10"}  # as tests.support sets it

    with migrating(shop) as op:
        assert mark(op, SHORT) == 30


@pytest.mark.only_on(*SERVERS)
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
