"""A table with rows becomes a queue, and none of its rows is taken for a job by accident."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.operations import Operations
from sqlalchemy import (
    URL,
    Column,
    Connection,
    Engine,
    Integer,
    MetaData,
    String,
    Table,
    event,
    insert,
    text,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from sa_jobqueue import (
    ArgumentError,
    JobMixin,
    JobStatus,
    LockTimeout,
    PriorityMixin,
    RoundMixin,
    ScheduleMixin,
    claim,
    complete,
    start_round,
)
from sa_jobqueue.migration import (
    Progress,
    add_job_columns,
    create_claim_index,
    create_reap_index,
    drop_claim_index,
    drop_job_columns,
    drop_reap_index,
)
from sa_jobqueue.model.mapping import any_mapping_of
from sa_jobqueue.model.round_table import round_table
from tests.migration.support import (
    MIXINS,
    ORDERS,
    SERVERS,
    Base,
    Order,
    breaks_at,
    column_names,
    insert_orders,
    migrating,
    scalar,
    statuses,
    writing,
    writing_script,
)
from tests.support import make_engine, statements_seen

#: As long as a test tries to get a lock.
SHORT = timedelta(seconds=1)


def adopt(engine: Engine, existing_rows: Any, *mixins: Any, **options: Any) -> None:
    with migrating(engine) as op:
        add_job_columns(op, "orders", *(mixins or MIXINS), existing_rows=existing_rows, **options)


def differences(engine: Engine, metadata: MetaData) -> list[Any]:
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_server_default": True})
        return list(compare_metadata(context, metadata))


def claimed(engine: Engine, entity: Any = Order) -> list[int]:
    with Session(engine) as session:
        jobs = claim(session, entity, owner="worker", limit=100)
        session.commit()
        return sorted(job.amount for job in jobs)


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


def test_a_row_of_which_the_criterion_is_unknown_is_no_job(shop: Engine) -> None:
    insert_orders(shop, [1])

    adopt(shop, "note = 'urgent'")

    assert statuses(shop) == {1: "done"}


def test_a_criterion_may_have_percent_signs_and_colons(shop: Engine) -> None:
    with shop.begin() as connection:
        connection.execute(insert(ORDERS), [{"amount": 1, "note": "at 10:30, 5%"}])

    adopt(shop, "note LIKE 'at 10:3%'")

    assert statuses(shop) == {1: "unclaimed"}


def test_a_criterion_with_a_slip_of_the_pen_changes_nothing(shop: Engine) -> None:
    before = column_names(shop)

    with pytest.raises(Exception, match="no_such"):
        adopt(shop, "no_such_column = 1")

    assert column_names(shop) == before


def test_a_table_has_words_of_its_own(shop: Engine) -> None:
    insert_orders(shop, [1])
    words = {"names": {JobStatus.UNCLAIMED: "unsent", JobStatus.DONE: "sent"}}

    adopt(shop, "done", JobMixin, queue_args=words)
    insert_orders(shop, [2])

    assert statuses(shop) == {1: "sent", 2: "unsent"}


# What the migration must say


@pytest.mark.parametrize("engine_name", SERVERS)
def test_it_must_be_said_what_becomes_of_the_rows(engine_name: str) -> None:
    with writing_script(engine_name) as (op, script):
        with pytest.raises(TypeError, match="existing_rows"):
            add_job_columns(op, "orders")  # type: ignore[call-arg]  # what the test is about
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
def test_a_column_of_the_tables_own_is_not_taken_for_ours(
    shop: Engine, own: dict[str, str]
) -> None:
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
def test_alembic_finds_nothing_that_the_model_says_otherwise(
    shop: Engine, existing_rows: str
) -> None:
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
    create_claim_index(op, Shipment.__table__)  # type: ignore[arg-type]  # likewise
    create_reap_index(op, Shipment.__table__)  # type: ignore[arg-type]  # likewise


@pytest.mark.parametrize("how", [by_name, by_class, by_table])
def test_a_table_is_named_by_its_name_its_class_or_its_table(
    engine: Engine, how: Callable[[Any], None]
) -> None:
    old_shipments(engine)

    with migrating(engine, target_metadata=OtherBase.metadata) as op:
        how(op)

    assert differences(engine, OtherBase.metadata) == []


@pytest.mark.only_on("postgresql", "mysql", "mariadb")
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


# How it is done


@pytest.mark.only_on("postgresql")
def test_no_row_is_rewritten_while_a_writer_goes_on(shop: Engine, fresh_database: URL) -> None:
    insert_orders(shop, range(1_000))
    file = "SELECT relfilenode FROM pg_class WHERE oid = 'orders'::regclass"
    before = scalar(shop, file)

    with writing(fresh_database):
        adopt(shop, "done")
        with migrating(shop) as op:
            create_claim_index(op, "orders", *MIXINS)
            drop_claim_index(op, "orders")
            drop_job_columns(op, "orders", *MIXINS)

    assert scalar(shop, file) == before
    assert scalar(shop, "SELECT n_tup_upd FROM pg_stat_user_tables WHERE relname = 'orders'") == 0


@pytest.mark.only_on("mysql", "mariadb")
def test_the_server_accepts_that_it_is_instant_while_a_writer_goes_on(
    shop: Engine, fresh_database: URL
) -> None:
    insert_orders(shop, range(1_000))

    with statements_seen(shop) as seen, writing(fresh_database):
        adopt(shop, "done")
        with migrating(shop) as op:
            drop_job_columns(op, "orders", *MIXINS)

    altered = list(dict.fromkeys(one for one in seen if one.startswith("ALTER TABLE")))
    assert len(altered) == 3  # each may have met the writer, and was tried again then
    assert all(statement.endswith(", ALGORITHM=INSTANT") for statement in altered)


@pytest.mark.only_on("sqlite")
def test_no_row_has_a_status_that_a_claim_knows_before_all_are_done(shop: Engine) -> None:
    insert_orders(shop, range(10))
    seen: list[list[str]] = []

    def look(connection: Connection, cursor: Any, statement: str, *args: Any) -> None:
        if statement.startswith(("UPDATE", "ALTER")):
            seen.append([row[1] for row in cursor.connection.execute("PRAGMA table_info(orders)")])

    event.listen(shop, "before_cursor_execute", look)
    adopt(shop, "done")

    updates = [names for names in seen if "sa_jobqueue_adopting" in names]
    assert updates
    assert all("status" not in names for names in updates)
    assert set(statuses(shop).values()) == {"done"}


@pytest.mark.only_on("sqlite")
def test_what_is_inserted_before_the_last_step_is_one_of_those_that_were_there(
    shop: Engine, fresh_database: URL
) -> None:
    insert_orders(shop, range(10))
    other = make_engine(fresh_database)
    keys = iter(range(-1, -100, -1))  # behind the rows that are written already

    def insert_one(connection: Connection, cursor: Any, statement: str, *args: Any) -> None:
        if statement == "BEGIN IMMEDIATE":
            key = next(keys)
            with other.begin() as another:
                another.execute(insert(ORDERS), {"id": key, "amount": key})

    event.listen(shop, "before_cursor_execute", insert_one)
    adopt(shop, "done")
    event.remove(shop, "before_cursor_execute", insert_one)
    insert_orders(shop, [100])

    assert next(keys) < -3
    assert {amount for amount, status in statuses(shop).items() if status != "done"} == {100}


@pytest.mark.parametrize("existing_rows", ["done", "amount > 1"])
def test_what_was_broken_off_is_taken_up_again(shop: Engine, existing_rows: str) -> None:
    insert_orders(shop, [1, 2])

    for stop in range(1, 30):
        if not breaks_at(
            shop, stop, lambda: adopt(shop, existing_rows), before=("ALTER", "UPDATE")
        ):
            break

    assert stop > 2
    assert statuses(shop) == {1: "done", 2: "done" if existing_rows == "done" else "unclaimed"}
    assert column_names(shop)[3:] == [
        column.name for column in Order.__table__.columns if column.name in column_names(shop)[3:]
    ]


def test_the_rows_that_get_their_status_one_by_one_come_in_batches(shop: Engine) -> None:
    insert_orders(shop, range(10))
    told: list[Progress] = []

    adopt(shop, "amount >= 5", batch=4, pause=timedelta(0), progress=told.append)

    assert [each.batches for each in told] == [1, 2, 3]
    assert told[-1].written == 5
    assert claimed(shop) == [5, 6, 7, 8, 9]


def test_a_batch_of_no_row_is_refused_before_anything_is_changed(shop: Engine) -> None:
    before = column_names(shop)

    with pytest.raises(ArgumentError, match="at least one row"):
        adopt(shop, "done", batch=0)

    assert column_names(shop) == before


def test_to_run_it_again_makes_no_job_of_one_that_a_worker_has_done(shop: Engine) -> None:
    insert_orders(shop, [1, 2])
    adopt(shop, "amount = 2")
    with Session(shop) as session:
        complete(session, claim(session, Order, owner="worker"))
        session.commit()

    adopt(shop, "amount = 2")

    assert statuses(shop) == {1: "done", 2: "done"}


# Rounds


class RoundBase(DeclarativeBase):
    pass


class Mailing(JobMixin, RoundMixin, RoundBase):
    """The orders as a queue that is gone through in rounds."""

    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    amount: Mapped[int]
    note: Mapped[str | None] = mapped_column(String(50))


class LonelyBase(DeclarativeBase):
    pass


class Lonely(RoundMixin, LonelyBase):
    """The same with rounds alone."""

    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    amount: Mapped[int]
    note: Mapped[str | None] = mapped_column(String(50))


@pytest.mark.parametrize("table", ["orders", Mailing, Mailing.__table__])
def test_rows_that_were_there_are_in_no_round_until_one_is_started(
    shop: Engine, table: Any
) -> None:
    insert_orders(shop, [1, 2, 3])
    mixins = (JobMixin, RoundMixin) if table == "orders" else ()

    with migrating(shop, target_metadata=RoundBase.metadata) as op:
        add_job_columns(op, table, *mixins, existing_rows="done")
        create_claim_index(op, table, *mixins)
        create_reap_index(op, table, *mixins)

    assert differences(shop, RoundBase.metadata) == []
    assert claimed(shop, Mailing) == []
    assert start_round(shop, Mailing, Mailing.amount > 1) == 1
    assert claimed(shop, Mailing) == [2, 3]
    with migrating(shop) as op:
        drop_reap_index(op, "orders")
        drop_claim_index(op, "orders")
        drop_job_columns(op, "orders", JobMixin, RoundMixin)
    assert differences(shop, ORDERS.metadata) == []


@pytest.mark.parametrize("table", ["orders", Lonely])
def test_rounds_alone_come_and_go(shop: Engine, table: Any) -> None:
    mixins = (RoundMixin,) if table == "orders" else ()

    with migrating(shop) as op:
        add_job_columns(op, table, *mixins, existing_rows=None)
        create_claim_index(op, table, *mixins)
    assert differences(shop, LonelyBase.metadata) == []

    with migrating(shop) as op:
        drop_claim_index(op, "orders")
        drop_job_columns(op, "orders", RoundMixin)
    assert differences(shop, ORDERS.metadata) == []


@pytest.mark.only_on("sqlite", "postgresql")
def test_the_table_of_the_rounds_may_be_there_already(shop: Engine) -> None:
    round_table(any_mapping_of(Mailing)).create(shop)

    for _ in range(2):
        adopt(shop, "done", JobMixin, RoundMixin)

    assert start_round(shop, Mailing) == 1


# Others' locks


@pytest.mark.only_on("postgresql", "mysql", "mariadb")
def test_a_table_that_others_keep_is_given_up_and_nothing_is_changed(shop: Engine) -> None:
    before = column_names(shop)
    insert_orders(shop, [1])

    with shop.connect() as reader:
        reader.execute(text("SELECT * FROM orders"))  # a long report
        with pytest.raises(LockTimeout, match="run the migration again"):
            adopt(shop, "done", patience=SHORT)
        insert_orders(shop, [2])  # nobody waits behind it any more

    assert column_names(shop) == before


@pytest.mark.only_on("postgresql", "mysql", "mariadb")
def test_a_lock_that_is_freed_meanwhile_is_had(shop: Engine) -> None:
    insert_orders(shop, [1])
    reader = shop.connect()
    reader.execute(text("SELECT * FROM orders"))
    end = threading.Timer(1.5, reader.close)

    end.start()
    adopt(shop, "done")
    end.join()

    assert statuses(shop) == {1: "done"}


@pytest.mark.only_on("mysql", "mariadb")
def test_a_row_that_comes_between_two_statements_waits_and_is_a_job(shop: Engine) -> None:
    insert_orders(shop, [1])
    writers: list[threading.Thread] = []

    def insert(connection: Connection, cursor: Any, statement: str, *args: Any) -> None:
        if "SET DEFAULT" in statement:
            writers.append(threading.Thread(target=insert_orders, args=(shop, [2])))
            writers[0].start()
            writers[0].join(0.5)  # it waits for the table

    event.listen(shop, "before_cursor_execute", insert)
    adopt(shop, "done")
    writers[0].join()

    assert statuses(shop) == {1: "done", 2: "unclaimed"}


@pytest.mark.only_on("mysql", "mariadb")
def test_the_sessions_own_patience_is_back_afterwards(shop: Engine) -> None:
    with migrating(shop) as op:
        connection = op.get_bind()
        before = scalar(connection, "SELECT @@lock_wait_timeout")
        add_job_columns(op, "orders", existing_rows="done")
        after = scalar(op.get_bind(), "SELECT @@lock_wait_timeout")

    assert (before, after) == (10, 10)  # as tests.support sets it


def test_a_transaction_that_is_not_alembics_is_refused(shop: Engine) -> None:
    with shop.connect() as connection:
        connection.begin()
        op = Operations(MigrationContext.configure(connection))

        with pytest.raises(ArgumentError, match=r"context\.begin_transaction\(\)"):
            add_job_columns(op, "orders", existing_rows="done")


def test_no_lock_is_kept_while_the_migration_goes_on(shop: Engine) -> None:
    insert_orders(shop, [1])

    with migrating(shop) as op:
        add_job_columns(op, "orders", *MIXINS, existing_rows="done")
        insert_orders(shop, [2])
        create_claim_index(op, "orders", *MIXINS)
        insert_orders(shop, [3])
        create_reap_index(op, "orders", *MIXINS)
        insert_orders(shop, [4])

    assert claimed(shop) == [2, 3, 4]
