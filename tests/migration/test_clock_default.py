"""A run_at that is added to a table with rows, and whose default is the database's clock."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from alembic.migration import MigrationContext
from alembic.operations import Operations
from sqlalchemy import (
    URL,
    Column,
    DateTime,
    Engine,
    Integer,
    MetaData,
    Table,
    insert,
    inspect,
    select,
    text,
)
from sqlalchemy.orm import Session

from sa_jobqueue import JobMixin, RetryMixin, ScheduleMixin
from sa_jobqueue.dialects import database_of
from sa_jobqueue.migration import clock_default, drop_job_columns, timestamp_type
from tests.migration.support import (
    ORDERS,
    Base,
    Order,
    adopt,
    breaks_at,
    claimed,
    column_names,
    differences,
    insert_orders,
    migrating,
)
from tests.support import make_engine, statements_seen

MINUTE = timedelta(minutes=1)


def due_times(engine: Engine) -> dict[int, datetime | None]:
    with Session(engine) as session:
        return dict(session.execute(select(Order.amount, Order.run_at)).all())


def is_now(time: datetime | None) -> bool:
    assert time is not None
    aware = time if time.tzinfo else time.replace(tzinfo=UTC)
    return abs(datetime.now(UTC) - aware) < MINUTE


@pytest.mark.parametrize("existing_rows", ["done", "unclaimed", "amount > 1"])
def test_rows_inserted_afterwards_get_the_databases_time(
    shop: Engine, fresh_database: URL, existing_rows: str
) -> None:
    insert_orders(shop, [1, 2])
    before_it = make_engine(fresh_database)  # a connection that knows the table as it was
    with before_it.connect() as connection:
        connection.execute(select(ORDERS)).all()

    adopt(shop, existing_rows)
    insert_orders(shop, [3])
    insert_orders(before_it, [4])

    found = due_times(shop)
    assert is_now(found[3])
    assert is_now(found[4])
    assert {found[amount] and found[amount].year for amount in (1, 2)} == {1970}  # type: ignore[union-attr]  # None fails too
    assert claimed(shop)[-2:] == [3, 4]


def test_alembic_finds_no_difference_where_scheduling_comes_later(shop: Engine) -> None:
    insert_orders(shop, [1])
    adopt(shop, "unclaimed", JobMixin)

    adopt(shop, None, ScheduleMixin)
    insert_orders(shop, [2])

    found = [each for each in differences(shop, Base.metadata) if "run_at" in str(each)]
    assert not [each for each in found if "add_index" not in str(each)]
    with shop.connect() as connection:
        times = connection.scalars(text("SELECT run_at FROM orders ORDER BY id")).all()
    assert [str(time)[:2] for time in times] == ["19", "20"]


def test_retries_share_the_run_at_of_a_queue_that_has_one(shop: Engine) -> None:
    adopt(shop, "unclaimed", JobMixin, ScheduleMixin)
    insert_orders(shop, [1])
    before = column_names(shop)

    adopt(shop, None, RetryMixin)
    adopt(shop, None, RetryMixin)  # as after an interruption

    assert column_names(shop) == [*before, "attempts", "max_attempts", "last_error"]
    with shop.connect() as connection:
        assert connection.scalars(text("SELECT max_attempts FROM orders")).all() == [20]


def test_retries_alone_add_and_drop_a_run_at(shop: Engine) -> None:
    adopt(shop, "unclaimed", JobMixin)
    before = column_names(shop)

    adopt(shop, None, RetryMixin)
    assert column_names(shop)[len(before)] == "run_at"
    with migrating(shop) as op:
        drop_job_columns(op, "orders", RetryMixin)

    assert column_names(shop) == before


def test_what_was_interrupted_ends_with_the_clock_and_every_time(shop: Engine) -> None:
    insert_orders(shop, [1, 2])

    for stop in range(1, 30):
        if not breaks_at(
            shop, stop, lambda: adopt(shop, "unclaimed"), before=("ALTER", "UPDATE", "PRAGMA")
        ):
            break
    insert_orders(shop, [3])

    found = due_times(shop)
    assert stop > 1
    assert is_now(found[3])
    assert None not in found.values()


@pytest.mark.only_on("sqlite")
def test_rows_of_sqlite_are_written_once_and_the_database_stays_whole(shop: Engine) -> None:
    insert_orders(shop, range(10))
    adopt(shop, "unclaimed", batch=4, pause=timedelta(0))

    with statements_seen(shop) as seen:
        adopt(shop, "unclaimed", batch=4, pause=timedelta(0))

    assert not [statement for statement in seen if statement.startswith("UPDATE")]
    with shop.connect() as connection:
        assert connection.exec_driver_sql("PRAGMA integrity_check").scalar_one() == "ok"
        assert connection.exec_driver_sql("PRAGMA writable_schema").scalar_one() == 0


def test_a_migration_written_by_hand_names_the_clock_on_each_database(shop: Engine) -> None:
    with shop.begin() as connection:
        op = Operations(MigrationContext.configure(connection))
        op.create_table(
            "parcel",
            Column("id", Integer, primary_key=True),
            Column("due", timestamp_type(), server_default=clock_default(), nullable=False),
        )
    parcel = Table("parcel", MetaData(), autoload_with=shop)

    with shop.begin() as connection:
        connection.execute(insert(parcel), {"id": 1})
        due = connection.scalars(select(parcel.c.due)).one()

    assert is_now(due)
    assert "1970" not in str(inspect(shop).get_columns("parcel")[1]["default"])


@pytest.mark.only_on("sqlite")
def test_a_column_of_sqlite_whose_name_ends_alike_keeps_its_default(shop: Engine) -> None:
    text_of = "DATETIME DEFAULT '1970-01-01 00:00:00' NOT NULL"
    constant, clock = (
        Table(
            "slot", MetaData(), Column("run_at", DateTime, server_default=default, nullable=False)
        )
        for default in (text("'1970-01-01 00:00:00'"), clock_default())
    )

    with shop.begin() as connection:
        connection.exec_driver_sql(f"CREATE TABLE slot (id INTEGER, next_run_at {text_of})")
        connection.exec_driver_sql(f"ALTER TABLE slot ADD COLUMN run_at {text_of}")
        changes = database_of(connection).schema_changes()
        changes.replace_column(connection, constant.c.run_at, clock.c.run_at)

    defaults = {column["name"]: column["default"] for column in inspect(shop).get_columns("slot")}
    assert "1970" in str(defaults["next_run_at"])
    assert "1970" not in str(defaults["run_at"])
