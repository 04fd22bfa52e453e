"""A backfill writes and commits batch by batch, and goes on where it was interrupted."""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Column, Engine, Integer, MetaData, String, Table, Uuid, event, insert

from sa_jobqueue.migration import backfill
from tests.migration.support import ORDERS, Broken, insert_orders, migrate, migrating, scalar
from tests.support import statements_seen


def notes(engine: Engine) -> int:
    found: int = scalar(engine, "SELECT COUNT(*) FROM orders WHERE note = 'old'")
    return found


def test_an_interrupted_run_is_continued_behind_its_committed_batches(
    shop: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    insert_orders(shop, range(100))
    looked: list[int] = []

    def stop(connection: Any, cursor: Any, statement: str, *args: Any) -> None:
        if statement.startswith("UPDATE"):
            looked.append(notes(shop))  # as another connection sees it
            if len(looked) == 4:
                raise Broken

    event.listen(shop, "before_cursor_execute", stop)
    with pytest.raises(Broken), migrating(shop) as op:
        backfill(op, "orders", ORDERS.c.note.is_(None), values={"note": "old"}, batch=10)
    event.remove(shop, "before_cursor_execute", stop)
    assert looked == [0, 10, 20, 30]

    with migrating(shop) as op, caplog.at_level("INFO", "sa_jobqueue"):
        written = backfill(op, "orders", "note IS NULL", values={"note": "old"}, batch=90)

    assert (written, notes(shop)) == (70, 100)
    assert [line for line in caplog.messages if "rows written" in line] == [
        "orders: 60 rows written, 1 batches",
        "orders: 70 rows written, 2 batches",
    ]


@pytest.mark.by_turns("mysql", "mariadb")
@pytest.mark.parametrize(
    ("key", "rows"),
    [
        (
            [
                Column("tenant", String(10), primary_key=True),
                Column("number", Integer, primary_key=True),
            ],
            [{"tenant": f"t{row % 5}", "number": row} for row in range(50)],
        ),
        ([Column("id", Uuid, primary_key=True)], [{"id": uuid.uuid4()} for _ in range(50)]),
    ],
    ids=["several columns", "UUIDs"],
)
def test_any_key_is_walked_in_its_order(
    engine: Engine, key: list[Column[Any]], rows: list[dict[str, Any]]
) -> None:
    columns = [column._copy() for column in key]
    table = Table("orders", MetaData(), *columns, Column("note", String(10)))
    table.create(engine)
    with engine.begin() as connection:
        connection.execute(insert(table), rows)

    written = migrate(engine, backfill, "orders", "note IS NULL", values={"note": "old"}, batch=7)

    assert (written, notes(engine)) == (50, 50)


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
