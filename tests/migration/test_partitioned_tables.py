"""A table in partitions becomes a queue like any other."""

from __future__ import annotations

from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Engine, MetaData, text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sa_jobqueue import JobMixin
from sa_jobqueue.migration import (
    add_job_columns,
    backfill,
    create_index_online,
    create_job_indexes,
    drop_job_columns,
    drop_job_indexes,
    tune_storage,
)
from tests.docs.markdown import code_blocks, page
from tests.migration.support import column_names, execute, index_names, migrate, migrating, scalar
from tests.support import SERVERS, statements_seen

PARCELS = "CREATE TABLE parcels (id int NOT NULL, day int NOT NULL, PRIMARY KEY (id, day))"
PARTS = [
    f"CREATE TABLE parcels_{part} PARTITION OF parcels FOR VALUES FROM ({part}0) TO ({part + 1}0)"
    for part in range(2)
]
ON_POSTGRESQL = [f"{PARCELS} PARTITION BY RANGE (day)", *PARTS]
ON_INNODB = [
    f"{PARCELS} PARTITION BY RANGE (day) (PARTITION early VALUES LESS THAN (10), "
    "PARTITION late VALUES LESS THAN (20))"
]
OPTIONS = "SELECT reloptions FROM pg_class WHERE oid = CAST('{}' AS regclass)"
VALID = "SELECT bool_and(indisvalid) FROM pg_index"

pytestmark = pytest.mark.only_on(*SERVERS)


class Base(DeclarativeBase):
    pass


class Parcel(JobMixin, Base):
    """A parcel of the finished queue; in a script it tells that its table is partitioned."""

    __tablename__ = "parcels"
    __table_args__ = {"postgresql_partition_by": "RANGE (day)"}  # noqa: RUF012 - as users write it

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    day: Mapped[int] = mapped_column(primary_key=True)


@pytest.fixture
def depot(engine: Engine) -> Engine:
    """The engine of a database with forty parcels in partitions."""
    rows = ", ".join(f"({number}, {number % 20})" for number in range(40))
    insert = f"INSERT INTO parcels (id, day) VALUES {rows}"
    execute(engine, *(ON_POSTGRESQL if engine.name == "postgresql" else ON_INNODB), insert)
    return engine


def adopt(engine: Engine, existing_rows: str = "done") -> None:
    with migrating(engine) as op:
        add_job_columns(op, "parcels", existing_rows=existing_rows)
        create_job_indexes(op, "parcels")


def abandon(engine: Engine) -> None:
    with migrating(engine) as op:
        drop_job_indexes(op, "parcels")
        drop_job_columns(op, "parcels")


def differences(engine: Engine, metadata: MetaData) -> list[Any]:
    """Compare the database with models, which do not know the tables of partitions."""

    def is_modelled(name: str | None, type_: str, parents: object) -> bool:
        return type_ != "table" or name in metadata.tables

    with engine.connect() as connection:
        opts = {"compare_server_default": True, "include_name": is_modelled}
        context = MigrationContext.configure(connection, opts=opts)
        return list(compare_metadata(context, metadata))


def test_a_partitioned_table_becomes_the_models_queue_and_back(depot: Engine) -> None:
    with statements_seen(depot) as seen:
        adopt(depot, "id >= 30")
    execute(depot, "INSERT INTO parcels (id, day) VALUES (100, 5)")

    assert differences(depot, Base.metadata) == []
    waiting = "SELECT COUNT(*) FROM parcels WHERE status = 'unclaimed'"
    assert scalar(depot, waiting) == 11
    altered = [one for one in seen if one.startswith("ALTER TABLE")]
    if depot.name != "postgresql":
        assert all(statement.endswith(", ALGORITHM=INSTANT") for statement in altered)
        assert len(altered) == 2
    else:
        assert scalar(depot, VALID) is True
        assert len(index_names(depot, "parcels_1")) == 2
    with statements_seen(depot) as seen:
        adopt(depot)
    assert not [one for one in seen if one.startswith(("CREATE INDEX", "DROP", "UPDATE"))]
    with migrating(depot) as op:
        written = backfill(op, "parcels", "day < 10", values={"status": "unclaimed"}, batch=7)
    assert written == 21

    for _ in range(2):
        abandon(depot)

    assert column_names(depot, "parcels") == ["id", "day"]
    assert index_names(depot, "parcels") == set()
    assert scalar(depot, "SELECT COUNT(*) FROM parcels") == 41


@pytest.mark.only_on("postgresql")
def test_an_index_that_the_partitions_have_is_not_built_again(depot: Engine) -> None:
    with migrating(depot) as op:
        add_job_columns(op, "parcels", existing_rows="done")
        for part in range(2):
            columns, where = ["status", "id", "day"], text("status = 'unclaimed'")
            create_index_online(
                op, f"own_{part}", f"parcels_{part}", columns, postgresql_where=where
            )
        create_job_indexes(op, "parcels")

    assert scalar(depot, VALID) is True
    assert index_names(depot, "parcels_1") == {"own_1", "parcels_1_status_owner_date_idx"}


@pytest.mark.only_on("postgresql")
def test_the_indexes_of_a_partitioned_table_are_replaced(depot: Engine) -> None:
    adopt(depot)

    migrate(depot, create_job_indexes, "parcels", queue_args={"equality": "day"}, replace=True)

    assert index_names(depot, "parcels") == {"ix_parcels_claim", "ix_parcels_reap"}
    assert len(index_names(depot, "parcels_0")) == 2
    assert scalar(depot, VALID) is True


@pytest.mark.only_on("postgresql")
def test_the_page_says_how_a_partition_is_made_that_is_tuned_already(engine: Engine) -> None:
    (made,) = code_blocks(page("docs/migrations.md"), "sql")
    execute(engine, "CREATE TABLE orders (id int, day date) PARTITION BY RANGE (day)", made)
    before = scalar(engine, OPTIONS.format("orders_2032"))

    migrate(engine, tune_storage, "orders_2032")

    assert sorted(scalar(engine, OPTIONS.format("orders_2032"))) == sorted(before)


# Storage parameters, which only PostgreSQL has


def test_storage_parameters_are_set_and_reset(shop: Engine) -> None:
    with statements_seen(shop) as seen, migrating(shop) as op:
        seen.clear()
        tune_storage(op, "orders", fillfactor=80, dead_rows=500)
        if shop.name != "postgresql":
            assert not [one for one in seen if one.startswith("ALTER")]
            return

    assert set(scalar(shop, OPTIONS.format("orders"))) == {
        "fillfactor=80",
        "autovacuum_vacuum_scale_factor=0",
        "autovacuum_vacuum_threshold=500",
        "autovacuum_analyze_scale_factor=0",
        "autovacuum_analyze_threshold=500",
    }
