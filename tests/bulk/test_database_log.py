"""A log in the loaded database: a batch and its mark are one transaction."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, MetaData, create_engine, delete, event, func, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session
from sqlalchemy.schema import CreateSchema, DropSchema

from sa_jobqueue import LockLost, NamedLock
from sa_jobqueue.bulk import (
    BrokenLog,
    BulkLoad,
    DatabaseLog,
    DivisibleSource,
    InsertSource,
    Metadata,
    load_tables,
)
from tests.support import statements_seen

from .fakes import Killed, Numbers
from .models import Base, Item
from .support import Mortal, add_items, expected, items, load_of, texts

TABLES = load_tables(Base.metadata)


def left(engine: Engine) -> list[int]:
    """Count what is in the two tables."""
    with Session(engine) as session:
        counts = (select(func.count()).select_from(table) for table in vars(TABLES).values())
        return [session.execute(count).scalar_one() for count in counts]


@pytest.mark.parametrize("committed", [True, False])
@pytest.mark.parametrize("then", ["run", "rollback"])
def test_no_batch_is_ever_in_doubt(engine: Engine, committed: bool, then: str) -> None:
    mortal = Mortal(engine)
    mortal.die(batch=2, committed=committed)
    with pytest.raises(Killed):
        load_of(mortal.engine, DatabaseLog(mortal.engine), on_existing="keep").run()
    load = load_of(engine, DatabaseLog(engine))
    assert (load.state, load.status().inserted) == ("BLOCKED", 1 + committed)

    with statements_seen(engine) as seen:
        getattr(load, then)()

    assert not [statement for statement in seen if statement.startswith("SELECT bulk_item")]
    assert texts(engine) == (expected(10) if then == "run" else {})
    load.rollback()
    load.clean()
    assert left(engine) == [0, 0]
    mortal.engine.dispose()


def test_two_loads_know_nothing_of_each_other(engine: Engine) -> None:
    add_items(engine, 100, 101)
    first = load_of(engine, DatabaseLog(engine, "a"))
    second = load_of(engine, DatabaseLog(engine, "b"), items(5, 100), on_existing="keep")
    first.prepare()

    second.run()
    first.run()

    assert (first.status().inserted, second.status().inserted) == (4, 2)
    first.rollback()
    first.clean()
    assert set(texts(engine)) == set(range(100, 105))
    second.rollback()
    assert texts(engine) == dict.fromkeys((100, 101), "foreign")


class Long(DivisibleSource[str]):
    """A batch that is longer than MySQL's TEXT."""

    taken_back: list[str]

    def metadata(self) -> Metadata:
        return Metadata(total=1, batch_size=1, details={"details": "d" * 10_000})

    def divide(self) -> Iterator[str]:
        yield "r" * 70_000

    def update(self, batch: str) -> None:
        pass

    def rollback(self, batch: str) -> None:
        self.taken_back.append(batch)


def test_long_values_are_stored_whole(engine: Engine) -> None:
    source = Long()
    source.taken_back = []
    load = BulkLoad(source, DatabaseLog(engine, "n" * 100))

    load.run()
    load.rollback()

    assert source.taken_back == ["r" * 70_000]


@pytest.mark.only_on("sqlite")
def test_many_batches_are_read_page_by_page(engine: Engine) -> None:
    load = BulkLoad(Numbers(101, 1), DatabaseLog(engine))
    load.run()

    with statements_seen(engine) as seen:
        load.rollback()

    assert [batch[0] for batch in load.source.rolled_back] == list(range(100, -1, -1))
    assert len([statement for statement in seen if "bulk_load_batch.redo" in statement]) == 2


def test_a_log_in_another_database_has_doubts_and_settles_them(
    engine: Engine, tmp_path: Path
) -> None:
    other = create_engine(f"sqlite:///{tmp_path / 'other.db'}")
    Base.metadata.create_all(other)
    mortal = Mortal(other)

    for batch, committed in ((2, True), (1, False)):
        mortal.die(batch=batch, committed=committed)
        with pytest.raises(Killed):
            load_of(mortal.engine, DatabaseLog(engine), on_existing="keep").run()
    load = load_of(other, DatabaseLog(engine))
    load.run()

    assert texts(other) == expected(10)
    assert load.status().inserted == 4
    for used in (other, mortal.engine):
        used.dispose()


def test_a_lock_that_is_lost_hides_no_other_error(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(lock: NamedLock) -> None:
        release(lock)
        raise LockLost("its connection is gone")

    release = NamedLock.release
    monkeypatch.setattr(NamedLock, "release", lost)
    add_items(engine, 4)

    with pytest.raises(IntegrityError):
        load_of(engine, DatabaseLog(engine)).run()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (delete(TABLES.batches).where(TABLES.batches.c.number == 1), "has no batch 1 of the load"),
        (update(TABLES.loads).values(version=2), "has the format 2; this release reads 1"),
    ],
)
def test_a_log_of_another_format_or_with_a_gap_is_refused(
    engine: Engine, change: Any, message: str
) -> None:
    load = load_of(engine, DatabaseLog(engine))
    load.run()
    with engine.begin() as connection:
        connection.execute(change)

    with pytest.raises(BrokenLog, match=message):
        load.rollback()
    with pytest.raises(BrokenLog, match=message):  # the first has freed the lock
        load.rollback()


@pytest.mark.only_on("mysql", "mariadb")
def test_a_name_that_the_database_takes_for_another_is_refused(engine: Engine) -> None:
    load_of(engine, DatabaseLog(engine, "may")).run()

    with pytest.raises(BrokenLog, match="There is a load 'may', and for this database 'May' is"):
        load_of(engine, DatabaseLog(engine, "May")).rollback()


@pytest.mark.only_on("postgresql")
def test_the_tables_may_be_in_a_schema_which_the_engine_may_translate(engine: Engine) -> None:
    tenants = [
        engine.execution_options(schema_translate_map={"tenant": f"bulk_logs_{number}"})
        for number in (1, 2)
    ]
    tables = load_tables(MetaData(schema="tenant"))
    assert load_tables(tables.loads.metadata) == tables
    for number, tenant in enumerate(tenants, start=1):
        with engine.begin() as connection:
            connection.execute(CreateSchema(f"bulk_logs_{number}"))
        tables.create_all(tenant)

    for number, tenant in enumerate(tenants):
        source = InsertSource(engine, Item, items(3, number * 100))
        BulkLoad(source, DatabaseLog(tenant, tables=tables)).run()

    assert len(texts(engine)) == 6
    with engine.begin() as connection:
        for number in (1, 2):
            connection.execute(DropSchema(f"bulk_logs_{number}", cascade=True))


@pytest.mark.parametrize("table", ["bulk_load_batch", "bulk_load"])
def test_a_killed_clean_leaves_the_log_as_it_was(engine: Engine, table: str) -> None:
    load_of(engine, DatabaseLog(engine)).run()
    mortal = Mortal(engine)

    @event.listens_for(mortal.engine, "after_cursor_execute")
    def die(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        if statement.startswith(f"DELETE FROM {table} "):
            raise Killed

    with pytest.raises(Killed):
        load_of(mortal.engine, DatabaseLog(mortal.engine)).clean()

    assert left(engine) == [1, 4]
    mortal.engine.dispose()
