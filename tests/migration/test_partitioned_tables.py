"""A table partitioned by hash or by range becomes a queue like any other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Column, Engine, Integer, MetaData, Table, text
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from sa_jobqueue import ArgumentError, JobMixin, JobQueue, claim
from sa_jobqueue.migration import (
    add_job_columns,
    backfill,
    create_claim_index,
    create_reap_index,
    drop_claim_index,
    drop_job_columns,
    drop_reap_index,
    reset_storage,
    tune_storage,
)
from tests.docs.markdown import code_blocks, page
from tests.migration.support import column_names, index_names, migrating, scalar, writing_script
from tests.support import SERVERS, statements_seen

PARCELS = "CREATE TABLE parcels (id int NOT NULL, day int NOT NULL, PRIMARY KEY (id, day))"
ON_INNODB = {
    "hash": [f"{PARCELS} PARTITION BY HASH (id) PARTITIONS 3"],
    "range": [
        f"{PARCELS} PARTITION BY RANGE (day) (PARTITION early VALUES LESS THAN (10), "
        "PARTITION late VALUES LESS THAN (20))"
    ],
}
LAYOUTS = {
    "mysql": ON_INNODB,
    "mariadb": ON_INNODB,
    "postgresql": {
        "hash": [
            f"{PARCELS} PARTITION BY HASH (id)",
            *(
                f"CREATE TABLE parcels_{part} PARTITION OF parcels "
                f"FOR VALUES WITH (MODULUS 2, REMAINDER {part})"
                for part in range(2)
            ),
        ],
        "range": [
            f"{PARCELS} PARTITION BY RANGE (day)",
            "CREATE TABLE parcels_0 PARTITION OF parcels FOR VALUES FROM (0) TO (10)",
            "CREATE TABLE parcels_1 PARTITION OF parcels FOR VALUES FROM (10) TO (20)",
        ],
    },
}
INDEXES = {"ix_parcels_claim", "ix_parcels_reap"}

pytestmark = pytest.mark.only_on(*SERVERS)


class Base(DeclarativeBase):
    pass


class Parcel(JobMixin, Base):
    """A parcel of the finished queue; in a script it tells that its table is partitioned."""

    __tablename__ = "parcels"
    __table_args__ = {"postgresql_partition_by": "RANGE (day)"}  # noqa: RUF012 - as users write it

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    day: Mapped[int] = mapped_column(primary_key=True)


def run(engine: Engine, *statements: str) -> None:
    with engine.begin() as connection:
        for statement in statements:
            connection.execute(text(statement))


@pytest.fixture(params=["hash", "range"])
def depot(engine: Engine, db_alias: str, request: pytest.FixtureRequest) -> Engine:
    """The engine of a database with forty parcels in partitions."""
    run(engine, *LAYOUTS[db_alias][request.param])
    rows = ", ".join(f"({number}, {number % 20})" for number in range(40))
    run(engine, f"INSERT INTO parcels (id, day) VALUES {rows}")
    return engine


def adopt(engine: Engine, existing_rows: str = "done") -> None:
    with migrating(engine) as op:
        add_job_columns(op, "parcels", existing_rows=existing_rows)
        create_claim_index(op, "parcels")
        create_reap_index(op, "parcels")
        tune_storage(op, "parcels")


def abandon(engine: Engine) -> None:
    with migrating(engine) as op:
        reset_storage(op, "parcels")
        drop_reap_index(op, "parcels")
        drop_claim_index(op, "parcels")
        drop_job_columns(op, "parcels")


def differences(engine: Engine, metadata: MetaData) -> list[Any]:
    """Compare the database with models, which do not know the tables of partitions."""

    def is_modelled(name: str | None, type_: str, parents: object) -> bool:
        return type_ != "table" or name in metadata.tables

    with engine.connect() as connection:
        opts = {"compare_server_default": True, "include_name": is_modelled}
        context = MigrationContext.configure(connection, opts=opts)
        return list(compare_metadata(context, metadata))


def claimed(engine: Engine) -> set[int]:
    with Session(engine) as session:
        jobs = claim(session, Parcel, owner="worker", limit=100)
        session.commit()
        return {job.id for job in jobs}


def test_a_partitioned_table_becomes_the_models_queue_and_no_old_row_is_a_job(
    depot: Engine,
) -> None:
    adopt(depot)
    run(depot, "INSERT INTO parcels (id, day) VALUES (100, 5)")

    assert differences(depot, Base.metadata) == []
    assert claimed(depot) == {100}


def test_rows_of_a_criterion_become_jobs_in_every_partition(depot: Engine) -> None:
    adopt(depot, "id >= 30")

    assert claimed(depot) == set(range(30, 40))


def test_running_the_migration_again_changes_nothing(depot: Engine) -> None:
    adopt(depot)

    with statements_seen(depot) as seen:
        adopt(depot)

    assert [one for one in seen if one.startswith(("CREATE INDEX", "DROP", "ALTER TABLE"))] == [
        one for one in seen if "SET DEFAULT" in one or " SET (" in one
    ]
    assert differences(depot, Base.metadata) == []


def test_the_downgrade_leaves_the_table_as_it_was_even_when_it_runs_twice(depot: Engine) -> None:
    adopt(depot)

    for _ in range(2):
        abandon(depot)

    assert column_names(depot, "parcels") == ["id", "day"]
    assert index_names(depot, "parcels") == set()
    assert scalar(depot, "SELECT COUNT(*) FROM parcels") == 40


def test_a_backfill_goes_through_all_partitions(depot: Engine) -> None:
    adopt(depot)

    with migrating(depot) as op:
        written = backfill(op, "parcels", "day < 10", values={"status": "unclaimed"}, batch=7)

    assert written == 20
    assert claimed(depot) == {number for number in range(40) if number % 20 < 10}


@pytest.mark.only_on("mysql", "mariadb")
def test_the_columns_are_added_and_dropped_instantly(depot: Engine) -> None:
    with statements_seen(depot) as seen:
        adopt(depot)
        abandon(depot)

    altered = [
        statement
        for statement in seen
        if statement.startswith("ALTER TABLE") and " DROP INDEX " not in statement
    ]
    assert len(altered) == 3
    assert all(statement.endswith(", ALGORITHM=INSTANT") for statement in altered)


@pytest.mark.only_on("postgresql")
def test_no_partition_is_rewritten(depot: Engine) -> None:
    files = (
        "SELECT array_agg(relfilenode ORDER BY oid) FROM pg_class WHERE relname LIKE 'parcels_%'"
    )
    files += " AND relkind = 'r'"
    before = scalar(depot, files)

    adopt(depot)

    assert len(before) == 2
    assert scalar(depot, files) == before


@pytest.mark.only_on("postgresql")
def test_each_partition_gets_its_index_concurrently_and_the_table_attaches_them(
    depot: Engine,
) -> None:
    with statements_seen(depot) as seen:
        adopt(depot)

    built = [statement for statement in seen if statement.startswith("CREATE INDEX")]
    assert [" CONCURRENTLY " in statement for statement in built] == [True, True, False] * 2
    assert index_names(depot, "parcels") == INDEXES
    assert index_names(depot, "parcels_1") == {
        "ix_parcels_claim_parcels_1",
        "ix_parcels_reap_parcels_1",
    }
    assert scalar(depot, "SELECT bool_and(indisvalid) FROM pg_index") is True


@pytest.mark.only_on("postgresql")
def test_indexes_that_an_interrupted_build_left_on_partitions_are_dropped(
    depot: Engine,
) -> None:
    with migrating(depot) as op:
        add_job_columns(op, "parcels", existing_rows="done")
        create_claim_index(op, "parcels")
    run(
        depot,
        "DROP INDEX ix_parcels_claim",
        "CREATE INDEX ix_parcels_claim_parcels_0 ON parcels_0 (status, id, day)",
    )

    with migrating(depot) as op:
        drop_claim_index(op, "parcels")

    assert index_names(depot, "parcels_0") == set()


# Names


@pytest.mark.only_on("postgresql")
def test_two_indexes_of_one_table_have_two_names_on_each_partition(depot: Engine) -> None:
    adopt(depot)
    urgent = JobQueue(Parcel, Parcel.day == 3)

    with migrating(depot) as op:
        create_claim_index(op, urgent, name="ix_urgent_claim")

    assert index_names(depot, "parcels") == {*INDEXES, "ix_urgent_claim"}
    assert {"ix_parcels_claim_parcels_1", "ix_urgent_claim_parcels_1"} < index_names(
        depot, "parcels_1"
    )


@pytest.mark.only_on("postgresql")
def test_long_names_of_partitions_stay_apart(engine: Engine) -> None:
    names = [f"parcels_{'of_the_northern_depot_' * 2}_{year}" for year in (2031, 2032)]
    run(
        engine,
        f"{PARCELS} PARTITION BY RANGE (day)",
        f"CREATE TABLE {names[0]} PARTITION OF parcels FOR VALUES FROM (0) TO (10)",
        f"CREATE TABLE {names[1]} PARTITION OF parcels FOR VALUES FROM (10) TO (20)",
    )

    for _ in range(2):
        adopt(engine)

    assert scalar(engine, "SELECT bool_and(indisvalid) FROM pg_index") is True
    assert [len(index_names(engine, name)) for name in names] == [2, 2]


class ConventionBase(DeclarativeBase):
    metadata = MetaData(naming_convention={"ix": "idx_%(table_name)s_%(constraint_name)s"})


class NamedParcel(JobMixin, ConventionBase):
    """A parcel whose indexes have other names."""

    __tablename__ = "parcels"

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    day: Mapped[int] = mapped_column(primary_key=True)


@pytest.mark.only_on("postgresql")
def test_a_naming_convention_gives_the_indexes_of_partitions_different_names(depot: Engine) -> None:
    with migrating(depot) as op:
        for _ in range(2):
            add_job_columns(op, NamedParcel, existing_rows="done")
            create_claim_index(op, NamedParcel)

    assert index_names(depot, "parcels_0") == {"idx_parcels_claim_parcels_0"}
    assert index_names(depot, "parcels_1") == {"idx_parcels_claim_parcels_1"}


# Before there are partitions, and after


@pytest.mark.only_on("postgresql")
def test_a_table_that_has_no_partition_yet_becomes_a_queue(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    run(engine, f"{PARCELS} PARTITION BY RANGE (day)")

    with caplog.at_level("INFO", "sa_jobqueue"):
        for _ in range(2):
            adopt(engine)

    run(engine, "CREATE TABLE parcels_0 PARTITION OF parcels FOR VALUES FROM (0) TO (10)")
    assert differences(engine, Base.metadata) == []
    assert len(index_names(engine, "parcels_0")) == 2
    assert "parcels has 0 partitions" in caplog.text

    abandon(engine)
    assert column_names(engine, "parcels_0") == ["id", "day"]


OPTIONS = "SELECT reloptions FROM pg_class WHERE relname = '{}'"


@pytest.mark.only_on("postgresql")
@pytest.mark.parametrize("named", ["parcels", "parcels_2"])
def test_a_later_partition_is_tuned_with_its_table_or_by_its_own_name(
    engine: Engine, named: str
) -> None:
    run(engine, *LAYOUTS["postgresql"]["range"])
    adopt(engine)
    run(engine, "CREATE TABLE parcels_2 PARTITION OF parcels FOR VALUES FROM (20) TO (30)")
    assert scalar(engine, OPTIONS.format("parcels_2")) is None

    with migrating(engine) as op:
        tune_storage(op, named)

    assert "fillfactor=90" in scalar(engine, OPTIONS.format("parcels_2"))


@pytest.mark.only_on("postgresql")
def test_the_page_says_how_a_partition_is_made_that_is_tuned_already(engine: Engine) -> None:
    (made,) = code_blocks(page("docs/migrations.md"), "sql")
    run(engine, "CREATE TABLE orders (id int, day date) PARTITION BY RANGE (day)", made)
    before = scalar(engine, OPTIONS.format("orders_2032"))

    with migrating(engine) as op:
        tune_storage(op, "orders")

    assert sorted(scalar(engine, OPTIONS.format("orders_2032"))) == sorted(before)


# Scripts


HELPERS: list[Callable[..., None]] = [
    create_claim_index,
    create_reap_index,
    drop_reap_index,
    drop_claim_index,
    tune_storage,
    reset_storage,
]


@pytest.mark.parametrize("helper", HELPERS)
def test_a_script_must_be_told_the_partitions_where_the_model_has_some(
    helper: Callable[..., None],
) -> None:
    with (
        writing_script("postgresql") as (op, script),
        pytest.raises(ArgumentError, match=r'partitions=\("parcels_1", "parcels_2"\), or \(\)'),
    ):
        helper(op, Parcel)

    assert "INDEX" not in script.getvalue()


@pytest.mark.parametrize("server", ["mysql", "mariadb"])
def test_a_script_for_other_databases_needs_no_partitions(server: str) -> None:
    with writing_script(server) as (op, script):
        for helper in HELPERS:
            helper(op, Parcel)

    assert "CREATE INDEX ix_parcels_claim ON parcels" in script.getvalue()


@pytest.mark.only_on("postgresql")
@pytest.mark.parametrize("partitions", [("parcels_0", "parcels_1"), ()])
def test_a_script_with_the_partitions_does_what_the_migration_does(
    depot: Engine, partitions: tuple[str, ...]
) -> None:
    if not partitions:
        run(depot, "DROP TABLE parcels_0, parcels_1")
    with writing_script("postgresql") as (op, script):
        add_job_columns(op, "parcels", existing_rows="done")
        create_claim_index(op, "parcels", key=("id", "day"), partitions=partitions)
        create_reap_index(op, "parcels", partitions=partitions)
        tune_storage(op, "parcels", partitions=partitions)

    execute(depot, script.getvalue())

    assert differences(depot, Base.metadata) == []
    assert scalar(depot, "SELECT bool_and(indisvalid) FROM pg_index") is True

    with writing_script("postgresql") as (op, script):
        reset_storage(op, "parcels", partitions=partitions)
        drop_reap_index(op, "parcels", partitions=partitions)
        drop_claim_index(op, "parcels", partitions=partitions)
        drop_job_columns(op, "parcels")

    execute(depot, script.getvalue())

    old = Table(
        "parcels", MetaData(), *(Column(name, Integer, primary_key=True) for name in ("id", "day"))
    )
    assert differences(depot, old.metadata) == []


def execute(engine: Engine, script: str) -> None:
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        for statement in filter(None, map(str.strip, script.split(";\n"))):
            connection.exec_driver_sql(statement)
