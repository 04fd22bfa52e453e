"""A load that is killed at any step goes on, or is rolled back; servers end what is left of it."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, delete
from sqlalchemy.exc import IntegrityError

from sa_jobqueue import LockTimeout
from sa_jobqueue.bulk import BatchInDoubt, DatabaseLog, FileLog, Log
from tests.support import SERVERS

from .fakes import Killed
from .models import Item
from .support import Mortal, add_items, expected, items, load_of, texts


@pytest.fixture
def mortal(engine: Engine) -> Iterator[Mortal]:
    mortal = Mortal(engine)
    yield mortal
    mortal.engine.dispose()


@pytest.mark.parametrize("killed", ["run", "rollback"])
def test_a_load_that_is_killed_at_any_step_goes_on_or_is_rolled_back(
    engine: Engine, mortal: Mortal, new_log: Callable[[], Log], killed: str, full: bool
) -> None:
    """In CI every second step, with --full each of them in both ways."""
    add_items(engine, 1)
    options: dict[str, Any] = {"rows": items(5), "on_existing": "keep"}
    first = 1 + (engine.dialect.name in ("postgresql", "mysql"))
    ended, tries, then = False, 0, "rollback"

    while not ended:
        if killed == "rollback":
            load_of(engine, new_log(), **options).run()
        then = "run" if then == "rollback" else "rollback"
        mortal.die(step=1 + tries // 2 if full else first + 2 * tries)
        tries += 1
        dying = load_of(mortal.engine, in_database_of(mortal, new_log()), **options)
        with suppress(Killed):
            getattr(dying, killed)()
            ended = True
        load = load_of(engine, new_log(), **options)
        if killed == "run" or load.state != "CANCELLED":
            getattr(load, then)()
            mine = expected(5) if then == "run" else {}
            assert texts(engine) == {**mine, 1: "foreign"}
        load.rollback()
        assert texts(engine) == {1: "foreign"}
        load.clean()

    assert tries > 2


def in_database_of(mortal: Mortal, log: Log) -> Log:
    """Give a log in the database to the process that dies."""
    return DatabaseLog(mortal.engine) if isinstance(log, DatabaseLog) else log


# -- batches in doubt ---------------------------------------------------


def killed_in_second_batch(mortal: Mortal, log: Log, *, committed: bool) -> None:
    """Kill a load of ten items, three a batch."""
    mortal.die(batch=2, committed=committed)
    with pytest.raises(Killed):
        load_of(mortal.engine, in_database_of(mortal, log), on_existing="keep").run()


@pytest.mark.parametrize("then", ["run", "rollback"])
def test_a_batch_that_is_neither_whole_nor_missing_is_left_alone_by_a_file_log(
    engine: Engine, mortal: Mortal, new_log: Callable[[], Log], then: str
) -> None:
    killed_in_second_batch(mortal, new_log(), committed=False)
    add_items(engine, 4)

    if isinstance(new_log(), FileLog):
        with pytest.raises(BatchInDoubt, match=r"rows 3 to 5\), and 1 of its 3 rows are in bulk_i"):
            getattr(load_of(engine, new_log()), then)()
        assert 5 not in texts(engine)
    else:
        getattr(load_of(engine, new_log(), on_existing="keep"), then)()

    assert texts(engine)[4] == "foreign"


def test_rows_that_were_worked_off_are_inserted_again_by_a_file_log_alone(
    engine: Engine, mortal: Mortal, new_log: Callable[[], Log]
) -> None:
    killed_in_second_batch(mortal, new_log(), committed=True)
    with engine.begin() as connection:
        connection.execute(delete(Item))

    load_of(engine, new_log()).run()

    again = expected(3, first=3) if isinstance(new_log(), FileLog) else {}
    assert texts(engine) == {**again, **expected(4, first=6)}


@pytest.mark.parametrize("then", ["run", "rollback"])
def test_a_batch_that_the_server_refused_is_in_no_doubt(
    engine: Engine, mortal: Mortal, new_log: Callable[[], Log], then: str
) -> None:
    refusal = mortal.engine.dialect.loaded_dbapi.IntegrityError("deferred")
    mortal.die(batch=2, error=refusal)
    with pytest.raises(IntegrityError) as raised:
        load_of(mortal.engine, in_database_of(mortal, new_log()), on_existing="keep").run()
    assert "Nothing was written of the batch with rows 3 to 5." in raised.value.__notes__
    add_items(engine, 3, 4)

    load = load_of(engine, new_log(), on_existing="keep")
    getattr(load, then)()

    assert set(texts(engine)) == (set(range(10)) if then == "run" else {3, 4})
    load.rollback()
    assert texts(engine) == dict.fromkeys((3, 4), "foreign")


@pytest.mark.only_on("sqlite")
def test_a_commit_that_a_reader_prevents_is_tried_again(tmp_path: Path, log: FileLog) -> None:
    own = create_engine(f"sqlite:///{tmp_path / 'own.db'}", connect_args={"timeout": 0})
    Item.metadata.create_all(own)
    add_items(own, 1)
    reader = sqlite3.connect(tmp_path / "own.db", check_same_thread=False)
    reading = reader.execute("SELECT 1 UNION ALL SELECT id FROM bulk_item UNION ALL SELECT 2")
    assert [reading.fetchone(), reading.fetchone()] == [(1,), (1,)]
    ending = threading.Timer(0.05, reading.close)
    ending.start()

    load_of(own, log, items(3), on_existing="keep").run()

    ending.join()
    assert texts(own) == {**expected(3), 1: "foreign"}
    load_of(own, log, items(3), on_existing="keep").rollback()
    assert texts(own) == {1: "foreign"}
    reader.close()
    own.dispose()


# -- what a server still does for a killed process ----------------------


@pytest.fixture
def finish_lingering(mortal: Mortal, new_log: Callable[[], Log]) -> Iterator[Callable[[], None]]:
    """A process is gone, and its server is about to commit the second batch: let it do so."""
    committing, go_on = threading.Event(), threading.Event()

    def linger() -> None:
        committing.set()
        assert go_on.wait(20)

    def run() -> None:
        with pytest.raises(Killed):
            load.run()

    def finish() -> None:
        go_on.set()
        thread.join(20)

    mortal.die(batch=2, committed=True, first=linger)
    load = load_of(mortal.engine, new_log(), on_existing="keep")
    thread = threading.Thread(target=run)
    thread.start()
    assert committing.wait(20)
    load.log.close()  # as the lock of a killed process is freed
    yield finish
    finish()


@pytest.mark.only_on(*SERVERS)
@pytest.mark.parametrize("then", ["restore", "rollback"])
def test_a_load_waits_until_the_server_has_ended_what_a_killed_load_began(
    engine: Engine, new_log: Callable[[], Log], finish_lingering: Callable[[], None], then: str
) -> None:
    load = load_of(engine, new_log())
    load.wait = timedelta(milliseconds=100)
    with pytest.raises(LockTimeout, match="The server still works for this load, as process"):
        getattr(load, then)()
    ending = threading.Timer(0.2, finish_lingering)
    ending.start()

    load.wait = timedelta(seconds=20)
    getattr(load, then)()

    ending.join()
    assert texts(engine) == (expected(10) if then == "restore" else {})
