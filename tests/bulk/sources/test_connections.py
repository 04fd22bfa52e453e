"""A load waits for the connections of the process that was there before it."""

from __future__ import annotations

import threading
from datetime import timedelta
from time import sleep
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, insert

from sa_jobqueue import LockTimeout, UnsupportedDatabase
from sa_jobqueue.bulk import BulkLoad, FileLog, InsertSource
from sa_jobqueue.bulk.sources.connections import hold_slot, wait_for_slots
from sa_jobqueue.dialects import database_of
from tests.bulk.models import Item
from tests.bulk.sources.support import count
from tests.bulk.support import expected, items, killed_in_commit, load_of, texts
from tests.support import SERVERS


@pytest.mark.only_on(*SERVERS)
@pytest.mark.parametrize("then", ["restore", "rollback"])
def test_a_load_waits_for_what_the_server_still_does_for_a_killed_load(
    engine: Engine, log: FileLog, then: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed_in_commit(monkeypatch, load_of(engine, log).run, 1, committed=False)
    head, _ = log.peek()
    assert head is not None
    left = engine.connect()
    hold_slot(left, head.id, 0, timedelta(seconds=20))  # its own connection may still end
    doubtful = [{"id": number, "item_text": f"item {number}"} for number in (3, 4, 5)]
    left.execute(insert(Item), doubtful)  # sent, not yet answered
    impatient = load_of(engine, log)
    impatient.wait = timedelta(milliseconds=100)
    with pytest.raises(LockTimeout, match="The server still works for this load, as process"):
        getattr(impatient, then)()
    waiting = load_of(engine, log)
    waits = threading.Event()

    def wait_a_little(seconds: float) -> None:
        waits.set()
        sleep(seconds)

    monkeypatch.setattr("sa_jobqueue.bulk.sources.connections.time.sleep", wait_a_little)
    caller = threading.Thread(target=getattr(waiting, then))
    caller.start()
    assert waits.wait(20)

    left.commit()  # seconds after its client was killed
    left.detach()
    left.close()
    caller.join(20)

    assert texts(engine) == (expected(10) if then == "restore" else {})


@pytest.mark.only_on(*SERVERS)
def test_a_connection_holds_its_slot_while_it_inserts(engine: Engine, log: FileLog) -> None:
    source = InsertSource(engine, Item, items(3))
    other = engine.connect()

    with source.open_writer("a load", 1):
        hold_slot(other, "a load", 0, timedelta(0))
        with pytest.raises(LockTimeout):
            hold_slot(other, "a load", 1, timedelta(0))

    hold_slot(other, "a load", 1, timedelta(seconds=20))
    other.detach()
    other.close()


@pytest.mark.only_on(*SERVERS)
@pytest.mark.parametrize("then", ["restore", "rollback"])
def test_a_load_waits_for_all_earlier_connections_of_the_load(
    engine: Engine, log: FileLog, then: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for workers in (1, 3, 1):
        load = load_of(engine, log)
        load.workers = workers
        killed_in_commit(monkeypatch, load.run, 0, committed=False)
    head, _ = log.peek()
    assert head is not None
    left = engine.connect()
    hold_slot(left, head.id, 2, timedelta(seconds=20))
    load = load_of(engine, log)
    load.wait = timedelta(milliseconds=100)

    with pytest.raises(LockTimeout, match="The server still works for this load"):
        getattr(load, then)()

    left.detach()
    left.close()


@pytest.mark.only_on("postgresql")
def test_a_connection_that_waits_for_its_slot_or_has_it_is_in_no_transaction(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = engine.connect(), engine.connect()
    hold_slot(first, "a load", 0, timedelta(0))
    seen = [first.in_transaction()]

    def give_way(seconds: float) -> None:
        seen.append(second.in_transaction())
        first.detach()
        first.close()
        sleep(seconds)

    monkeypatch.setattr("sa_jobqueue.bulk.sources.connections.time.sleep", give_way)
    hold_slot(second, "a load", 0, timedelta(seconds=20))

    assert len(seen) > 1
    assert not any(seen)
    second.detach()
    second.close()


def test_the_time_limit_holds_for_all_connections_together(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[timedelta] = []
    monkeypatch.setattr(
        "sa_jobqueue.bulk.sources.connections.hold_slot", lambda *given: waits.append(given[-1])
    )

    wait_for_slots(engine, "a load", 3, timedelta(seconds=5))

    assert timedelta(seconds=5) > waits[0] > waits[1] > waits[2] > timedelta(0)


@pytest.mark.only_on(*SERVERS)
def test_the_server_notices_a_connection_that_has_fallen_silent(
    engine: Engine, log: FileLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    with engine.connect() as connection:
        database = type(database_of(connection))
    told: list[Connection] = []
    notice = database.notice_silence

    def see(self: Any, connection: Connection) -> None:
        told.append(connection)
        notice(self, connection)

    monkeypatch.setattr(database, "notice_silence", see)

    with InsertSource(engine, Item, []).open_writer("a load", 0):
        assert len(told) == 1


@pytest.mark.only_on(*SERVERS)
def test_a_pooler_in_between_is_refused(
    engine: Engine, log: FileLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    with engine.connect() as connection:
        database = type(database_of(connection))
    monkeypatch.setattr(database, "through_pooler", lambda self, connection: True)

    with pytest.raises(UnsupportedDatabase, match="goes through a connection pooler"):
        load_of(engine, log).run()

    assert texts(engine) == {}


class LiveRow(dict[str, Any]):
    """A row that counts how many rows are alive."""

    alive = most = 0

    def __init__(self, **values: Any) -> None:
        super().__init__(**values)
        LiveRow.alive += 1
        LiveRow.most = max(LiveRow.most, LiveRow.alive)

    def __del__(self) -> None:
        LiveRow.alive -= 1


@pytest.mark.parametrize("workers", [1, 4])
def test_no_more_rows_live_than_the_workers_need(
    engine: Engine, log: FileLog, workers: int
) -> None:
    LiveRow.most = 0
    rows = (LiveRow(id=number, text="a") for number in range(1_000))

    BulkLoad(InsertSource(engine, Item, rows, batch_size=10), log, workers=workers).run()

    assert count(engine, Item) == 1_000
    assert LiveRow.most <= 10 * (2 * workers + 3)
