"""Rows are loaded into tables and columns of any name, by INSERT and by COPY."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Column, Engine, Integer, MetaData, String, Table, select
from sqlalchemy.orm import registry

from sa_jobqueue import JobMixin
from sa_jobqueue.bulk import BulkLoad, EnqueueSource, FileLog, InsertSource

NAMES = ["100%", "50%s", "$sa$", "it's", 'say "so"', "a:b", "select", "Mixed Case"]


def mapped(name: str, *bases: type) -> Any:
    """Map a class to a table of this name, with a column of this name."""
    table = Table(
        f"bulk {name}",
        MetaData(),
        Column("id", Integer, primary_key=True, autoincrement=False),
        Column(name, String(20), key="text"),
    )
    if not bases:
        kind = type("Plain", (), {})
        registry(metadata=table.metadata).map_imperatively(kind, table)
        return kind
    base = registry().generate_base()
    body = {"__tablename__": table.name, "id": Column(Integer, primary_key=True)}
    return type("Job", (*bases, base), body | {"text": Column(name, String(20))})


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("copy", [True, False])
def test_rows_are_loaded_and_rolled_back(
    engine: Engine, log: FileLog, name: str, copy: bool
) -> None:
    kind = mapped(name)
    table = kind.__table__
    table.create(engine)
    rows = [{"id": number, "text": f"{number}%"} for number in range(5)]
    try:
        load = BulkLoad(InsertSource(engine, kind, rows, batch_size=2, copy=copy), log)
        load.run()

        with engine.connect() as connection:
            found = connection.execute(select(table.c.text).order_by(table.c.id)).scalars()
            assert list(found) == [row["text"] for row in rows]

        load.rollback()
        with engine.connect() as connection:
            assert connection.execute(select(table)).all() == []
    finally:
        table.drop(engine)


@pytest.mark.parametrize("name", NAMES)
def test_jobs_are_enqueued(engine: Engine, log: FileLog, name: str) -> None:
    kind = mapped(name, JobMixin)
    kind.metadata.create_all(engine)
    try:
        rows = [{"id": 1, "text": "a"}, {"id": 2, "text": "b"}]
        BulkLoad(EnqueueSource(engine, kind, rows, batch_size=1), log).run()

        with engine.connect() as connection:
            statuses = connection.execute(select(kind.status)).scalars().all()
            assert statuses == ["unclaimed"] * 2
    finally:
        kind.metadata.drop_all(engine)
