"""Storage parameters of a queue's table on PostgreSQL; other databases have none."""

from __future__ import annotations

import pytest
from sqlalchemy import Engine, text

from sa_jobqueue.migration import reset_storage, tune_storage
from tests.migration.support import migrating, scalar
from tests.support import statements_seen

OPTIONS = "SELECT reloptions FROM pg_class WHERE oid = CAST('{}' AS regclass)"


@pytest.mark.only_on("postgresql")
def test_the_parameters_are_set_and_reset(shop: Engine) -> None:
    with migrating(shop) as op:
        tune_storage(op, "orders", fillfactor=80, dead_rows=500)

    assert set(scalar(shop, OPTIONS.format("orders"))) == {
        "fillfactor=80",
        "autovacuum_vacuum_scale_factor=0",
        "autovacuum_vacuum_threshold=500",
        "autovacuum_analyze_scale_factor=0",
        "autovacuum_analyze_threshold=500",
    }

    with migrating(shop) as op:
        reset_storage(op, "orders")

    assert scalar(shop, OPTIONS.format("orders")) is None


@pytest.mark.only_on("postgresql")
def test_each_partition_of_a_table_is_tuned(engine: Engine) -> None:
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE parcels (day int) PARTITION BY RANGE (day)"))
        connection.execute(
            text("CREATE TABLE parcels_1 PARTITION OF parcels FOR VALUES FROM (0) TO (10)")
        )

    with migrating(engine) as op:
        tune_storage(op, "parcels")

    assert "fillfactor=90" in scalar(engine, OPTIONS.format("parcels_1"))


@pytest.mark.only_on("sqlite", "mysql", "mariadb")
def test_on_other_databases_tuning_does_nothing(shop: Engine) -> None:
    with statements_seen(shop) as seen, migrating(shop) as op:
        seen.clear()
        tune_storage(op, "orders")
        reset_storage(op, "orders")

        assert [one for one in seen if one.startswith("ALTER")] == []
