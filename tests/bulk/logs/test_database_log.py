"""A log in the loaded database: a batch and its mark are one transaction."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import (
    Column,
    Engine,
    Integer,
    MetaData,
    Table,
    create_engine,
    delete,
    event,
    inspect,
    update,
)
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session
from sqlalchemy.schema import CreateSchema, DropSchema

from sa_jobqueue import ArgumentError, LockLost, LockTimeout, NamedLock, named_lock
from sa_jobqueue.bulk import BrokenLog, BulkLoad, DatabaseLog, InsertSource, LoadTables, load_tables
from sa_jobqueue.bulk.log import INSERT_IN_DOUBT, INSERTED, NOTHING, REMOVED, Head
from sa_jobqueue.bulk.states import BLOCKED, CANCELLED, CLEANING, INSERTING, PREPARING
from tests.bulk.fakes import Killed
from tests.bulk.models import Item
from tests.bulk.support import add_items, expected, items, killed_in_commit, texts
from tests.support import statements_seen


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
    assert left(engine) == (0, 0)


def left(engine: Engine) -> tuple[int, int]:
    """Count what is in the two tables."""
    tables = load_tables(MetaData())
    with Session(engine) as session:
        return session.query(tables.loads).count(), session.query(tables.batches).count()


@pytest.mark.usefixtures("tables")
@pytest.mark.parametrize("table", ["bulk_load_batch", "bulk_load"])
def test_a_killed_clean_leaves_the_log_as_it_was(engine: Engine, table: str) -> None:
    load_of(engine).run()
    own = create_engine(engine.url)

    @event.listens_for(own, "after_cursor_execute")
    def die(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        if statement.startswith(f"DELETE FROM {table} "):
            raise Killed

    with pytest.raises(Killed):
        load_of(own).clean()
    assert left(engine) == (1, 4)

    load_of(engine).clean()

    assert left(engine) == (0, 0)
    own.dispose()


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
@pytest.mark.parametrize("finished", [[4], [3, 4, 5], [0, 1, 2, 3, 4, 5]])
def test_rows_that_were_worked_off_are_not_inserted_again(
    engine: Engine, finished: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    killed_in_commit(monkeypatch, load_of(engine).run, 1, committed=True)
    with engine.begin() as connection:
        connection.execute(delete(Item).where(Item.id.in_(finished)))

    load_of(engine).run()

    assert set(texts(engine)) == set(range(10)) - set(finished)


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
def test_two_loads_have_two_logs_and_one_load_has_one_manager(engine: Engine) -> None:
    first, second = load_of(engine, "a"), load_of(engine, "b", rows=items(5, 100))
    first.prepare()

    second.run()
    with pytest.raises(LockTimeout, match="Another manager works with the log 'a'"):
        load_of(engine, "a").rollback()

    first.insert()
    first.clean()
    assert texts(engine) == {**expected(10), **expected(5, 100)}
    assert second.status().inserted == 2
    second.rollback()
    assert texts(engine) == expected(10)


@pytest.mark.usefixtures("tables")
def test_two_loads_know_nothing_of_each_others_batches(engine: Engine) -> None:
    add_items(engine, 100, 101)
    other = load_of(engine, "b", rows=items(5, 100), on_existing="keep")
    other.run()
    load = load_of(engine, "a", on_existing="keep")
    load.prepare()
    load.close()  # as a load that was killed while PREPARING

    load.run()
    load.rollback()

    assert other.status().inserted == 2
    other.rollback()
    assert texts(engine) == dict.fromkeys((100, 101), "foreign")


@pytest.mark.usefixtures("tables")
def test_redo_is_read_page_by_page(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sa_jobqueue.bulk.logs.database_log._PAGE", 2)
    logs = DatabaseLog(engine, "a"), DatabaseLog(engine, "b")
    for log in logs:
        log.begin(Head(id=log.name, state=PREPARING, metadata={}))
        for number in range(7):
            log.add_redo(number, f"{log.name}{number}")

    forwards = list(logs[0].redo(lambda number: number != 2))
    backwards = list(logs[0].redo(lambda number: number != 2, backwards=True))

    assert forwards == [(number, f"a{number}") for number in (0, 1, 3, 4, 5, 6)]
    assert backwards == forwards[::-1]


@pytest.mark.usefixtures("tables")
def test_long_values_are_stored_whole(engine: Engine) -> None:
    head = Head(
        id="x" * 32,
        state=PREPARING,
        metadata={"details": "d" * 10_000},
        workers=3,
        cleaning=True,
    )
    log = DatabaseLog(engine, "n" * 100)

    log.begin(head)
    log.add_redo(0, "r" * 70_000)
    log.before_commit(0, INSERTED, None, "k" * 70_000)

    again = DatabaseLog(engine, "n" * 100)
    assert again.open() == head
    assert list(again.redo(lambda number: True)) == [(0, "r" * 70_000)]
    assert again.kept(0) == "k" * 70_000
    again.close()


@pytest.mark.usefixtures("tables")
def test_a_mark_that_was_not_committed_keeps_its_former_value(engine: Engine) -> None:
    log, again = DatabaseLog(engine), DatabaseLog(engine)
    log.begin(Head(id="a", state=INSERTING, metadata={}))
    log.add_redo(0, "a batch")

    log.before_commit(0, INSERTED, None)
    assert log.marks[0] == INSERT_IN_DOUBT
    log.not_committed(0, NOTHING)

    again.peek()
    assert (log.marks[0], again.marks[0]) == (NOTHING, NOTHING)


@pytest.mark.usefixtures("tables")
def test_a_new_load_asks_for_no_kept_rows(engine: Engine) -> None:
    with statements_seen(engine) as seen:
        load_of(engine, on_existing="keep").run()

    assert not [statement for statement in seen if statement.startswith("SELECT bulk_load_batch.k")]


@pytest.mark.usefixtures("tables")
def test_a_log_that_closes_or_fails_to_open_frees_its_lock(
    engine: Engine, tables: LoadTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    locks: list[NamedLock] = []

    def seen(*args: Any) -> NamedLock:
        locks.append(named_lock(*args))
        return locks[-1]

    monkeypatch.setattr("sa_jobqueue.bulk.logs.database_log.named_lock", seen)
    log = DatabaseLog(engine)
    log.begin(Head(id="a", state=PREPARING, metadata={}))

    log.open()
    assert [lock.held for lock in locks] == [True]
    log.close()
    log.close()
    assert [lock.held for lock in locks] == [False]
    with engine.begin() as connection:
        connection.execute(update(tables.loads).values(version=2))
    with pytest.raises(BrokenLog):
        log.open()

    assert [lock.held for lock in locks] == [False, False]


@pytest.mark.usefixtures("tables")
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
        load_of(engine).run()


@pytest.mark.usefixtures("tables")
@pytest.mark.parametrize("change", ["open", "close"])
def test_a_reader_sees_a_call_that_begins_or_ends_as_under_way(
    engine: Engine, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    working, looking = DatabaseLog(engine), DatabaseLog(engine)
    head = Head(id="a", state=INSERTING, metadata={})
    working.begin(head)
    if change == "close":
        working.open()
    read = looking._read

    def read_meanwhile() -> Head | None:
        found = read()
        getattr(working, change)()
        return found

    monkeypatch.setattr(looking, "_read", read_meanwhile)

    assert looking.peek() == (head, True)
    working.close()
    monkeypatch.undo()
    assert looking.peek() == (head, False)


def test_a_log_joins_every_engine_of_its_database(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'one.db'}"
    one, again, other = map(create_engine, (url, url, f"sqlite:///{tmp_path / 'other.db'}"))
    memory, other_memory = create_engine("sqlite://"), create_engine("sqlite://")

    assert DatabaseLog(one).shares_transactions(one)
    assert DatabaseLog(one).shares_transactions(again)
    assert not DatabaseLog(one).shares_transactions(other)
    assert DatabaseLog(memory).shares_transactions(
        memory.execution_options(isolation_level="AUTOCOMMIT")
    )
    assert not DatabaseLog(memory).shares_transactions(other_memory)


@pytest.mark.usefixtures("tables")
def test_a_log_in_another_database_has_doubts_and_settles_them(
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


@pytest.mark.parametrize("missing", ["loads", "batches"])
def test_missing_tables_are_named_with_the_way_out(
    engine: Engine, tables: LoadTables, missing: str
) -> None:
    table = getattr(tables, missing)
    table.drop(engine)

    with pytest.raises(BrokenLog, match=rf"no table {table}\..*tables\.create_all\(engine\)"):
        load_of(engine).run()


@pytest.mark.only_on("postgresql")
def test_the_tables_may_be_in_a_schema(engine: Engine) -> None:
    metadata = MetaData(schema="bulk_logs")
    made = load_tables(metadata)
    load_tables(MetaData()).loads.metadata.drop_all(engine)
    source = InsertSource(engine, Item, items(3))
    with engine.begin() as connection:
        connection.execute(CreateSchema("bulk_logs"))
    made.create_all(engine)

    BulkLoad(source, DatabaseLog(engine, tables=load_tables(metadata))).run()

    assert load_tables(metadata) == made
    assert texts(engine) == expected(3)
    with engine.begin() as connection:
        connection.execute(DropSchema("bulk_logs", cascade=True))


@pytest.mark.only_on("postgresql")
def test_the_schema_of_the_tables_may_be_translated(engine: Engine) -> None:
    load_tables(MetaData()).loads.metadata.drop_all(engine)
    tenants = [
        engine.execution_options(schema_translate_map={"tenant": f"bulk_logs_{number}"})
        for number in (1, 2)
    ]
    for number, tenant in enumerate(tenants, start=1):
        with engine.begin() as connection:
            connection.execute(CreateSchema(f"bulk_logs_{number}"))
        load_tables(MetaData(schema="tenant")).create_all(tenant)
    loads = [
        BulkLoad(
            InsertSource(engine, Item, items(3, number * 100)),
            DatabaseLog(tenant, tables=load_tables(MetaData(schema="tenant"))),
        )
        for number, tenant in enumerate(tenants)
    ]

    for load in loads:
        load.prepare()  # each tenant's load of this name has a lock of its own
    for load in loads:
        load.insert()
        load.close()

    assert len(texts(engine)) == 6
    with engine.begin() as connection:
        for number in (1, 2):
            connection.execute(DropSchema(f"bulk_logs_{number}", cascade=True))


def test_the_tables_are_made_once_in_a_metadata_and_under_any_name(engine: Engine) -> None:
    metadata = MetaData()
    Table("of_others", metadata, Column("id", Integer))

    made = load_tables(metadata, "imports")

    assert load_tables(metadata, "imports") == made
    assert set(metadata.tables) == {"imports", "imports_batch", "of_others"}
    made.create_all(engine)
    assert not inspect(engine).has_table("of_others")
    log = DatabaseLog(engine, tables=made)
    usual = load_of(engine, rows=items(3, 100))
    load_tables(MetaData()).create_all(engine)
    usual.prepare()  # of the same name, with another log
    BulkLoad(InsertSource(engine, Item, items(3)), log).run()
    usual.close()
    with Session(engine) as session:
        assert session.query(made.batches).count() == 1
    metadata.drop_all(engine)
    assert not inspect(engine).has_table("imports")


@pytest.mark.usefixtures("tables")
@pytest.mark.only_on("mysql", "mariadb")
def test_a_name_that_the_server_takes_for_another_loads_is_refused(engine: Engine) -> None:
    with load_of(engine, "may") as load:
        load.prepare()
        source = InsertSource(engine, Item, items(3))

        with pytest.raises(BrokenLog, match="There is a load 'may', and for this database"):
            BulkLoad(source, DatabaseLog(engine, "MAY")).run()


@pytest.mark.parametrize("name", ["", "x" * 101])
def test_a_name_that_does_not_fit_is_refused(name: str) -> None:
    with pytest.raises(ArgumentError, match="1 to 100 characters"):
        DatabaseLog(create_engine("sqlite://"), name)
