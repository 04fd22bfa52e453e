"""Batches whose commit is in doubt, and errors that another try may mend."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from sqlalchemy import (
    Engine,
    MetaData,
    Pool,
    SingletonThreadPool,
    StaticPool,
    create_engine,
    delete,
)
from sqlalchemy.exc import IntegrityError, OperationalError

from sa_jobqueue.bulk import (
    BatchInDoubt,
    BulkLoad,
    DatabaseLog,
    FileLog,
    InsertSource,
    Log,
    load_tables,
)
from sa_jobqueue.bulk.log import INSERT_IN_DOUBT, REMOVED
from sa_jobqueue.bulk.sources.row_writer import TRIES
from sa_jobqueue.bulk.states import CANCELLED, CLEANING
from tests.bulk.models import Item
from tests.bulk.sources.support import failing_commits
from tests.bulk.support import add_items, expected, items, killed_in_commit, load_of, texts


@pytest.mark.parametrize("committed", [True, False])
@pytest.mark.parametrize("batch", [0, 1, 3])
@pytest.mark.parametrize("then", ["run", "rollback"])
def test_a_load_looks_whether_a_batch_in_doubt_was_committed(
    engine: Engine,
    log: FileLog,
    batch: int,
    committed: bool,
    then: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    killed_in_commit(monkeypatch, load_of(engine, log).run, batch, committed=committed)
    assert len(texts(engine)) == min(3 * (batch + committed), 10)

    load = load_of(engine, log)
    getattr(load, then)()

    assert texts(engine) == (expected(10) if then == "run" else {})
    assert load.state is (CLEANING if then == "run" else CANCELLED)


@pytest.mark.parametrize("committed", [True, False])
@pytest.mark.parametrize("then", ["restore", "rollback"])
def test_a_rollback_that_was_killed_leaves_no_doubt_either(
    engine: Engine,
    log: FileLog,
    committed: bool,
    then: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    load_of(engine, log).run()
    killed_in_commit(
        monkeypatch, load_of(engine, log).rollback, 1, committed=committed, mark=REMOVED
    )
    assert len(texts(engine)) == (3 if committed else 6)

    getattr(load_of(engine, log), then)()

    assert texts(engine) == (expected(10) if then == "restore" else {})


@pytest.mark.parametrize("then", ["run", "rollback"])
def test_a_batch_that_is_neither_whole_nor_missing_is_left_alone(
    engine: Engine, log: FileLog, then: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed_in_commit(monkeypatch, load_of(engine, log).run, 1, committed=False)
    add_items(engine, 4)

    with pytest.raises(BatchInDoubt, match=r"rows 3 to 5\), and 1 of its 3 rows are in bulk_item"):
        getattr(load_of(engine, log), then)()

    assert texts(engine)[4] == "foreign"
    assert 5 not in texts(engine)


def test_a_batch_in_doubt_whose_rows_others_have_deleted_is_inserted_again(
    engine: Engine, log: FileLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed_in_commit(monkeypatch, load_of(engine, log).run, 2, committed=True)
    with engine.begin() as connection:
        connection.execute(delete(Item))

    load_of(engine, log).run()

    assert texts(engine) == expected(4, first=6)


def test_an_error_that_a_retry_may_mend_is_retried(
    engine: Engine, log: FileLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sa_jobqueue.bulk.sources.row_writer.is_transient", lambda error: True)
    own = create_engine(engine.url)
    failing_commits(own, monkeypatch, OperationalError("COMMIT", None, Exception("deadlock")), 2)

    load_of(own, log, items(3)).run()

    assert texts(engine) == expected(3)
    own.dispose()


def test_an_error_that_no_retry_mends_is_raised(
    engine: Engine, log: FileLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr("sa_jobqueue.bulk.sources.row_writer.is_transient", lambda error: True)
    monkeypatch.setattr("sa_jobqueue.bulk.sources.row_writer.time.sleep", pauses.append)
    own = create_engine(engine.url)
    error = OperationalError("COMMIT", None, Exception("deadlock"))
    failing_commits(own, monkeypatch, error, TRIES + 1)

    with pytest.raises(OperationalError, match="deadlock"):
        load_of(own, log, items(3)).run()

    assert len(pauses) == TRIES - 1
    own.dispose()


@pytest.mark.only_on("sqlite")
def test_a_commit_that_a_reader_prevented_is_not_repeated_by_the_retry(
    tmp_path: Path, log: FileLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = create_engine(f"sqlite:///{tmp_path / 'own.db'}", connect_args={"timeout": 0})
    Item.metadata.create_all(own)
    add_items(own, 1)
    reader = sqlite3.connect(tmp_path / "own.db")
    reading = reader.execute("SELECT 1 UNION ALL SELECT id FROM bulk_item UNION ALL SELECT 2")
    assert [reading.fetchone(), reading.fetchone()] == [(1,), (1,)]
    pauses: list[float] = []

    def end_reading(seconds: float) -> None:
        pauses.append(seconds)
        reading.close()

    monkeypatch.setattr("sa_jobqueue.bulk.sources.row_writer.time.sleep", end_reading)

    load_of(own, log, items(3), on_existing="keep").run()

    assert pauses
    assert texts(own) == {**expected(3), 1: "foreign"}
    load_of(own, log, items(3), on_existing="keep").rollback()
    assert texts(own) == {1: "foreign"}
    reader.close()
    own.dispose()


def test_a_connection_that_is_lost_in_its_commit_leaves_a_doubt(
    engine: Engine, log: FileLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = create_engine(engine.url)
    gone = OperationalError("COMMIT", None, Exception("gone"), connection_invalidated=True)
    failing_commits(own, monkeypatch, gone, 1)

    with pytest.raises(OperationalError, match="gone"):
        load_of(own, log).run()

    log.open()
    assert log.marks[0] == INSERT_IN_DOUBT
    log.close()
    own.dispose()


def test_a_batch_that_the_server_refused_is_not_in_doubt(
    engine: Engine, log_beside: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = create_engine(engine.url)
    failing_commits(own, monkeypatch, IntegrityError("COMMIT", None, Exception("deferred")), 1)
    refused = BulkLoad(InsertSource(own, Item, items(3)), log_beside)
    with pytest.raises(IntegrityError):
        refused.run()
    add_items(engine, 0, 1, 2)

    refused.rollback()

    assert texts(engine) == dict.fromkeys((0, 1, 2), "foreign")
    own.dispose()


def test_a_batch_is_one_transaction_even_with_autocommit(engine: Engine, log: FileLog) -> None:
    add_items(engine, 5)
    options = {"isolation_level": "AUTOCOMMIT"}

    with pytest.raises(IntegrityError):
        load_of(engine.execution_options(**options), log, copy=False).run()

    assert texts(engine) == {**expected(3), 5: "foreign"}


def test_update_and_rollback_of_a_source_by_itself_can_be_repeated(engine: Engine) -> None:
    source = InsertSource(engine, Item, items(3))
    (batch,) = source.divide()

    source.update(batch)
    source.update(batch)
    assert texts(engine) == expected(3)
    source.rollback(batch)
    source.rollback(batch)

    assert texts(engine) == {}


@pytest.mark.parametrize("pool", [StaticPool, SingletonThreadPool])
@pytest.mark.parametrize("in_database", [True, False])
def test_a_database_in_memory_is_loaded_too(
    log: FileLog, pool: type[Pool], in_database: bool
) -> None:
    engine = create_engine("sqlite://", poolclass=pool)
    Item.metadata.create_all(engine)
    load_tables(MetaData()).create_all(engine)
    source = InsertSource(engine, Item, items(10), batch_size=3)
    load = BulkLoad(source, DatabaseLog(engine) if in_database else log)

    load.run()

    assert texts(engine) == expected(10)
    load.rollback()
    assert texts(engine) == {}
    engine.dispose()
