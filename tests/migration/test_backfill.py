"""A backfill writes and commits batch by batch, and goes on where it was interrupted."""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Column, Engine, Integer, MetaData, String, Table, Uuid, event, insert, text

from sa_jobqueue import ArgumentError
from sa_jobqueue.migration import Progress, backfill
from tests.migration.support import ORDERS, Broken, insert_orders, migrating, scalar, writing_script
from tests.support import statements_seen


def notes(engine: Engine) -> int:
    found: int = scalar(engine, "SELECT COUNT(*) FROM orders WHERE note = 'old'")
    return found


def test_the_rows_of_a_criterion_are_written_and_counted(shop: Engine) -> None:
    insert_orders(shop, range(100))

    with migrating(shop) as op:
        written = backfill(op, "orders", "amount < 30", values={"note": "old"}, batch=7)

    assert written == 30
    assert notes(shop) == 30


def test_each_batch_is_committed_before_the_next(shop: Engine) -> None:
    insert_orders(shop, range(100))
    seen: list[int] = []

    with migrating(shop) as op:
        backfill(
            op,
            "orders",
            ORDERS.c.note.is_(None),
            values={"note": "old"},
            batch=40,
            progress=lambda _: seen.append(notes(shop)),  # as another connection sees it
        )

    assert seen == [40, 80, 100]


def test_a_backfill_reports_its_progress(shop: Engine) -> None:
    insert_orders(shop, range(10))
    told: list[Progress] = []

    with migrating(shop) as op:
        backfill(op, "orders", "amount >= 5", values={"note": "old"}, batch=4, progress=told.append)

    assert [(each.batches, each.written) for each in told] == [(1, 0), (2, 3), (3, 5)]
    assert [each.key is None for each in told] == [False, False, True]


def test_an_interrupted_run_is_continued(shop: Engine) -> None:
    insert_orders(shop, range(100))
    arguments: dict[str, Any] = {"values": {"note": "old"}, "batch": 10}

    def stop(progress: Progress) -> None:
        if progress.batches == 3:
            raise Broken

    with pytest.raises(Broken), migrating(shop) as op:
        backfill(op, "orders", "note IS NULL", progress=stop, **arguments)
    assert notes(shop) == 30

    with migrating(shop) as op:
        written = backfill(op, "orders", "note IS NULL", **arguments)

    assert (written, notes(shop)) == (70, 100)


def test_no_statement_looks_at_more_rows_than_a_batch(shop: Engine) -> None:
    insert_orders(shop, range(1_000))
    counts: list[int] = []

    def count(connection: Any, cursor: Any, statement: str, *args: Any) -> None:
        if statement.startswith("UPDATE"):
            counts.append(cursor.rowcount)

    event.listen(shop, "after_cursor_execute", count)
    with migrating(shop) as op:
        backfill(op, "orders", "1 = 1", values={"note": "old"}, batch=90)

    assert sum(counts) == 1_000
    assert max(counts) == 90


def test_keys_of_several_columns_are_walked_in_their_order(engine: Engine) -> None:
    table = Table(
        "orders",
        MetaData(),
        Column("tenant", String(10), primary_key=True),
        Column("number", Integer, primary_key=True, autoincrement=False),
        Column("note", String(10)),
    )
    table.create(engine)
    rows = [{"tenant": f"t{tenant}", "number": n} for tenant in range(5) for n in range(20)]
    with engine.begin() as connection:
        connection.execute(insert(table), rows)

    with migrating(engine) as op:
        written = backfill(op, "orders", "note IS NULL", values={"note": "old"}, batch=7)

    assert (written, notes(engine)) == (100, 100)


def test_keys_may_be_uuids(engine: Engine) -> None:
    table = Table(
        "orders", MetaData(), Column("id", Uuid, primary_key=True), Column("note", String(10))
    )
    table.create(engine)
    with engine.begin() as connection:
        connection.execute(insert(table), [{"id": uuid.uuid4()} for _ in range(50)])

    with migrating(engine) as op:
        written = backfill(op, table, "note IS NULL", values={"note": "old"}, batch=7)

    assert (written, notes(engine)) == (50, 50)


def test_a_table_without_a_key_is_refused(engine: Engine) -> None:
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE orders (note VARCHAR(10))"))

    with migrating(engine) as op, pytest.raises(ArgumentError, match="no primary key"):
        backfill(op, "orders", "note IS NULL", values={"note": "old"})


def test_a_backfill_in_a_script_is_refused() -> None:
    with (
        writing_script("postgresql") as (op, _),
        pytest.raises(ArgumentError, match="with a database"),
    ):
        backfill(op, "orders", "note IS NULL", values={"note": "old"})


@pytest.mark.only_on("mysql", "mariadb")
def test_a_batch_locks_no_gap_into_which_others_insert(shop: Engine) -> None:
    insert_orders(shop, range(10))
    levels: list[str] = []
    variable = "@@transaction_isolation" if shop.name == "mysql" else "@@tx_isolation"

    with statements_seen(shop) as seen, migrating(shop) as op:
        backfill(op, "orders", "1 = 1", values={"note": "old"}, pause=timedelta(0))
        levels.append(scalar(op.get_bind(), f"SELECT {variable}"))

    before = seen[: next(i for i, one in enumerate(seen) if one.startswith("UPDATE"))]
    assert "SET TRANSACTION ISOLATION LEVEL READ COMMITTED" in before
    assert levels == ["REPEATABLE-READ"]  # the session's own is as it was
