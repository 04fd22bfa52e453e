"""A migration that was killed at any statement is run again, up or down, and ends."""

from __future__ import annotations

from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Engine, MetaData

from sa_jobqueue.migration import (
    add_job_columns,
    create_claim_index,
    create_reap_index,
    drop_claim_index,
    drop_job_columns,
    drop_reap_index,
    reset_storage,
    tune_storage,
)
from tests.migration.support import (
    MIXINS,
    ORDERS,
    Base,
    breaks_at,
    insert_orders,
    migrating,
    statuses,
)

CHANGES = ("ALTER", "CREATE", "DROP", "UPDATE", "LOCK", "COMMIT")


def upgrade(engine: Engine, online: bool) -> None:
    with migrating(engine) as op:
        add_job_columns(op, "orders", *MIXINS, existing_rows="done")
        create_claim_index(op, "orders", *MIXINS, online=online)
        create_reap_index(op, "orders", *MIXINS, online=online)
        tune_storage(op, "orders")


def downgrade(engine: Engine, online: bool) -> None:
    with migrating(engine) as op:
        reset_storage(op, "orders")
        drop_reap_index(op, "orders", online=online)
        drop_claim_index(op, "orders", online=online)
        drop_job_columns(op, "orders", *MIXINS)


def differences(engine: Engine, metadata: MetaData) -> Any:
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_server_default": True})
        return compare_metadata(context, metadata)


@pytest.mark.parametrize("online", [True, False])
def test_a_migration_is_run_again_until_nothing_interrupts_it(shop: Engine, online: bool) -> None:
    insert_orders(shop, [1, 2])

    for migrate, then in ((upgrade, Base.metadata), (downgrade, ORDERS.metadata)):
        stop = 1
        while breaks_at(shop, stop, lambda run=migrate: run(shop, online), before=CHANGES):  # type: ignore[misc]  # a default argument binds the loop's
            stop += 1
        migrate(shop, online)  # killed when all was done, before Alembic recorded the version

        assert stop > 1
        assert differences(shop, then) == []
        if migrate is upgrade:
            assert statuses(shop) == {1: "done", 2: "done"}
