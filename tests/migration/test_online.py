"""A table with rows becomes a queue while writers insert: no writer waits, no old row is a job."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from alembic import command
from sqlalchemy import (
    URL,
    Column,
    Engine,
    String,
    event,
    text,
)
from sqlalchemy.exc import DBAPIError

from sa_jobqueue import LockTimeout
from sa_jobqueue.migration import add_job_columns, patiently
from tests.migration.support import (
    alembic_config,
    column_names,
    insert_orders,
    migrating,
    scalar,
)
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
    fresh_database: URL,
    engine: Engine,
    observer: Engine,
    rows: int,
    record_property: Callable[[str, Any], None],
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
    for name, value in (("upgrade", upgraded), ("longest", longest), ("inserts", len(took))):
        record_property(name, value)
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
        op,
        lambda: op.add_column("orders", Column("region", String(20))),
        patience=THREE_TRIES,
    ),
}


@pytest.mark.by_turns("mysql", "mariadb")
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

    with shop.connect() as reader, repeating(writer):
        reader.execute(text("SELECT * FROM orders"))  # a long report
        with pytest.raises(LockTimeout), migrating(shop) as op:
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
