"""Indexes for the user's own queues, in scripts, and of partitions."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import Engine, String, text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sa_jobqueue import ArgumentError, JobMixin, JobQueue, claim_statements
from sa_jobqueue.migration import (
    add_job_columns,
    create_claim_index,
    create_reap_index,
    drop_claim_index,
    drop_reap_index,
)
from sa_jobqueue.model.indexes import claim_index
from sa_jobqueue.model.mapping import mapping_of
from tests.migration.support import (
    Order,
    columns_of,
    index_names,
    migrating,
    scalar,
    writing_script,
)
from tests.support import statements_seen

BOTH = {"ix_orders_claim", "ix_orders_reap"}


class MailBase(DeclarativeBase):
    pass


class Subscription(MailBase):
    """A class without the mixin, claimed by advisory locks."""

    __tablename__ = "subscriptions"

    id: Mapped[int] = mapped_column(primary_key=True)
    kind: Mapped[int]
    language: Mapped[str] = mapped_column(String(2))
    last_mail_at: Mapped[datetime]
    joined_at: Mapped[datetime]


STARTED = datetime(2030, 1, 1, tzinfo=UTC)


def mailing(*more: Any, **options: Any) -> JobQueue[Subscription]:
    return JobQueue(
        Subscription,
        Subscription.last_mail_at < STARTED,
        Subscription.kind == 1,
        *more,
        strategy="advisory",
        **options,
    )


# For queues of one's own


@pytest.mark.parametrize(
    ("queue_of", "columns"),
    [
        (lambda: mailing(), ["kind", "last_mail_at", "id"]),
        (lambda: mailing(order_by=Subscription.last_mail_at), ["kind", "last_mail_at", "id"]),
        (
            lambda: mailing(Subscription.language == "de"),
            ["kind", "language", "last_mail_at", "id"],
        ),
        (lambda: mailing(Subscription.language.like("d%")), ["kind", "last_mail_at", "id"]),
        (
            lambda: mailing(
                Subscription.joined_at > STARTED,
                order_by=(Subscription.joined_at.desc(), Subscription.language),
            ),
            ["kind", "joined_at", "language", "id"],
        ),
    ],
)
@pytest.mark.only_on("postgresql")
def test_an_index_serves_a_queue_on_a_class_without_the_mixin(
    engine: Engine, queue_of: Any, columns: list[str]
) -> None:
    Subscription.__table__.create(engine)  # type: ignore[attr-defined]  # a Table

    with migrating(engine) as op:
        create_claim_index(op, queue_of())

    (name,) = index_names(engine, "subscriptions")
    assert name is not None
    assert columns_of(engine, name, "subscriptions") == columns
    assert Subscription.__table__.indexes == set()  # type: ignore[attr-defined]  # as above

    with migrating(engine) as op:
        drop_claim_index(op, queue_of())

    assert index_names(engine, "subscriptions") == set()


@pytest.mark.only_on("postgresql")
def test_a_claim_of_that_queue_walks_the_index_and_sorts_nothing(engine: Engine) -> None:
    Subscription.__table__.create(engine)  # type: ignore[attr-defined]  # a Table
    with engine.begin() as connection:
        connection.execute(
            text(
                "INSERT INTO subscriptions (kind, language, last_mail_at, joined_at) "
                "SELECT n % 50, 'de', '2020-01-01'::date + n % 999, now() "
                "FROM generate_series(1, 20000) AS n"
            )
        )
    queue = mailing(order_by=Subscription.last_mail_at)

    with migrating(engine) as op:
        create_claim_index(op, queue)

    locking, *_ = claim_statements(
        Subscription,
        *queue.plan.spec.where,
        order_by=Subscription.last_mail_at,
        strategy="advisory",
        dialect=engine.dialect,
    )
    plan = explained(engine, locking)
    assert "ix_subscriptions_claim" in plan
    assert "Sort" not in plan


def explained(engine: Engine, statement: Any) -> str:
    given = statement.params(sa_jobqueue_backend=1, sa_jobqueue_limit=10)
    compiled = given.compile(dialect=engine.dialect, compile_kwargs={"literal_binds": True})
    with engine.begin() as connection:
        connection.execute(text("ANALYZE subscriptions"))
        rows = connection.exec_driver_sql(f"EXPLAIN {compiled}").scalars()
        return "\n".join(rows)


def test_an_order_that_no_index_serves_beside_a_range_is_refused() -> None:
    queue = mailing(order_by=Subscription.joined_at)

    with writing_script("postgresql") as (op, script):
        with pytest.raises(ArgumentError, match=r"Or use rounds"):
            create_claim_index(op, queue)

        assert "CREATE INDEX" not in script.getvalue()


def test_an_index_serves_a_queue_with_a_predicate_of_its_own(queue: Engine) -> None:
    urgent = JobQueue(Order, Order.note == "urgent", order_by=Order.amount, ready="packed")

    with migrating(queue) as op:
        create_claim_index(op, urgent, name="ix_orders_urgent")

    columns = columns_of(queue, "ix_orders_urgent")
    assert columns == ["note", "status", "amount", "id"]


# Offline


def test_a_script_must_be_told_the_key() -> None:
    with writing_script("mysql") as (op, script):
        with pytest.raises(ArgumentError, match='key="id"'):
            create_claim_index(op, "orders", JobMixin)
        create_claim_index(op, "orders", JobMixin, key=("tenant", "id"))

    assert "ix_orders_claim ON orders (status, tenant, id)" in script.getvalue()


@pytest.mark.parametrize("engine_name", ["postgresql", "mysql", "mariadb", "sqlite"])
def test_a_script_makes_and_drops_them(engine_name: str) -> None:
    with writing_script(engine_name) as (op, script):
        create_claim_index(op, Order)
        create_reap_index(op, Order)
        drop_reap_index(op, Order)
        drop_claim_index(op, Order)

    written = script.getvalue()
    for name in BOTH:
        assert name in written
    assert ("CONCURRENTLY" in written) == (engine_name == "postgresql")
    assert ("LOCK=NONE" in written) == (engine_name in ("mysql", "mariadb"))


class PartsBase(DeclarativeBase):
    pass


class Parcel(JobMixin, PartsBase):
    """A queue in partitions."""

    __tablename__ = "parcels"
    __table_args__ = {"postgresql_partition_by": "RANGE (day)"}  # noqa: RUF012 - as users write it

    id: Mapped[int] = mapped_column(primary_key=True)
    day: Mapped[int] = mapped_column(primary_key=True)


# Partitions


@pytest.mark.only_on("postgresql")
def test_a_table_in_partitions_becomes_a_queue(engine: Engine) -> None:
    with engine.begin() as connection:
        for statement in (
            "CREATE TABLE parcels (id int, day int, PRIMARY KEY (id, day)) "
            "PARTITION BY RANGE (day)",
            "CREATE TABLE parcels_1 PARTITION OF parcels FOR VALUES FROM (0) TO (10)",
            "CREATE TABLE parcels_2 PARTITION OF parcels FOR VALUES FROM (10) TO (20)",
            "INSERT INTO parcels SELECT n, n % 20 FROM generate_series(1, 100) AS n",
        ):
            connection.execute(text(statement))

    with statements_seen(engine) as seen, migrating(engine) as op:
        for _ in range(2):
            add_job_columns(op, "parcels", existing_rows="id > 90")
            create_claim_index(op, "parcels", JobMixin)
            create_reap_index(op, "parcels", JobMixin)

    assert scalar(engine, "SELECT count(*) FROM parcels WHERE status = 'unclaimed'") == 10
    assert index_names(engine, "parcels") == {"ix_parcels_claim", "ix_parcels_reap"}
    assert index_names(engine, "parcels_2") == {
        "ix_parcels_claim_parcels_2",
        "ix_parcels_reap_parcels_2",
    }
    assert len([one for one in seen if one.startswith("CREATE INDEX CONCURRENTLY")]) == 4
    assert scalar(engine, "SELECT bool_and(indisvalid) FROM pg_index") is True

    with migrating(engine) as op:
        drop_claim_index(op, Parcel)
        drop_reap_index(op, Parcel)

    assert index_names(engine, "parcels_1") == set()


def test_the_models_own_index_is_not_changed() -> None:
    before = dict(claim_index(mapping_of(Order)).dialect_kwargs)  # type: ignore[union-attr]  # it is there

    with writing_script("postgresql") as (op, _):
        create_claim_index(op, Order)

    index = claim_index(mapping_of(Order))
    assert index is not None
    assert index.dialect_kwargs == before
    assert sorted(str(each.name) for each in index.table.indexes) == sorted(BOTH)  # type: ignore[union-attr]  # as above
