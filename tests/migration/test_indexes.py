"""The indexes of claims and reapers: those of the model, and those of a queue of one's own."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import Engine, MetaData, String, inspect, text, update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from sa_jobqueue import (
    ArgumentError,
    JobMixin,
    JobQueue,
    PriorityMixin,
    claim_statements,
    count_by_status,
)
from sa_jobqueue.doctor import examine
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
    MIXINS,
    Order,
    index_names,
    insert_orders,
    migrating,
    scalar,
    writing_script,
)
from tests.support import statements_seen

BOTH = {"ix_orders_claim", "ix_orders_reap"}


@pytest.fixture
def queue(engine: Engine) -> Engine:
    """A queue with its columns and without its indexes."""
    Order.__table__.create(engine)  # type: ignore[attr-defined]  # a Table
    with engine.begin() as connection:
        for index in Order.__table__.indexes:  # type: ignore[attr-defined]  # likewise
            index.drop(connection)
    return engine


def columns_of(engine: Engine, index: str, table: str = "orders") -> list[str | None]:
    found = {each["name"]: each for each in inspect(engine).get_indexes(table)}
    return found[index]["column_names"]


@pytest.mark.parametrize("online", [True, False])
def test_the_indexes_are_made_and_dropped(queue: Engine, online: bool) -> None:
    with migrating(queue) as op:
        create_claim_index(op, "orders", *MIXINS, online=online)
        create_reap_index(op, "orders", *MIXINS, online=online)

    assert index_names(queue) == BOTH
    assert columns_of(queue, "ix_orders_claim") == ["status", "priority", "run_at", "id"]
    assert columns_of(queue, "ix_orders_reap") == ["status", "owner_date"]

    with migrating(queue) as op:
        drop_claim_index(op, "orders", online=online)
        drop_reap_index(op, "orders", online=online)

    assert index_names(queue) == set()


def test_keys_among_the_arguments_of_the_queue_do_no_harm(queue: Engine) -> None:
    with migrating(queue) as op:
        args = {"per_key": ["account_id", ("region", "host")]}
        create_claim_index(op, "orders", *MIXINS, queue_args=args)

    assert index_names(queue) == {"ix_orders_claim"}


def test_to_make_or_to_drop_them_again_does_no_harm(queue: Engine) -> None:
    with migrating(queue) as op:
        for _ in range(2):
            create_claim_index(op, Order)
            create_reap_index(op, Order)
    assert index_names(queue) == BOTH

    with migrating(queue) as op:
        for _ in range(2):
            drop_claim_index(op, Order)
            drop_reap_index(op, Order)
    assert index_names(queue) == set()


def test_an_index_of_its_name_with_other_columns_is_not_taken_for_it(queue: Engine) -> None:
    with migrating(queue) as op:
        create_claim_index(op, "orders", JobMixin)

    with (
        migrating(queue) as op,
        pytest.raises(ArgumentError, match="drop_claim_index"),
    ):
        create_claim_index(op, "orders", JobMixin, PriorityMixin)


@pytest.mark.only_on("postgresql", "sqlite")
@pytest.mark.parametrize("predicate", ["WHERE status = 'unsent'", ""])
@pytest.mark.parametrize("online", [True, False])
def test_an_index_of_its_name_with_another_predicate_is_not_taken_for_it(
    queue: Engine, predicate: str, online: bool
) -> None:
    with queue.begin() as connection:
        connection.execute(text(f"CREATE INDEX ix_orders_claim ON orders (status, id) {predicate}"))

    with (
        migrating(queue) as op,
        pytest.raises(ArgumentError, match=r"unclaimed.*drop_claim_index"),
    ):
        create_claim_index(op, "orders", JobMixin, online=online)


@pytest.mark.parametrize(
    "made", ["status, amount, id", "status, amount DESC, note, id", "status, amount DESC"]
)
def test_an_index_of_its_name_in_another_order_is_not_taken_for_it(
    queue: Engine, made: str
) -> None:
    partial = "WHERE status = 'unclaimed'" if queue.name in ("postgresql", "sqlite") else ""
    with queue.begin() as connection:
        connection.execute(text(f"CREATE INDEX ix_orders_claim ON orders ({made}) {partial}"))
    args = {"order_by": ["amount desc"]}

    with (
        migrating(queue) as op,
        pytest.raises(ArgumentError, match=r"\(status, amount DESC, id\)"),
    ):
        create_claim_index(op, "orders", JobMixin, queue_args=args)


@pytest.mark.parametrize(
    "args",
    [
        {"order_by": ["amount desc"]},
        {"ready": ["unclaimed", "failed"]},
        {"names": {"unclaimed": "still: to-send"}},
    ],
    ids=["descending", "several statuses", "own words"],
)
def test_an_index_is_known_again_however_the_database_prints_it(
    queue: Engine, args: dict[str, Any]
) -> None:
    with statements_seen(queue) as seen, migrating(queue) as op:
        for _ in range(2):
            create_claim_index(op, "orders", JobMixin, queue_args=args)

    assert len([one for one in seen if one.startswith("CREATE INDEX")]) == 1


# Further statuses


class Before(DeclarativeBase):
    pass


class Clip(JobMixin, Before):
    """A queue in use."""

    __tablename__ = "clips"
    id: Mapped[int] = mapped_column(primary_key=True)


class After(DeclarativeBase):
    pass


class PublishedClip(JobMixin, After):
    """The same table, when it is to have a second step."""

    __tablename__ = "clips"
    __queue_args__ = {"ready": ["rendered"], "during": ["publishing"]}  # noqa: RUF012 - as users write it
    id: Mapped[int] = mapped_column(primary_key=True)


STEPS: list[tuple[Callable[..., None], Any]] = [
    (drop_claim_index, "clips"),
    (drop_reap_index, "clips"),
    (create_claim_index, PublishedClip),
    (create_reap_index, PublishedClip),
]


def test_a_table_in_use_gets_the_statuses_of_a_further_step(engine: Engine) -> None:
    """Old workers claim and finish all the while, whichever indexes there are."""
    Before.metadata.create_all(engine)
    render = JobQueue(Clip)
    publish = JobQueue(PublishedClip, ready="rendered", during="publishing")
    with Session(engine) as session:
        session.add_all([Clip() for _ in range(6)])
        session.commit()
        unserved = index_findings(engine, publish)

        in_hand = render.claim(session, owner="old")
        session.commit()
        for change, table in STEPS:
            with migrating(engine) as op:
                change(op, table)
            render.complete(session, in_hand)
            in_hand = render.claim(session, owner="old")
            session.commit()

        counted = count_by_status(session, Clip)
        assert [counted[word] for word in ("unclaimed", "claimed", "done")] == [1, 1, 4]
        session.execute(update(Clip).where(Clip.status == "done").values(status="rendered"))
        assert [clip.id for clip in publish.claim(session, owner="new", limit=9)] == [1, 2, 3, 4]
        session.commit()
    # Only a partial index leaves statuses out.
    assert bool(unserved) is (engine.name in ("postgresql", "sqlite"))
    for queue in (publish, JobQueue(PublishedClip)):
        assert index_findings(engine, queue) == []


def index_findings(engine: Engine, queue: JobQueue[Any]) -> list[str]:
    report = examine(engine, queue, run=False)
    return [one.message for one in report.findings if one.check in ("index", "reap")]


# What they are called


class LongNames(DeclarativeBase):
    metadata = MetaData(naming_convention={"ix": "index_of_%(table_name)s_%(constraint_name)s"})


class Consignment(JobMixin, LongNames):
    """A queue whose indexes have names that are longer than any server takes."""

    __tablename__ = "consignments_of_all_the_goods_of_the_northern_depots"

    id: Mapped[int] = mapped_column(primary_key=True)


def test_a_name_that_the_server_has_cut_is_known_again(engine: Engine) -> None:
    table: Any = Consignment.__table__
    table.create(engine)
    with engine.begin() as connection:
        for index in table.indexes:
            index.drop(connection)

    with statements_seen(engine) as seen, migrating(engine) as op:
        for _ in range(2):
            create_claim_index(op, Consignment)
            create_reap_index(op, Consignment)

    assert len([one for one in seen if one.startswith("CREATE INDEX")]) == 2
    assert len(index_names(engine, table.name)) == 2

    with migrating(engine) as op:
        drop_claim_index(op, Consignment)
        drop_reap_index(op, Consignment)

    assert index_names(engine, table.name) == set()


# How they are made


@pytest.mark.only_on("postgresql")
def test_postgresql_builds_them_concurrently(queue: Engine) -> None:
    with statements_seen(queue) as seen, migrating(queue) as op:
        create_claim_index(op, Order)
        drop_claim_index(op, Order)

    assert any(one.startswith("CREATE INDEX CONCURRENTLY ix_orders_claim") for one in seen)
    assert any(one.startswith("DROP INDEX CONCURRENTLY ix_orders_claim") for one in seen)


@pytest.mark.only_on("mysql", "mariadb")
def test_innodb_builds_them_in_place_while_writers_go_on(queue: Engine) -> None:
    with statements_seen(queue) as seen, migrating(queue) as op:
        create_claim_index(op, Order)

    (created,) = (statement for statement in seen if statement.startswith("CREATE INDEX"))
    assert created.endswith("ALGORITHM=INPLACE LOCK=NONE")


def leave_invalid(engine: Engine, name: str) -> None:
    """Leave what a CREATE INDEX CONCURRENTLY leaves that fails: rows twice, for a unique one."""
    insert_orders(engine, [1, 1])
    with (
        engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection,
        pytest.raises(DBAPIError, match="could not create unique index"),
    ):
        connection.execute(text(f"CREATE UNIQUE INDEX CONCURRENTLY {name} ON orders (amount)"))


VALID = "SELECT bool_and(indisvalid) FROM pg_index WHERE indrelid = 'orders'::regclass"


@pytest.mark.only_on("postgresql")
def test_an_invalid_index_that_was_left_behind_is_built_anew(queue: Engine) -> None:
    leave_invalid(queue, "ix_orders_claim")
    assert scalar(queue, VALID) is False

    with migrating(queue) as op:
        create_claim_index(op, Order)

    assert scalar(queue, VALID) is True
    assert columns_of(queue, "ix_orders_claim") == ["status", "priority", "run_at", "id"]


@pytest.mark.only_on("postgresql")
def test_a_valid_index_is_not_built_anew(queue: Engine) -> None:
    with migrating(queue) as op:
        create_claim_index(op, Order)

    with statements_seen(queue) as seen, migrating(queue) as op:
        create_claim_index(op, Order)

    assert [one for one in seen if one.startswith(("DROP", "CREATE"))] == []


# For queues of one's own


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
    assert Subscription.__table__.indexes == set()  # type: ignore[attr-defined]  # likewise

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
    given = statement.params(claim_backend=1, claim_limit=10)
    compiled = given.compile(dialect=engine.dialect, compile_kwargs={"literal_binds": True})
    with engine.begin() as connection:
        connection.execute(text("ANALYZE subscriptions"))
        rows = connection.exec_driver_sql(f"EXPLAIN {compiled}").scalars()
        return "\n".join(rows)


def test_an_order_that_no_index_has_beside_a_range_is_refused() -> None:
    queue = mailing(order_by=Subscription.joined_at)

    with writing_script("postgresql") as (op, script):
        with pytest.raises(ArgumentError, match=r"in rounds"):
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


# Partitions


class PartsBase(DeclarativeBase):
    pass


class Parcel(JobMixin, PartsBase):
    """A queue in partitions."""

    __tablename__ = "parcels"
    __table_args__ = {"postgresql_partition_by": "RANGE (day)"}  # noqa: RUF012 - as users write it

    id: Mapped[int] = mapped_column(primary_key=True)
    day: Mapped[int] = mapped_column(primary_key=True)


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
    assert sorted(str(each.name) for each in index.table.indexes) == sorted(BOTH)  # type: ignore[union-attr]  # likewise
