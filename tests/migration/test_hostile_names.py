"""Tables, columns and schemas with names that need quotes, or mean something to a driver."""

from __future__ import annotations

import pytest
from sqlalchemy import Column, Engine, Integer, MetaData, String, Table, insert, select

from sa_jobqueue import JobMixin, PriorityMixin
from sa_jobqueue.migration import (
    add_job_columns,
    backfill,
    create_claim_index,
    create_key_index,
    create_reap_index,
    drop_claim_index,
    drop_job_columns,
    drop_key_index,
    drop_reap_index,
    reset_storage,
    tune_storage,
)
from tests.migration.support import column_names, index_names, migrating

NAMES = ["100%", "50%s", "$sa$", "it's", 'say "so"', "a:b", "select", "Mixed Case"]


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture
def table(engine: Engine, name: str) -> Table:
    """A table of this name, with a column of this name, and two rows."""
    table = Table(
        name,
        MetaData(),
        Column("id", Integer, primary_key=True),
        Column(name, Integer),
        Column("note", String(20)),
    )
    table.create(engine)
    with engine.begin() as connection:
        connection.execute(insert(table), [{"id": 1, name: 1}, {"id": 2, name: 2}])
    return table


def test_a_table_of_any_name_becomes_a_queue_and_back(
    engine: Engine, table: Table, name: str
) -> None:
    status = f"{name} status"
    mixin = JobMixin.named(status=status)
    args = {"per_key": "note", "equality": "note"}

    with migrating(engine) as op:
        add_job_columns(op, name, mixin, PriorityMixin, existing_rows=table.c[name] == 2)
        create_claim_index(op, name, mixin, PriorityMixin)
    for _ in range(2):  # the second time finds what the first has made
        with migrating(engine) as op:
            add_job_columns(op, name, mixin, PriorityMixin, existing_rows=table.c[name] == 2)
            create_claim_index(op, name, mixin, PriorityMixin, queue_args=args, replace=True)
            create_reap_index(op, name, mixin)
            create_key_index(op, name, mixin, queue_args=args)
            backfill(op, name, table.c[name] == 1, values={"note": "old"})
            tune_storage(op, name)

    real = Table(name, MetaData(), autoload_with=engine)
    with engine.connect() as connection:
        rows = connection.execute(select(real.c[status], real.c.note).order_by(real.c.id))
        assert [tuple(row) for row in rows] == [("done", "old"), ("unclaimed", None)]
    assert len(index_names(engine, name)) == 3

    with migrating(engine) as op:
        reset_storage(op, name)
        drop_key_index(op, name, queue_args=args)
        drop_reap_index(op, name)
        drop_claim_index(op, name)
        drop_job_columns(op, name, mixin, PriorityMixin)

    assert column_names(engine, name) == ["id", name, "note"]
    assert index_names(engine, name) == set()
