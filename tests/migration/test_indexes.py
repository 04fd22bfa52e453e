"""The indexes of claims and reapers, as the model has them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Engine, MetaData, text, update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from sa_jobqueue import ArgumentError, JobMixin, JobQueue, PriorityMixin, count_by_status
from sa_jobqueue.doctor import examine
from sa_jobqueue.migration import (
    create_claim_index,
    create_key_index,
    create_reap_index,
    drop_claim_index,
    drop_key_index,
    drop_reap_index,
)
from tests.migration.support import (
    MIXINS,
    Order,
    columns_of,
    index_names,
    insert_orders,
    migrating,
    scalar,
)
from tests.support import statements_seen

BOTH = {"ix_orders_claim", "ix_orders_reap"}


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


def test_key_columns_in_queue_args_do_no_harm(queue: Engine) -> None:
    with migrating(queue) as op:
        args = {"per_key": ["account_id", ("region", "host")]}
        create_claim_index(op, "orders", *MIXINS, queue_args=args)

    assert index_names(queue) == {"ix_orders_claim"}


@pytest.mark.parametrize("online", [True, False])
def test_the_indexes_of_keys_are_made_and_dropped(queue: Engine, online: bool) -> None:
    args = {"per_key": ["amount", ("note", "amount")]}
    names = {"ix_orders_key_amount", "ix_orders_key_note_amount"}

    for _ in range(2):  # made again they do no harm
        with migrating(queue) as op:
            create_key_index(op, "orders", *MIXINS, queue_args=args, online=online)

    assert index_names(queue) == names
    behind = ["attempts", "priority", "run_at", "id"]
    assert columns_of(queue, "ix_orders_key_amount") == ["status", "amount", *behind]
    assert columns_of(queue, "ix_orders_key_note_amount") == ["status", "note", "amount", *behind]

    with migrating(queue) as op:
        drop_key_index(op, "orders", queue_args=args, online=online)

    assert index_names(queue) == set()


@pytest.mark.parametrize("as_table", [True, False])
def test_the_index_of_a_key_is_the_models(queue: Engine, as_table: bool) -> None:
    class KeyedBase(DeclarativeBase):
        pass

    class Keyed(*MIXINS, KeyedBase):  # type: ignore[misc]  # mypy knows no unpacked bases
        __tablename__ = "orders"
        __queue_args__ = {"per_key": "amount"}  # noqa: RUF012 (as users write it)
        id: Mapped[int] = mapped_column(primary_key=True)
        amount: Mapped[int]

    table: Any = Keyed.__table__
    with migrating(queue) as op:
        create_key_index(op, table if as_table else Keyed)
    with migrating(queue) as op:  # a different index of this name would be an error
        create_key_index(op, "orders", *MIXINS, queue_args={"per_key": "amount"})

    assert index_names(queue) == {"ix_orders_key_amount"}
    with migrating(queue) as op:
        drop_key_index(op, Keyed)
    assert index_names(queue) == set()


def test_the_index_of_no_key_is_an_error(queue: Engine) -> None:
    with migrating(queue) as op, pytest.raises(ArgumentError, match=r"queue_args=\{'per_key'"):
        create_key_index(op, "orders", *MIXINS)


def test_making_or_dropping_the_indexes_again_does_no_harm(queue: Engine) -> None:
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
        pytest.raises(ArgumentError, match="replace=True"),
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
        pytest.raises(ArgumentError, match=r"unclaimed.*replace=True"),
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
def test_an_index_is_recognized_however_the_database_prints_it(
    queue: Engine, args: dict[str, Any]
) -> None:
    with statements_seen(queue) as seen, migrating(queue) as op:
        for _ in range(2):
            create_claim_index(op, "orders", JobMixin, queue_args=args)

    assert len([one for one in seen if one.startswith("CREATE INDEX")]) == 1


class Before(DeclarativeBase):
    pass


class Clip(JobMixin, Before):
    """A queue in use."""

    __tablename__ = "clips"
    id: Mapped[int] = mapped_column(primary_key=True)


class After(DeclarativeBase):
    pass


class PublishedClip(JobMixin, After):
    """The same table with the statuses of a second step."""

    __tablename__ = "clips"
    __queue_args__ = {"ready": ["rendered"], "during": ["publishing"]}  # noqa: RUF012 - as users write it
    id: Mapped[int] = mapped_column(primary_key=True)


STEPS: list[tuple[Callable[..., None], Any]] = [
    (drop_claim_index, "clips"),
    (drop_reap_index, "clips"),
    (create_claim_index, PublishedClip),
    (create_reap_index, PublishedClip),
]


# Further statuses


def test_a_table_in_use_gets_the_statuses_of_a_further_step(engine: Engine) -> None:
    """Old workers claim and finish at each step, whichever indexes exist."""
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
    report = examine(engine, queue)
    return [one.message for one in report.findings if one.check in ("index", "reap")]


class LongNames(DeclarativeBase):
    metadata = MetaData(naming_convention={"ix": "index_of_%(table_name)s_%(constraint_name)s"})


class Consignment(JobMixin, LongNames):
    """A queue whose indexes have names that are longer than any server takes."""

    __tablename__ = "consignments_of_all_the_goods_of_the_northern_depots"

    id: Mapped[int] = mapped_column(primary_key=True)


# What they are called


def test_a_name_that_the_server_has_cut_is_recognized(engine: Engine) -> None:
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
def test_postgresql_builds_the_indexes_concurrently(queue: Engine) -> None:
    with statements_seen(queue) as seen, migrating(queue) as op:
        create_claim_index(op, Order)
        drop_claim_index(op, Order)

    assert any(one.startswith("CREATE INDEX CONCURRENTLY ix_orders_claim") for one in seen)
    assert any(one.startswith("DROP INDEX CONCURRENTLY ix_orders_claim") for one in seen)


@pytest.mark.only_on("mysql", "mariadb")
def test_innodb_builds_the_indexes_in_place_while_writers_go_on(queue: Engine) -> None:
    with statements_seen(queue) as seen, migrating(queue) as op:
        create_claim_index(op, Order)

    (created,) = (statement for statement in seen if statement.startswith("CREATE INDEX"))
    assert created.endswith("ALGORITHM=INPLACE LOCK=NONE")


def leave_invalid(engine: Engine, name: str) -> None:
    """Leave what a failed CREATE INDEX CONCURRENTLY leaves: a unique index over equal rows."""
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
