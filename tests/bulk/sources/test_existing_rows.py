"""Rows that were there before a load are kept or updated, and survive its rollback."""

from __future__ import annotations

import sqlite3
import uuid
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from sa_jobqueue.bulk import BulkLoad, FileLog, InsertSource, Log
from sa_jobqueue.bulk.log import INSERTED, REMOVED
from sa_jobqueue.bulk.sources.destination import Destination
from sa_jobqueue.bulk.states import BLOCKED
from tests.bulk.models import Coded, Dog, Item, Named, Pair, Thing
from tests.bulk.sources.support import failing_commits, stored_things
from tests.bulk.support import add_items, expected, items, killed_in_commit, load_of, texts


def test_a_foreign_row_is_an_error_and_is_never_deleted(engine: Engine, log: FileLog) -> None:
    add_items(engine, 3, 4, 5, 6)
    load = load_of(engine, log)

    with pytest.raises(IntegrityError) as raised:
        load.run()

    assert "Nothing was inserted of the batch with rows 3 to 5." in raised.value.__notes__
    assert load.state is BLOCKED
    load.rollback()
    assert texts(engine) == dict.fromkeys((3, 4, 5, 6), "foreign")


def test_foreign_rows_of_batches_that_were_never_begun_are_not_deleted(
    engine: Engine, log: FileLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = load_of(engine, log)
    load.prepare()
    killed_in_commit(monkeypatch, load.insert, 0, committed=True)
    add_items(engine, 3, 4, 5, 6)

    load_of(engine, log).rollback()

    assert texts(engine) == dict.fromkeys((3, 4, 5, 6), "foreign")


@pytest.mark.parametrize("on_existing", ["keep", "update"])
@pytest.mark.parametrize("committed", [None, False, True])
def test_rows_that_were_there_are_kept_or_updated_and_survive_a_rollback(
    engine: Engine,
    log: FileLog,
    on_existing: Any,
    committed: bool | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    add_items(engine, 3, 4, 9)
    options = {"on_existing": on_existing}
    if committed is not None:
        killed_in_commit(monkeypatch, load_of(engine, log, **options).run, 1, committed=committed)

    load_of(engine, log, **options).run()

    there = {3: "foreign", 4: "foreign", 9: "foreign"} if on_existing == "keep" else {}
    assert texts(engine) == {**expected(10), **there}
    load_of(engine, log, **options).rollback()
    assert set(texts(engine)) == {3, 4, 9}


def test_rows_with_keys_of_two_columns_are_updated(engine: Engine, log: FileLog) -> None:
    old = [
        Pair(left=left, right=right, text="old") for left, right in ((1, "a"), (1, "b"), (2, "a"))
    ]
    with Session(engine) as session, session.begin():
        session.add_all(old)
    rows = [
        {"left": 1, "right": "a", "text": "new a"},
        {"left": 1, "right": "b", "text": "new b"},
        {"left": 2, "right": "a"},  # has no value to update
    ]

    BulkLoad(InsertSource(engine, Pair, rows, on_existing="update"), log).run()

    with Session(engine) as session:
        found = session.execute(select(Pair.text).order_by(Pair.left, Pair.right)).scalars()
        assert list(found) == ["new a", "new b", "old"]


def test_rows_in_two_tables_are_updated(engine: Engine, log: FileLog) -> None:
    with Session(engine) as session, session.begin():
        session.add(Dog(id=1, trick="old"))
    rows = [{"id": 1, "trick": "sit"}, {"id": 2, "trick": "roll"}, {"id": 3}]

    BulkLoad(InsertSource(engine, Dog, rows, on_existing="update"), log).run()

    with Session(engine) as session:
        found = session.execute(select(Dog.trick).order_by(Dog.id)).scalars()
        assert list(found) == ["sit", "roll", None]


@pytest.mark.parametrize("committed", [True, False])
def test_rows_that_were_there_survive_a_rollback_that_is_killed(
    engine: Engine, log: FileLog, committed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_items(engine, 3, 4)
    load_of(engine, log, on_existing="keep").run()
    rollback = load_of(engine, log).rollback
    killed_in_commit(monkeypatch, rollback, 1, committed=committed, mark=REMOVED)

    load_of(engine, log).rollback()

    assert texts(engine) == dict.fromkeys((3, 4), "foreign")


@pytest.mark.parametrize("committed", [True, False])
@pytest.mark.parametrize(("killed", "then"), [("run", "rollback"), ("rollback", "run")])
def test_rows_that_were_there_survive_a_call_that_is_killed_and_another_that_is_refused(
    engine: Engine,
    log_beside: Log,
    killed: str,
    then: str,
    committed: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    add_items(engine, 3, 4)

    def load(engine: Engine) -> BulkLoad[Any]:
        source = InsertSource(engine, Item, items(10), batch_size=3, on_existing="keep")
        return BulkLoad(source, log_beside)

    mark = INSERTED if killed == "run" else REMOVED
    if killed == "rollback":
        load(engine).run()
    call = getattr(load(engine), killed)
    killed_in_commit(monkeypatch, call, 1, committed=committed, mark=mark)
    own = create_engine(engine.url)
    with monkeypatch.context() as patched:
        failing_commits(own, patched, IntegrityError("COMMIT", None, Exception("deferred")), 1)
        with pytest.raises(IntegrityError):
            getattr(load(own), then)()

    getattr(load(engine), then)()

    there = dict.fromkeys((3, 4), "foreign")
    assert texts(engine) == ({**expected(10), **there} if then == "run" else there)
    own.dispose()


@pytest.mark.only_on("mysql", "mariadb")
@pytest.mark.parametrize("on_existing", ["keep", "update"])
def test_a_key_exists_if_the_server_compares_it_as_equal(
    engine: Engine, log: FileLog, on_existing: Any
) -> None:
    with Session(engine) as session, session.begin():
        session.add_all([Named(name="BOB", text="foreign"), Named(name="EVE", text="foreign")])
    rows = [{"name": name, "text": "new"} for name in ("ann", "bob", "Bab", "eve", "joe")]

    load = BulkLoad(InsertSource(engine, Named, rows, on_existing=on_existing), log)
    load.run()

    old = "foreign" if on_existing == "keep" else "new"
    there = {"BOB": old, "EVE": old}
    assert names(engine) == {"ann": "new", "Bab": "new", "joe": "new", **there}
    load.rollback()
    assert names(engine) == there


@pytest.mark.only_on("mysql", "mariadb")
def test_a_repeated_key_hides_no_key_that_only_the_server_finds(
    engine: Engine, log: FileLog
) -> None:
    with Session(engine) as session, session.begin():
        session.add_all([Named(name="ann", text="foreign"), Named(name="BOB", text="foreign")])
    rows = [{"name": name} for name in ("ann", "ann", "bob")]

    load = BulkLoad(InsertSource(engine, Named, rows, on_existing="keep"), log)
    load.run()

    assert names(engine) == {"ann": "foreign", "BOB": "foreign"}


def names(engine: Engine) -> dict[str, str | None]:
    with Session(engine) as session:
        return {named.name: named.text for named in session.scalars(select(Named))}


def test_the_next_look_sees_a_key_that_somebody_else_inserted_first(
    engine: Engine, log: FileLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    existing = Destination.existing
    add_items(engine, 4)

    def look_too_early(destination: Destination, *args: Any) -> Any:
        monkeypatch.setattr(Destination, "existing", existing)
        return []

    monkeypatch.setattr(Destination, "existing", look_too_early)

    load_of(engine, log, items(5), on_existing="keep", batch_size=5).run()

    assert texts(engine) == {**expected(5), 4: "foreign"}


@pytest.mark.parametrize("on_existing", ["keep", "update"])
def test_an_error_that_no_other_row_explains_is_not_tried_again(
    engine: Engine, log: FileLog, on_existing: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr("sa_jobqueue.bulk.sources.row_writer.time.sleep", pauses.append)
    with Session(engine) as session, session.begin():
        session.add(Coded(id="a", number=1))
    rows = [{"id": "a", "number": 2}, {"id": "b", "number": None}]

    with pytest.raises(IntegrityError):
        BulkLoad(InsertSource(engine, Coded, rows, on_existing=on_existing), log).run()

    assert pauses == []


@pytest.mark.parametrize("batch_size", [1, 3, 6])
@pytest.mark.parametrize(
    ("on_existing", "left"),
    [
        ("keep", {1: ("foreign", None), 2: ("a", 1), 3: ("e", None)}),
        ("update", {1: ("b", None), 2: ("f", 2), 3: ("e", None)}),
    ],
)
def test_the_later_of_two_rows_with_one_key_finds_the_earlier(
    engine: Engine, log: FileLog, on_existing: Any, left: Any, batch_size: int
) -> None:
    ids = {number: uuid.UUID(int=number) for number in (1, 2, 3)}
    with Session(engine) as session, session.begin():
        session.add(Thing(id=ids[1], text="foreign"))
    rows = [
        {"id": ids[2], "text": "a", "number": 1},
        {"id": ids[1], "text": "b"},
        {"id": ids[2], "text": "c"},
        {"id": ids[2], "text": "d", "number": 2},
        {"id": ids[3], "text": "e"},
        {"id": ids[2], "text": "f"},
    ]
    source = InsertSource(engine, Thing, rows, on_existing=on_existing, batch_size=batch_size)
    load = BulkLoad(source, log)

    load.run()

    with Session(engine) as session:
        found = {
            thing.id.int: (thing.text, thing.number) for thing in session.scalars(select(Thing))
        }
    assert found == left
    load.rollback()
    assert [thing["id"] for thing in stored_things(engine)] == [ids[1]]


@pytest.mark.parametrize("committed", [True, False])
@pytest.mark.parametrize("then", ["run", "rollback"])
def test_two_rows_with_a_key_raise_no_doubts(
    engine: Engine, log: FileLog, committed: bool, then: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [*items(3), *items(3)]
    options: dict[str, Any] = {"on_existing": "keep", "batch_size": 6}
    killed_in_commit(monkeypatch, load_of(engine, log, rows, **options).run, 0, committed=committed)

    getattr(load_of(engine, log, rows, **options), then)()

    assert texts(engine) == (expected(3) if then == "run" else {})


@pytest.mark.only_on("sqlite")
def test_nobody_else_writes_between_the_look_and_the_insert(
    tmp_path: Path, log: FileLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = create_engine(f"sqlite:///{tmp_path / 'own.db'}")
    Item.metadata.create_all(own)
    other = sqlite3.connect(tmp_path / "own.db", timeout=0)
    existing, refused = Destination.existing, list[str]()

    def look_and_let_write(destination: Destination, *args: Any) -> Any:
        found = existing(destination, *args)
        with pytest.raises(sqlite3.OperationalError) as error:
            other.execute("INSERT INTO bulk_item (id) VALUES (1)")
        refused.append(str(error.value))
        return found

    monkeypatch.setattr(Destination, "existing", look_and_let_write)

    load_of(own, log, items(3), on_existing="keep").run()

    assert refused == ["database is locked"]
    assert texts(own) == expected(3)
    other.close()
    own.dispose()
