"""A table with rows becomes a queue, and none of its rows is taken for a job by accident.

A backfill commits batch by batch, and goes on where it was interrupted.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import (
    URL,
    Column,
    Engine,
    Integer,
    MetaData,
    String,
    Table,
    Uuid,
    insert,
    inspect,
    select,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from sa_jobqueue import (
    ArgumentError,
    JobMixin,
    PriorityMixin,
    RoundMixin,
    claim,
    complete,
    start_round,
)
from sa_jobqueue.migration import (
    add_job_columns,
    backfill,
    clock_default,
    create_index_online,
    create_job_indexes,
    drop_job_columns,
    drop_job_indexes,
    timestamp_type,
)
from tests.migration.support import (
    MIXINS,
    ORDERS,
    Base,
    Broken,
    Order,
    adopt,
    breaks_at,
    claimed,
    column_names,
    differences,
    execute,
    insert_orders,
    make_queue,
    migrate,
    migrating,
    notes,
    scalar,
    statuses,
    unmake_queue,
    writing_script,
)
from tests.support import SERVERS, heard, make_engine, statements_seen

ANYWHERE = pytest.mark.by_turns("sqlite", *SERVERS)

# What becomes of the rows


@pytest.mark.parametrize(
    ("table", "existing_rows", "jobs"),
    [
        ("orders", "done", []),
        ("orders", "unclaimed", [1, 2, 3, 4]),
        ("orders", "amount >= 3 AND note LIKE 'at 10:3%'", [4]),  # no job where it is NULL
        ("orders", ORDERS.c.amount >= 3, [3, 4]),
        (Order, Order.amount >= 3, [3, 4]),
    ],
    ids=["done", "unclaimed", "text", "table", "entity"],
)
def test_rows_that_were_there_are_jobs_only_where_the_migration_says_so(
    shop: Engine, fresh_database: URL, table: Any, existing_rows: Any, jobs: list[int]
) -> None:
    insert_orders(shop, [1, 2, 3])
    with shop.begin() as connection:
        connection.execute(insert(ORDERS), [{"amount": 4, "note": "at 10:30, 5%"}])
    before_it = make_engine(fresh_database)  # a connection that knows the table as it was
    with before_it.connect() as connection:
        connection.execute(select(ORDERS)).all()

    make_queue(shop, existing_rows, table=table)
    insert_orders(shop, [5])
    insert_orders(before_it, [6])

    assert differences(shop, Base.metadata) == []
    found = due_times(shop)
    assert {time.year for amount, time in found.items() if amount < 5} == {1970}
    assert is_now(found[5])
    assert is_now(found[6])
    assert statuses(shop) == {
        amount: "unclaimed" if amount in (*jobs, 5, 6) else "done" for amount in range(1, 7)
    }
    assert claimed(shop) == [*jobs, 5, 6]

    unmake_queue(shop, table=table)

    assert differences(shop, ORDERS.metadata) == []
    assert scalar(shop, "SELECT COUNT(*) FROM orders") == 6


def due_times(engine: Engine) -> dict[int, datetime]:
    with Session(engine) as session:
        return dict(session.execute(select(Order.amount, Order.run_at)).all())


def is_now(time: datetime) -> bool:
    aware = time if time.tzinfo else time.replace(tzinfo=UTC)
    return abs(datetime.now(UTC) - aware) < timedelta(minutes=1)


def test_running_it_again_makes_no_done_job_claimable(shop: Engine) -> None:
    insert_orders(shop, [1, 2])
    adopt(shop, "amount = 2", batch=1, pause=timedelta(0))
    with Session(shop) as session:
        complete(session, claim(session, Order, owner="worker"))
        session.commit()

    adopt(shop, "amount = 2")

    assert statuses(shop) == {1: "done", 2: "done"}


# What is refused, before anything is changed


def refused(words: str, *own: str, **options: Any) -> tuple[Callable[[Any], None], str, str]:
    """A refusal of new columns for the orders, or for orders with columns of their own."""
    given = {"table": "orders", "mixins": (), "existing_rows": "done", **options}
    table, mixins = given.pop("table"), given.pop("mixins")
    added = f"ALTER TABLE orders {', '.join(own)}" if own else ""
    return lambda op: add_job_columns(op, table, *mixins, **given), words, added


@pytest.mark.by_turns("sqlite", *SERVERS)
@pytest.mark.parametrize(
    ("change", "words", "given"),
    [
        refused("nothing", existing_rows="nothing = 1"),
        refused("existing_rows=None", existing_rows=None),
        refused("replace the dots", existing_rows=...),
        refused(r"no table ordres: .* give the table's schema=", table="ordres"),
        refused("pass the table's name instead of the class", table=Order, schema="other"),
        refused("no column for round: add its mixin", table=Order, mixins=[RoundMixin]),
        refused(r'JobMixin\.named\(status="job_status"\)', "ADD COLUMN status INTEGER"),
        refused(r'JobMixin\.named\(status="job_status"\)', "ADD COLUMN status VARCHAR(200)"),
        refused(r'JobMixin\.named\(owner="job_owner"\)', "ADD COLUMN owner VARCHAR(64)"),
        (
            lambda op: backfill(op, "keyless", "1 = 1", values={"note": "old"}),
            "keyless.* has no primary key",
            "",
        ),
        (lambda op: create_job_indexes(op, "keyless"), "no primary key of .* unique columns", ""),
        (lambda op: create_job_indexes(op, "orders", PriorityMixin), "no index for claims", ""),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_changed(
    shop: Engine, change: Callable[[Any], None], words: str, given: str
) -> None:
    execute(shop, "CREATE TABLE keyless (note VARCHAR(10))", *filter(None, [given]))
    before = column_names(shop)

    with pytest.raises(Exception, match=words) as refusal, migrating(shop) as op:
        change(op)

    assert isinstance(refusal.value, ArgumentError) or words == "nothing"
    assert column_names(shop) == before


@pytest.mark.parametrize(
    ("database", "refusal"),
    [
        ("postgresql", refused("written batch by batch.* a database", existing_rows="amount > 3")),
        ("sqlite", refused("on SQLite.* with a database")),
        ("mysql", (lambda op: create_job_indexes(op, "orders"), 'key="id"', "")),
        (
            "mysql",
            (
                lambda op: backfill(op, "orders", "1 = 1", values={"note": "old"}),
                "backfill of 'orders' .* with a database",
                "",
            ),
        ),
    ],
)
def test_a_script_that_would_need_a_database_is_refused(database: str, refusal: Any) -> None:
    change, words, _ = refusal
    with writing_script(database) as (op, script):
        with pytest.raises(ArgumentError, match=words):
            change(op)

        assert "ALTER" not in script.getvalue()


# How a table is named


@pytest.mark.only_on(*SERVERS)
def test_a_table_of_a_schema_becomes_a_queue(shop: Engine, db_alias: str) -> None:
    schema = "warehouse" if db_alias == "postgresql" else shop.url.database
    if db_alias == "postgresql":
        execute(shop, "CREATE SCHEMA warehouse", "ALTER TABLE orders SET SCHEMA warehouse")
    execute(shop, f"INSERT INTO {schema}.orders (amount) VALUES (1), (2)")

    with migrating(shop) as op:
        add_job_columns(op, "orders", *MIXINS, existing_rows="amount = 2", schema=schema)
        create_job_indexes(op, "orders", *MIXINS, schema=schema)

    waiting = f"SELECT amount FROM {schema}.orders WHERE status = 'unclaimed'"
    assert scalar(shop, waiting) == 2

    with migrating(shop) as op:
        drop_job_indexes(op, "orders", schema=schema)
        drop_job_columns(op, "orders", *MIXINS, schema=schema)

    assert scalar(shop, f"SELECT COUNT(*) FROM {schema}.orders") == 2


# A mixin alone


class RoundBase(DeclarativeBase):
    pass


class Mailing(RoundMixin, RoundBase):
    """The orders with RoundMixin only."""

    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    amount: Mapped[int]
    note: Mapped[str | None] = mapped_column(ORDERS.c.note.type)


def test_the_round_mixin_alone_asks_for_nothing(shop: Engine) -> None:
    insert_orders(shop, [1, 2, 3])

    for _ in range(2):  # the table of the rounds may be there already
        make_queue(shop, None, RoundMixin, table=Mailing)

    assert differences(shop, RoundBase.metadata) == []
    assert start_round(shop, Mailing, Mailing.amount > 1) == 1


# What a migration by hand, and SQLite, need


def test_a_migration_written_by_hand_names_the_clock_on_each_database(shop: Engine) -> None:
    with migrating(shop) as op:
        due = Column("due", timestamp_type(), server_default=clock_default(), nullable=False)
        parcel = op.create_table("parcel", Column("id", Integer, primary_key=True), due)

    with shop.begin() as connection:
        connection.execute(insert(parcel), {"id": 1})
        assert is_now(connection.scalars(select(parcel.c.due)).one())
    assert "1970" not in str(inspect(shop).get_columns("parcel")[1]["default"])


@pytest.mark.only_on("sqlite")
def test_rows_of_sqlite_are_done_until_the_default_changes(
    shop: Engine, fresh_database: URL
) -> None:
    insert_orders(shop, range(10))
    other = make_engine(fresh_database)
    looks: list[set[str]] = []

    def insert_one(connection: Any, cursor: Any, statement: str, *args: Any) -> None:
        if statement == "BEGIN IMMEDIATE" and "status" in column_names(other):
            insert_orders(other, [-len(looks) - 1])
            looks.append(set(statuses(other).values()))

    with heard(shop, "before_cursor_execute", insert_one):
        adopt(shop, "done", batch=4, pause=timedelta(0))
    insert_orders(shop, [100])

    assert len(looks) > 3
    assert looks == [{"done"}] * len(looks)
    assert {amount for amount, status in statuses(shop).items() if status != "done"} == {100}
    with statements_seen(shop) as seen:
        adopt(shop, "done")
    assert not [statement for statement in seen if statement.startswith("UPDATE")]
    with shop.connect() as connection:
        assert connection.exec_driver_sql("PRAGMA integrity_check").scalar_one() == "ok"
        assert connection.exec_driver_sql("PRAGMA writable_schema").scalar_one() == 0


@pytest.mark.only_on("sqlite")
def test_a_column_of_sqlite_whose_name_ends_alike_keeps_its_default(shop: Engine) -> None:
    own = "next_run_at DATETIME DEFAULT '1970-01-01 00:00:00.000000' NOT NULL"
    execute(shop, f"ALTER TABLE orders ADD COLUMN {own}")

    adopt(shop, "done")

    defaults = {column["name"]: column["default"] for column in inspect(shop).get_columns("orders")}
    assert "1970" in str(defaults["next_run_at"])
    assert "1970" not in str(defaults["run_at"])


# What was interrupted


@pytest.mark.parametrize("existing_rows", ["done", "amount > 1"])
def test_a_migration_that_was_killed_at_any_statement_is_run_again(
    shop: Engine, existing_rows: str
) -> None:
    insert_orders(shop, [1, 2])
    changes = ("ALTER", "CREATE", "DROP", "UPDATE", "LOCK", "COMMIT", "PRAGMA")

    ways: list[tuple[Callable[[], None], MetaData]] = [
        (lambda: make_queue(shop, existing_rows), Base.metadata),
        (lambda: unmake_queue(shop), ORDERS.metadata),
    ]
    for way, then in ways:
        stop = 1
        while breaks_at(shop, stop, way, before=changes):
            stop += 1
        way()  # killed when all was done, before Alembic recorded the version

        assert stop > 1
        assert differences(shop, then) == []
        if then is Base.metadata:
            insert_orders(shop, [3])
            expected = "done" if existing_rows == "done" else "unclaimed"
            assert statuses(shop) == {1: "done", 2: expected, 3: "unclaimed"}
            assert is_now(due_times(shop)[3])


# The names of others


@pytest.mark.parametrize(
    "name",
    [
        '100% $sa$ it\'s 50%s "so" a:b',
        pytest.param("select", marks=ANYWHERE),
        pytest.param("\u00fc" * 28, marks=ANYWHERE),
    ],
)
def test_a_table_of_any_name_becomes_a_queue_and_back(engine: Engine, name: str) -> None:
    """Its names need quotes, or mean something to a driver, or are as long as they may be."""
    columns = [Column("id", Integer, primary_key=True), Column(name, Integer)]
    table = Table(name, MetaData(), *columns, Column("note", ORDERS.c.note.type))
    table.create(engine)
    with engine.begin() as connection:
        connection.execute(insert(table), [{"id": 1, name: 1}, {"id": 2, name: 2}])
    status = f"{name} status"
    mixins = (JobMixin.named(status=status), PriorityMixin)
    args = {"per_key": "note", "equality": "note"}

    with migrating(engine) as op:
        create_index_online(op, f"ix_{name}_own", name, [name])
        add_job_columns(op, name, *mixins, existing_rows=table.c[name] == 2)
        create_job_indexes(op, name, *mixins)
    for _ in range(2):  # the second time finds what the first has made
        with migrating(engine) as op:
            add_job_columns(op, name, *mixins, existing_rows=table.c[name] == 2)
            create_job_indexes(op, name, *mixins, queue_args=args, replace=True)
            backfill(op, name, table.c[name] == 1, values={"note": "old"})

    real = Table(name, MetaData(), autoload_with=engine)
    with engine.connect() as connection:
        rows = connection.execute(select(real.c[status], real.c.note).order_by(real.c.id))
        assert [tuple(row) for row in rows] == [("done", "old"), ("unclaimed", None)]
    assert len(real.indexes) == 4

    with migrating(engine) as op:
        drop_job_indexes(op, name, queue_args=args)
        drop_job_columns(op, name, *mixins)

    assert column_names(engine, name) == ["id", name, "note"]
    assert len(inspect(engine).get_indexes(name)) == 1


# Backfills


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

    stopping = heard(shop, "before_cursor_execute", stop)
    with stopping, pytest.raises(Broken), migrating(shop) as op:
        backfill(op, "orders", ORDERS.c.note.is_(None), values={"note": "old"}, batch=10)
    assert looked == [0, 10, 20, 30]

    with migrating(shop) as op, caplog.at_level("INFO", "sa_jobqueue"):
        written = backfill(op, "orders", "note IS NULL", values={"note": "old"}, batch=90)

    assert (written, notes(shop)) == (70, 100)
    assert [line for line in caplog.messages if "rows written" in line] == [
        "orders: 60 rows written, 1 batches",
        "orders: 70 rows written, 2 batches",
    ]


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
