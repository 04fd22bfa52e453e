"""A table with rows becomes a queue while writers insert: no writer waits, no old row is a job."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from alembic import command
from sqlalchemy import (
    URL,
    Column,
    Connection,
    Engine,
    NullPool,
    String,
    column,
    event,
    select,
    table,
    text,
)
from sqlalchemy.exc import DBAPIError

from sa_jobqueue import LockTimeout
from sa_jobqueue.dialects import database_of
from sa_jobqueue.migration import add_job_columns, patiently
from tests.contract.asyncio.support import make_async_engine
from tests.migration.support import (
    alembic_config,
    column_names,
    insert_orders,
    migrating,
    scalar,
    writing_script,
)
from tests.running import ASYNC_DRIVERS
from tests.support import SERVERS, make_engine

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


class Thread(threading.Thread):
    """An action that a thread repeats until it is stopped; stop() raises its error."""

    def __init__(self, work: Callable[[], None], *, pause: float) -> None:
        super().__init__()
        self.work = work
        self.pause = pause
        self.stopped = threading.Event()
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            while not self.stopped.is_set():
                self.work()
                time.sleep(self.pause)
        except BaseException as error:
            self.error = error


@contextmanager
def running(*threads: Thread) -> Iterator[None]:
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for thread in threads:
            thread.stopped.set()
        for thread in threads:
            thread.join()
    for thread in threads:
        if thread.error is not None:
            raise thread.error


class Writer:
    """Old code that inserts rows, one by one, and notes when each ended and how long it took."""

    def __init__(self, url: URL, statement: str) -> None:
        self.engine = make_engine(url)
        self.statement = text(statement)
        self.took: list[float] = []
        self.ended: list[float] = []

    def write(self) -> None:
        began = time.monotonic()
        with self.engine.begin() as connection:
            connection.execute(self.statement)
        self.ended.append(time.monotonic())
        self.took.append(self.ended[-1] - began)


class Watcher:
    """A reader that looks at old rows all the time, and records rows that look like jobs."""

    def __init__(self, url: URL, keys: list[int]) -> None:
        self.engine = make_engine(url, poolclass=NullPool)
        orders = table("example_order", column("id"), column("job_status"))
        waiting = orders.c.job_status == "unclaimed"
        self.statement = select(orders.c.id).where(orders.c.id.in_(keys), waiting)
        self.looks = 0
        self.claimable: set[int] = set()

    def look(self) -> None:
        with self.engine.connect() as connection:
            try:
                self.claimable.update(connection.scalars(self.statement))
            except DBAPIError as error:
                if "job_status" in str(error.orig):  # the column does not exist yet
                    return
                raise
        self.looks += 1


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "rows", [ROWS, pytest.param(FULL_ROWS, marks=pytest.mark.only_full, id="full")]
)
def test_a_table_is_adopted_while_writers_insert(
    fresh_database: URL,
    engine: Engine,
    rows: int,
    record_property: Callable[[str, Any], None],
) -> None:
    config = alembic_config(fresh_database)
    command.upgrade(config, "0003")
    last = fill(engine, rows)
    writers = [Writer(fresh_database, AS_BEFORE) for _ in range(2)]
    watcher = Watcher(fresh_database, [1, last // 2, last])

    with running(
        *(Thread(writer.write, pause=0.002) for writer in writers),
        Thread(watcher.look, pause=0.005),
    ):
        time.sleep(0.3)
        began = time.monotonic()
        command.upgrade(config, "head")
        upgraded = time.monotonic() - began
        until = scalar(engine, "SELECT MAX(id) FROM example_order")
        time.sleep(0.3)

    took = [seconds for writer in writers for seconds in writer.took]
    longest = max(took)
    for name, value in (("upgrade", upgraded), ("longest", longest), ("inserts", len(took))):
        record_property(name, value)
    sys.stderr.write(
        f"{engine.name}, {rows} rows: upgrade {upgraded:.2f} s, longest insert {longest:.3f} s of "
        f"{len(took)}; looked {watcher.looks} times\n"
    )
    if rows == FULL_ROWS:
        assert longest < LONGEST
    assert watcher.looks
    assert watcher.claimable == set()
    jobs = "SELECT COUNT(*) FROM example_order WHERE job_status = 'unclaimed' AND id {} {}"
    assert scalar(engine, jobs.format("<=", last)) == 0
    assert scalar(engine, jobs.format(">", until)) == scalar(
        engine, f"SELECT COUNT(*) FROM example_order WHERE id > {until}"
    )
    command.check(config)


#: Enough for three tries, which wait for a second at most, with pauses of a second between them.
THREE_TRIES = timedelta(seconds=4)

#: Changes that find the table in use: a change of ours, and a change of the user's.
CHANGES: dict[str, Callable[[Any], None]] = {
    "ours": lambda op: add_job_columns(op, "orders", existing_rows="done", patience=THREE_TRIES),
    "own": lambda op: patiently(
        op,
        lambda: op.add_column("orders", Column("region", String(20))),
        patience=THREE_TRIES,
    ),
}


@pytest.mark.only_on(*SERVERS)
@pytest.mark.parametrize("change", CHANGES)
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

    with shop.connect() as reader, running(Thread(writer.write, pause=0.01)):
        reader.execute(text("SELECT * FROM orders"))  # a long report
        with pytest.raises(LockTimeout), migrating(shop) as op:
            CHANGES[change](op)

    assert [ended for ended in writer.ended if tries[0] < ended < tries[-1]]
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


@pytest.mark.parametrize("engine_name", ["postgresql", "mysql", "mariadb"])
def test_a_change_of_the_users_own_stands_in_the_script_between_its_limits(
    engine_name: str,
) -> None:
    with writing_script(engine_name) as (op, script):
        patiently(op, lambda: op.drop_column("orders", "note"))

    before, _, after = script.getvalue().partition("DROP COLUMN note")
    begins, ends = {"postgresql": ("SET LOCAL lock_timeout", "COMMIT")}.get(
        engine_name, ("lock_wait_timeout = 1", "SET lock_wait_timeout = @")
    )
    assert begins in before
    assert ends in after


@pytest.mark.only_on("mysql", "mariadb")
def test_the_migration_ends_a_wait_for_a_table_lock_before_the_server_does(shop: Engine) -> None:
    """The server counts whole seconds: all later statements would wait for a second."""
    limit = 20

    with shop.connect() as reader, shop.connect() as waiting:
        reader.execute(text("SELECT * FROM orders"))
        waiting.execute(text(f"SET lock_wait_timeout = {limit}"))
        database = database_of(waiting)
        brief = database.schema_changes().limited_table_wait(waiting)
        began = time.monotonic()
        with pytest.raises(DBAPIError) as ended, brief:
            waiting.execute(text("LOCK TABLES orders WRITE"))

        assert time.monotonic() - began < limit / 2
        assert ended.value.orig is not None
        assert database.is_lock_timeout(ended.value.orig)
        assert waiting.scalar(text("SELECT 1")) == 1  # the next statement is not interrupted
        with database.schema_changes().limited_table_wait(waiting):
            assert waiting.scalar(text("SELECT SLEEP(0.8)")) == 0  # nor is long work


@pytest.mark.only_on("mysql", "mariadb")
def test_a_migration_on_an_async_engine_ends_a_wait_for_a_table_lock_too(
    shop: Engine, recwarn: pytest.WarningsRecorder
) -> None:
    waits: list[float] = []

    def change(connection: Connection) -> None:
        connection.execute(text("SET lock_wait_timeout = 20"))
        began = time.monotonic()
        with (
            pytest.raises(DBAPIError),
            database_of(connection).schema_changes().limited_table_wait(connection),
        ):
            connection.execute(text("LOCK TABLES orders WRITE"))
        waits.append(time.monotonic() - began)

    async def migrate() -> None:
        engine = make_async_engine(shop.url, ASYNC_DRIVERS[shop.url.get_backend_name()])
        async with engine.connect() as connection:
            await connection.run_sync(change)
        await engine.dispose()

    with shop.connect() as reader:
        reader.execute(text("SELECT * FROM orders"))
        asyncio.run(migrate())

    assert waits[0] < 10
    assert not recwarn.list
