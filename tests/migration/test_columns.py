"""A table with rows becomes a queue, and none of its rows is taken for a job by accident."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Column, Engine, Integer, MetaData, String, Table, insert, text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sa_jobqueue import ArgumentError, JobMixin, JobStatus, PriorityMixin, ScheduleMixin
from sa_jobqueue.migration import (
    add_job_columns,
    create_claim_index,
    create_reap_index,
    drop_claim_index,
    drop_job_columns,
    drop_reap_index,
)
from tests.migration.support import (
    MIXINS,
    ORDERS,
    SERVERS,
    Base,
    Order,
    adopt,
    claimed,
    column_names,
    differences,
    insert_orders,
    migrating,
    scalar,
    statuses,
    writing_script,
)

# What becomes of the rows


def test_rows_that_were_there_are_done_and_later_ones_are_jobs(shop: Engine) -> None:
    insert_orders(shop, [1, 2, 3])

    adopt(shop, "done")
    insert_orders(shop, [4])

    assert statuses(shop) == {1: "done", 2: "done", 3: "done", 4: "unclaimed"}
    assert claimed(shop) == [4]


def test_rows_that_were_there_are_jobs_where_the_migration_says_so(shop: Engine) -> None:
    insert_orders(shop, [1, 2])

    adopt(shop, "unclaimed")

    assert claimed(shop) == [1, 2]


@pytest.mark.parametrize(
    "criterion",
    ["amount >= 3 AND note IS NULL", ORDERS.c.amount >= 3, Order.amount >= 3],
    ids=["text", "table", "entity"],
)
def test_rows_of_a_criterion_become_jobs_and_the_others_are_done(
    shop: Engine, criterion: Any
) -> None:
    insert_orders(shop, [1, 2, 3, 4])

    adopt(shop, criterion)
    insert_orders(shop, [0])

    assert statuses(shop) == {
        1: "done",
        2: "done",
        3: "unclaimed",
        4: "unclaimed",
        0: "unclaimed",
    }


def test_a_row_whose_criterion_is_null_is_no_job(shop: Engine) -> None:
    insert_orders(shop, [1])

    adopt(shop, "note = 'urgent'")

    assert statuses(shop) == {1: "done"}


def test_a_criterion_may_have_percent_signs_and_colons(shop: Engine) -> None:
    with shop.begin() as connection:
        connection.execute(insert(ORDERS), [{"amount": 1, "note": "at 10:30, 5%"}])

    adopt(shop, "note LIKE 'at 10:3%'")

    assert statuses(shop) == {1: "unclaimed"}


def test_a_criterion_with_a_syntax_error_changes_nothing(shop: Engine) -> None:
    before = column_names(shop)

    with pytest.raises(Exception, match="no_such"):
        adopt(shop, "no_such_column = 1")

    assert column_names(shop) == before


def test_a_table_may_have_its_own_status_words(shop: Engine) -> None:
    insert_orders(shop, [1])
    words = {"names": {JobStatus.UNCLAIMED: "unsent", JobStatus.DONE: "sent"}}

    adopt(shop, "done", JobMixin, queue_args=words)
    insert_orders(shop, [2])

    assert statuses(shop) == {1: "sent", 2: "unsent"}


# What the migration must say


@pytest.mark.parametrize("engine_name", SERVERS)
def test_the_new_status_of_existing_rows_must_be_given(engine_name: str) -> None:
    with writing_script(engine_name) as (op, script):
        with pytest.raises(TypeError, match="existing_rows"):
            add_job_columns(op, "orders")  # type: ignore[call-arg]  # the mistake under test
        with pytest.raises(ArgumentError, match="existing_rows=None"):
            add_job_columns(op, "orders", existing_rows=None)

    assert "ADD COLUMN" not in script.getvalue()


def test_a_mixin_without_a_status_says_nothing_about_rows(shop: Engine) -> None:
    insert_orders(shop, [1])
    adopt(shop, "done", JobMixin)

    adopt(shop, None, PriorityMixin)

    assert column_names(shop)[-1] == "priority"
    assert statuses(shop) == {1: "done"}


@pytest.mark.parametrize(
    "own",
    [
        {"status": "INTEGER"},
        {"owner": "VARCHAR(64)"},
        {"status": "INTEGER", "owner": "VARCHAR(64)", "owner_date": "TIMESTAMP NULL"},
        {"status": "VARCHAR(200)", "owner": "VARCHAR(64)", "owner_date": "TIMESTAMP NULL"},
    ],
    ids=["status", "owner", "all three", "a longer status"],
)
def test_an_existing_column_is_not_taken_for_ours(shop: Engine, own: dict[str, str]) -> None:
    with shop.begin() as connection:
        for name, type_ in own.items():
            connection.execute(text(f"ALTER TABLE orders ADD COLUMN {name} {type_}"))
    before = column_names(shop)
    name = next(iter(own))

    with pytest.raises(ArgumentError, match=rf'JobMixin\.named\({name}="job_{name}"\)'):
        adopt(shop, "done", JobMixin)

    assert column_names(shop) == before


@pytest.mark.parametrize("engine_name", SERVERS)
def test_a_criterion_needs_a_database(engine_name: str) -> None:
    with (
        writing_script(engine_name) as (op, script),
        pytest.raises(ArgumentError, match="with a database"),
    ):
        add_job_columns(op, "orders", existing_rows="amount > 3")

    assert "ADD COLUMN" not in script.getvalue()


# What the table is like afterwards


@pytest.mark.parametrize("existing_rows", ["done", "unclaimed", "amount > 1"])
def test_alembic_finds_no_difference_to_the_model(shop: Engine, existing_rows: str) -> None:
    insert_orders(shop, [1, 2])

    adopt(shop, existing_rows)
    with migrating(shop) as op:
        create_claim_index(op, "orders", *MIXINS)
        create_reap_index(op, "orders", *MIXINS)

    assert differences(shop, Base.metadata) == []


def test_the_drops_leave_the_table_as_it_was(shop: Engine) -> None:
    insert_orders(shop, [1, 2])
    adopt(shop, "done")
    with migrating(shop) as op:
        create_claim_index(op, "orders", *MIXINS)
        create_reap_index(op, "orders", *MIXINS)

    with migrating(shop) as op:
        drop_reap_index(op, "orders")
        drop_claim_index(op, "orders")
        drop_job_columns(op, "orders", *MIXINS)

    assert differences(shop, ORDERS.metadata) == []
    assert scalar(shop, "SELECT COUNT(*) FROM orders") == 2


class OtherBase(DeclarativeBase):
    metadata = MetaData(naming_convention={"ix": "idx_%(table_name)s_%(constraint_name)s"})


class Shipment(JobMixin.named(status="job_status"), ScheduleMixin, OtherBase):  # type: ignore[misc]  # a call
    __tablename__ = "shipments"
    __queue_args__ = {"equality": ["depot"], "order_by": ["weight desc"]}  # noqa: RUF012 - as users write it
    id: Mapped[int] = mapped_column(primary_key=True)
    depot: Mapped[str] = mapped_column(String(10))
    weight: Mapped[int]


def old_shipments(engine: Engine) -> None:
    table = Table(
        "shipments",
        MetaData(),
        Column("id", Integer, primary_key=True),
        Column("depot", String(10), nullable=False),
        Column("weight", Integer, nullable=False),
    )
    table.create(engine)


def by_name(op: Any) -> None:
    mixins = (JobMixin.named(status="job_status"), ScheduleMixin)
    args = Shipment.__queue_args__
    add_job_columns(op, "shipments", *mixins, existing_rows="done", queue_args=args)
    create_claim_index(op, "shipments", *mixins, queue_args=args)
    create_reap_index(op, "shipments", *mixins, queue_args=args)


def by_class(op: Any) -> None:
    add_job_columns(op, Shipment, existing_rows="done")
    create_claim_index(op, Shipment)
    create_reap_index(op, Shipment)


def by_table(op: Any) -> None:
    add_job_columns(op, Shipment.__table__, existing_rows="done")  # type: ignore[arg-type]  # a Table
    create_claim_index(op, Shipment.__table__)  # type: ignore[arg-type]  # as above
    create_reap_index(op, Shipment.__table__)  # type: ignore[arg-type]  # as above


@pytest.mark.parametrize("how", [by_name, by_class, by_table])
def test_a_table_is_named_by_its_name_its_class_or_its_table(
    engine: Engine, how: Callable[[Any], None]
) -> None:
    old_shipments(engine)

    with migrating(engine, target_metadata=OtherBase.metadata) as op:
        how(op)

    assert differences(engine, OtherBase.metadata) == []


@pytest.mark.parametrize("existing_rows", ["done", "unclaimed"])
def test_a_table_that_is_not_there_is_named_with_the_way_out(
    shop: Engine, existing_rows: str
) -> None:
    with (
        migrating(shop) as op,
        pytest.raises(ArgumentError, match=r"no table ordres: .* give the table's schema="),
    ):
        add_job_columns(op, "ordres", *MIXINS, existing_rows=existing_rows)


@pytest.mark.only_on(*SERVERS)
def test_a_table_of_a_schema_becomes_a_queue(shop: Engine, db_alias: str) -> None:
    schema = "warehouse" if db_alias == "postgresql" else shop.url.database
    with shop.begin() as connection:
        if db_alias == "postgresql":
            connection.execute(text("CREATE SCHEMA warehouse"))
            connection.execute(text("ALTER TABLE orders SET SCHEMA warehouse"))
        connection.execute(text(f"INSERT INTO {schema}.orders (amount) VALUES (1), (2)"))

    with migrating(shop) as op:
        add_job_columns(op, "orders", *MIXINS, existing_rows="amount = 2", schema=schema)
        create_claim_index(op, "orders", *MIXINS, schema=schema)
        create_reap_index(op, "orders", *MIXINS, schema=schema)

    waiting = f"SELECT amount FROM {schema}.orders WHERE status = 'unclaimed'"
    assert scalar(shop, waiting) == 2

    with migrating(shop) as op:
        drop_reap_index(op, "orders", schema=schema)
        drop_claim_index(op, "orders", schema=schema)
        drop_job_columns(op, "orders", *MIXINS, schema=schema)

    assert scalar(shop, f"SELECT COUNT(*) FROM {schema}.orders") == 2
