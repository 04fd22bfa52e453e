"""A log in the loaded database: a batch and its mark are one transaction."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Engine, MetaData, create_engine, delete, inspect, update
from sqlalchemy.orm import Session

from sa_jobqueue import ArgumentError, BrokenLog, LockTimeout
from sa_jobqueue.bulk import BulkLoad, DatabaseLog, InsertSource, LoadTables, load_tables
from sa_jobqueue.bulk.log import INSERTED, REMOVED
from sa_jobqueue.bulk.states import BLOCKED, CANCELLED, CLEANING
from tests.support import statements_seen

from .models import Item
from .support import add_items, expected, items, killed_in_commit, texts


@pytest.fixture
def tables(engine: Engine) -> Iterator[LoadTables]:
    """The log's tables, empty."""
    found = load_tables(MetaData())
    found.loads.metadata.drop_all(engine)
    found.create_all(engine)
    yield found
    found.loads.metadata.drop_all(engine)


def load_of(engine: Engine, name: str = "load", **options: Any) -> BulkLoad[Any]:
    options = {"batch_size": 3, **options}
    rows = options.pop("rows", items(10))
    workers = options.pop("workers", 1)
    source = InsertSource(engine, Item, rows, **options)
    return BulkLoad(source, DatabaseLog(engine, name), workers=workers)


@pytest.mark.usefixtures("tables")
@pytest.mark.parametrize("workers", [1, 3])
def test_a_load_runs_and_is_rolled_back_and_cleaned(engine: Engine, workers: int) -> None:
    load = load_of(engine, rows=items(100), workers=workers)

    load.run()
    assert texts(engine) == expected(100)
    assert load.status().inserted == 34
    load.rollback()
    assert (texts(engine), load.state) == ({}, CANCELLED)
    load.clean()

    assert load_of(engine).state == "STARTING"


@pytest.mark.usefixtures("tables")
@pytest.mark.parametrize("committed", [True, False])
@pytest.mark.parametrize("then", ["run", "rollback"])
def test_no_batch_is_ever_in_doubt(
    engine: Engine, committed: bool, then: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed_in_commit(monkeypatch, load_of(engine).run, 1, committed=committed)
    load = load_of(engine)
    assert load.state is BLOCKED
    assert load.status().inserted == 1 + committed

    with statements_seen(engine) as seen:
        getattr(load, then)()

    assert not [statement for statement in seen if statement.startswith("SELECT bulk_item")]
    assert texts(engine) == (expected(10) if then == "run" else {})


@pytest.mark.usefixtures("tables")
def test_a_row_that_was_worked_off_is_not_inserted_again(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed_in_commit(monkeypatch, load_of(engine).run, 1, committed=True)
    with engine.begin() as connection:
        connection.execute(delete(Item).where(Item.id == 4))

    load_of(engine).run()

    assert set(texts(engine)) == set(range(10)) - {4}


@pytest.mark.usefixtures("tables")
def test_foreign_rows_of_a_batch_that_was_not_committed_are_not_deleted(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed_in_commit(monkeypatch, load_of(engine).run, 1, committed=False)
    add_items(engine, 3, 4, 5)

    load_of(engine).rollback()

    assert texts(engine) == dict.fromkeys((3, 4, 5), "foreign")


@pytest.mark.usefixtures("tables")
@pytest.mark.parametrize("committed", [True, False])
def test_a_restore_after_a_killed_rollback_is_exact(
    engine: Engine, committed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    load_of(engine).run()
    rollback = load_of(engine).rollback
    killed_in_commit(monkeypatch, rollback, 1, committed=committed, mark=REMOVED)

    load = load_of(engine)
    load.restore()

    assert texts(engine) == expected(10)
    assert load.state is CLEANING
    assert load.status().inserted == 4


@pytest.mark.usefixtures("tables")
def test_kept_rows_are_remembered(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    add_items(engine, 3, 9)
    load = load_of(engine, on_existing="keep")
    killed_in_commit(monkeypatch, load.run, 1, committed=True)

    load_of(engine, on_existing="keep").run()
    load_of(engine, on_existing="keep").rollback()

    assert set(texts(engine)) == {3, 9}


@pytest.mark.usefixtures("tables")
def test_two_loads_have_two_logs_and_one_load_one_manager(engine: Engine) -> None:
    first, second = load_of(engine, "a"), load_of(engine, "b", rows=items(5, 100))
    first.prepare()

    second.run()
    with pytest.raises(LockTimeout, match="Another manager works with the log 'a'"):
        load_of(engine, "a").rollback()

    first.insert()
    first.clean()
    assert texts(engine) == {**expected(10), **expected(5, 100)}
    assert second.status().inserted == 2


@pytest.mark.usefixtures("tables")
def test_a_log_beside_another_database_has_doubts_and_settles_them(
    engine: Engine, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = create_engine(f"sqlite:///{tmp_path / 'other.db'}")
    Item.metadata.create_all(other)

    def load() -> BulkLoad[Any]:
        source = InsertSource(other, Item, items(10), batch_size=3)
        return BulkLoad(source, DatabaseLog(engine))

    for batch, committed in ((1, True), (2, False)):
        killed_in_commit(monkeypatch, load().run, batch, committed=committed)
    load().run()

    assert texts(other) == expected(10)
    log = DatabaseLog(engine)
    log.open()
    assert log.marks.count(INSERTED) == 4
    log.close()
    other.dispose()


@pytest.mark.usefixtures("tables")
def test_a_log_of_another_format_or_with_a_gap_is_refused(
    engine: Engine, tables: LoadTables
) -> None:
    load_of(engine).run()
    with engine.begin() as connection:
        connection.execute(delete(tables.batches).where(tables.batches.c.number == 1))

    with pytest.raises(BrokenLog, match="has no batch 1 of the load 'load'"):
        load_of(engine).rollback()
    with engine.begin() as connection:
        connection.execute(update(tables.loads).values(version=2))

    with pytest.raises(BrokenLog, match="has the format 2"):
        load_of(engine).rollback()


def test_missing_tables_are_named_with_the_way_out(engine: Engine) -> None:
    load_tables(MetaData()).loads.metadata.drop_all(engine)

    with pytest.raises(BrokenLog, match=r"no table bulk_load\..*tables\.create_all\(engine\)"):
        load_of(engine).run()


def test_the_tables_are_made_once_in_a_metadata_and_under_any_name(engine: Engine) -> None:
    metadata = MetaData()

    made = load_tables(metadata, "imports")

    assert load_tables(metadata, "imports") == made
    assert set(metadata.tables) == {"imports", "imports_batch"}
    made.create_all(engine)
    log = DatabaseLog(engine, tables=made)
    BulkLoad(InsertSource(engine, Item, items(3)), log).run()
    with Session(engine) as session:
        assert session.query(made.batches).count() == 1
    metadata.drop_all(engine)
    assert not inspect(engine).has_table("imports")


@pytest.mark.usefixtures("tables")
@pytest.mark.only_on("mysql", "mariadb")
def test_a_name_that_is_another_load_to_the_server_is_refused(engine: Engine) -> None:
    with load_of(engine, "may") as load:
        load.prepare()
        source = InsertSource(engine, Item, items(3))

        with pytest.raises(BrokenLog, match="There is a load 'may', which this database does not"):
            BulkLoad(source, DatabaseLog(engine, "MAY")).run()


@pytest.mark.parametrize("name", ["", "x" * 101])
def test_a_name_that_does_not_fit_is_refused(name: str) -> None:
    with pytest.raises(ArgumentError, match="1 to 100 characters"):
        DatabaseLog(create_engine("sqlite://"), name)
