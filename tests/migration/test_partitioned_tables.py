"""A table in partitions becomes a queue like any other."""

from __future__ import annotations

from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Engine, MetaData
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sa_jobqueue import JobMixin
from sa_jobqueue.migration import (
    add_job_columns,
    backfill,
    create_job_indexes,
    drop_job_columns,
    drop_job_indexes,
    reset_storage,
    tune_storage,
)
from tests.docs.markdown import code_blocks, page
from tests.migration.support import (
    column_names,
    execute,
    index_names,
    migrate,
    migrating,
    scalar,
)
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
        tune_storage(op, "parcels")


def abandon(engine: Engine) -> None:
    with migrating(engine) as op:
        reset_storage(op, "parcels")
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
        built = [statement for statement in seen if statement.startswith("CREATE INDEX")]
        assert [" CONCURRENTLY " in each for each in built] == [True, True, False] * 2
        assert scalar(depot, VALID) is True
        assert index_names(depot, "parcels_1") == {
            "ix_parcels_claim_parcels_1",
            "ix_parcels_reap_parcels_1",
        }
        assert "fillfactor=90" in scalar(depot, OPTIONS.format("parcels_1"))
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
def test_indexes_that_an_interrupted_build_left_on_partitions_are_dropped(depot: Engine) -> None:
    adopt(depot)
    execute(
        depot,
        "DROP INDEX ix_parcels_claim",
        "CREATE INDEX ix_parcels_claim_parcels_0 ON parcels_0 (status, id, day)",
    )

    abandon(depot)

    assert index_names(depot, "parcels_0") == set()


@pytest.mark.only_on("postgresql")
def test_the_indexes_of_partitions_are_replaced_and_named_as_before(engine: Engine) -> None:
    """Long names of partitions stay apart."""
    names = [f"parcels_{'of_the_northern_depot_' * 2}_{part}" for part in range(2)]
    parts = [
        statement.replace(f"parcels_{part}", name)
        for part, (statement, name) in enumerate(zip(PARTS, names, strict=True))
    ]
    execute(engine, ON_POSTGRESQL[0], *parts)
    adopt(engine)
    before = [index_names(engine, name) for name in names]

    migrate(engine, create_job_indexes, "parcels", queue_args={"equality": "day"}, replace=True)

    assert index_names(engine, "parcels") == {"ix_parcels_claim", "ix_parcels_reap"}
    assert [index_names(engine, name) for name in names] == before
    assert scalar(engine, VALID) is True


@pytest.mark.only_on("postgresql")
def test_a_table_that_has_no_partition_yet_becomes_a_queue(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    execute(engine, ON_POSTGRESQL[0])

    with caplog.at_level("INFO", "sa_jobqueue"):
        adopt(engine)

    execute(engine, *PARTS)
    assert differences(engine, Base.metadata) == []
    assert len(index_names(engine, "parcels_0")) == 2
    assert "parcels has 0 partitions" in caplog.text
    for named in ("parcels_0", "parcels"):  # each partition needs the parameters of its own
        assert scalar(engine, OPTIONS.format("parcels_1")) is None
        migrate(engine, tune_storage, named)
        assert "fillfactor=90" in scalar(engine, OPTIONS.format("parcels_0"))
    assert "fillfactor=90" in scalar(engine, OPTIONS.format("parcels_1"))


@pytest.mark.only_on("postgresql")
def test_the_page_says_how_a_partition_is_made_that_is_tuned_already(engine: Engine) -> None:
    (made,) = code_blocks(page("docs/migrations.md"), "sql")
    execute(engine, "CREATE TABLE orders (id int, day date) PARTITION BY RANGE (day)", made)
    before = scalar(engine, OPTIONS.format("orders_2032"))

    migrate(engine, tune_storage, "orders")

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

    migrate(shop, reset_storage, "orders")

    assert scalar(shop, OPTIONS.format("orders")) is None
