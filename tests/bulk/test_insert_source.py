"""Rows of mapped classes: how they come in, whose they are, and how they go again."""

from __future__ import annotations

import sqlite3
import threading
import uuid
from collections.abc import Iterator
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from time import sleep
from typing import Any

import pytest
from sqlalchemy import (
    Connection,
    Engine,
    MetaData,
    Pool,
    SingletonThreadPool,
    StaticPool,
    create_engine,
    event,
    func,
    insert,
    select,
)
from sqlalchemy.exc import DBAPIError, IntegrityError, OperationalError
from sqlalchemy.orm import Session

from sa_jobqueue import ArgumentError, LockTimeout, UnsupportedDatabase
from sa_jobqueue.bulk import (
    BatchInDoubt,
    BulkLoad,
    DatabaseLog,
    FileLog,
    InsertSource,
    Log,
    load_tables,
)
from sa_jobqueue.bulk.log import INSERTED, INSERTING_IT, REMOVED, Entry
from sa_jobqueue.bulk.sources.insert_batches import TRIES
from sa_jobqueue.bulk.sources.predecessors import await_predecessors, hold_slot
from sa_jobqueue.bulk.sources.target import Target
from sa_jobqueue.bulk.states import BLOCKED, CANCELLED, CLEANING
from sa_jobqueue.dialects import database_of
from tests.support import statements_seen

from .models import (
    Animal,
    Coded,
    Dog,
    Hexed,
    Item,
    Named,
    Numbered,
    Pair,
    Person,
    Rounded,
    RoundedPart,
    Thing,
    Versioned,
)
from .support import add_items, expected, items, killed_in_commit, load_of, texts


@pytest.mark.parametrize("workers", [1, 3])
def test_all_rows_come_in_and_go_again(engine: Engine, log: FileLog, workers: int) -> None:
    load = BulkLoad(
        InsertSource(engine, Item, iter(items(100)), total=100, batch_size=7), log, workers=workers
    )

    load.run()
    assert texts(engine) == expected(100)
    load.rollback()

    assert texts(engine) == {}
    assert load.state is CANCELLED


# -- keys and values ----------------------------------------------------


THING = {
    "number": -5,
    "real": 1.5,
    "amount": Decimal("12.30"),
    "flag": True,
    "at": datetime(2024, 5, 17, 12, 30, 15, 123456),
    "text": "tab\tline\nback\\slash\rquote'\"é €",
    "data": b"\x00\xff\\",
}


def stored_things(engine: Engine) -> list[dict[str, Any]]:
    with Session(engine) as session:
        things = session.scalars(select(Thing).order_by(Thing.number)).all()
        return [
            {column.key: getattr(thing, column.key) for column in Thing.__table__.c}
            for thing in things
        ]


@pytest.mark.parametrize("document", [None, {"a": [1]}])
def test_values_of_every_type_arrive_as_by_the_orm(
    engine: Engine, log: FileLog, document: Any
) -> None:
    nothing = dict.fromkeys(THING)
    rows = [{**THING, "document": document}, {**nothing, "text": "\\N", "document": document}]

    BulkLoad(InsertSource(engine, Thing, rows), log).run()

    found = {thing["text"]: thing for thing in stored_things(engine)}
    for row in rows:
        stored = found[row["text"]]
        assert {name: stored[name] for name in row} == row
        assert (stored["constant"], stored["on_server"]) == (7, 8)


@pytest.mark.only_on("postgresql")
def test_copy_is_used_where_rows_allow_it(engine: Engine, log: FileLog) -> None:
    with statements_seen(engine) as seen:
        BulkLoad(InsertSource(engine, Thing, [THING, THING]), log).run()

    assert len(stored_things(engine)) == 2
    assert [statement for statement in seen if "INSERT" in statement] == []


@pytest.mark.only_on("postgresql")
def test_copy_can_be_left_out(engine: Engine, log: FileLog) -> None:
    with statements_seen(engine) as seen:
        BulkLoad(InsertSource(engine, Thing, [THING, THING], copy=False), log).run()

    assert len([statement for statement in seen if "INSERT" in statement]) == 1


@pytest.mark.only_on("postgresql")
@pytest.mark.parametrize("driver", ["psycopg2", "psycopg"])
def test_an_error_in_copy_is_sqlalchemys(engine: Engine, log: FileLog, driver: str) -> None:
    pytest.importorskip(driver)
    other = create_engine(engine.url.set(drivername=f"postgresql+{driver}"))
    add_items(engine, 4)

    with pytest.raises(IntegrityError) as raised:
        load_of(other, log).run()

    assert "COPY" in str(raised.value)
    assert texts(engine) == {**expected(3), 4: "foreign"}
    other.dispose()


def test_keys_are_made_before_the_insert_and_logged(
    engine: Engine, log: FileLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{"number": number} for number in range(5)]
    killed_in_commit(
        monkeypatch,
        BulkLoad(InsertSource(engine, Thing, rows, batch_size=2), log).run,
        1,
        committed=True,
    )
    before = {thing["number"]: thing["id"] for thing in stored_things(engine)}

    BulkLoad(InsertSource(engine, Thing, rows, batch_size=2), log).run()

    after = {thing["number"]: thing["id"] for thing in stored_things(engine)}
    assert list(after) == [0, 1, 2, 3, 4]
    assert {number: after[number] for number in before} == before
    BulkLoad(InsertSource(engine, Thing, rows), log).rollback()
    assert stored_things(engine) == []


@pytest.mark.parametrize("entity", [Coded, Hexed])
def test_keys_are_made_as_the_class_makes_them(
    engine: Engine, log: FileLog, entity: type[Any]
) -> None:
    load = BulkLoad(InsertSource(engine, entity, [{"number": 1}, {"number": 2}]), log)

    load.run()

    with Session(engine) as session:
        found = session.scalars(select(entity.id)).all()
    assert len({uuid.UUID(key.removeprefix("c-")) for key in found}) == 2
    assert all(key.startswith("c-") == (entity is Coded) for key in found)
    load.rollback()
    assert count(engine, entity) == 0


def test_a_key_that_is_given_is_kept(engine: Engine, log: FileLog) -> None:
    given = uuid.uuid4()

    BulkLoad(InsertSource(engine, Thing, [{"id": given}, {}]), log).run()

    ids = {thing["id"] for thing in stored_things(engine)}
    assert given in ids
    assert len(ids) == 2


def test_keys_of_the_server_are_refused_with_the_way_out(engine: Engine, log: FileLog) -> None:
    load = BulkLoad(InsertSource(engine, Numbered, [{"text": "a"}]), log)

    with pytest.raises(ArgumentError, match=r"has no id, and the server would make it.*a UUID"):
        load.run()


def test_a_zero_that_the_server_would_replace_is_refused(
    engine: Engine, log: FileLog, db_alias: str
) -> None:
    load = BulkLoad(InsertSource(engine, Numbered, [{"id": 0, "text": "a"}]), log)

    if db_alias in ("mysql", "mariadb"):
        with pytest.raises(ArgumentError, match="is 0, for which this server would make another"):
            load.run()
        assert count(engine, Numbered) == 0
    else:
        load.run()
        load.rollback()
        assert count(engine, Numbered) == 0


def test_keys_of_two_columns_come_and_go(
    engine: Engine, log: FileLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{"left": number // 3, "right": f"r{number % 3}"} for number in range(500)]
    with Session(engine) as session, session.begin():
        session.add(Pair(left=1, right="other"))
    killed_in_commit(
        monkeypatch,
        BulkLoad(InsertSource(engine, Pair, rows, batch_size=250), log).run,
        1,
        committed=True,
    )

    load = BulkLoad(InsertSource(engine, Pair, rows), log)
    load.run()

    assert count(engine, Pair) == 501
    load.rollback()
    assert count(engine, Pair) == 1


def count(engine: Engine, entity: type[Any]) -> int:
    with Session(engine) as session:
        return session.scalar(select(func.count()).select_from(entity)) or 0


@pytest.mark.only_on("postgresql", "mysql", "mariadb")  # SQLite rounds nothing
@pytest.mark.parametrize(("entity", "more"), [(Rounded, {}), (RoundedPart, {"number": 1})])
def test_keys_that_the_server_would_not_find_again_are_refused(
    engine: Engine, log: FileLog, entity: type[Any], more: dict[str, int]
) -> None:
    rows = [{"amount": Decimal("1.5"), **more}, {"amount": Decimal("2.125"), **more}]

    with pytest.raises(ArgumentError, match=r"1 of 2 rows \(rows 0 to 1\) are not found by their"):
        BulkLoad(InsertSource(engine, entity, rows), log).run()

    assert count(engine, entity) == 0


def test_rows_in_two_tables_come_and_go(
    engine: Engine, log: FileLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{"id": number, "trick": f"trick {number}"} for number in range(5)]
    killed_in_commit(
        monkeypatch,
        BulkLoad(InsertSource(engine, Dog, rows, batch_size=2), log).run,
        1,
        committed=True,
    )
    load = BulkLoad(InsertSource(engine, Dog, rows), log)

    load.run()

    with Session(engine) as session:
        dogs = session.scalars(select(Dog).order_by(Dog.id)).all()
        assert [dog.trick for dog in dogs] == [row["trick"] for row in rows]
    load.rollback()
    assert count(engine, Animal) == 0


@pytest.mark.parametrize("in_database", [True, False])
def test_rows_that_refer_to_each_other_go_the_last_first(
    engine: Engine, log: FileLog, in_database: bool
) -> None:
    own = create_engine(engine.url)
    if own.dialect.name == "sqlite":
        event.listen(own, "connect", lambda driver, _: driver.execute("PRAGMA foreign_keys = ON"))
    load_tables(MetaData()).create_all(own)
    people = [{"id": n, "mother": (n - 1) // 2 if n else None} for n in range(20)]
    source = InsertSource(own, Person, people, batch_size=3)
    load = BulkLoad(source, DatabaseLog(own, "people") if in_database else log, workers=4)

    load.run()
    assert count(own, Person) == 20
    load.rollback()

    assert count(own, Person) == 0
    load.clean()
    own.dispose()


def test_workers_are_as_many_as_the_database_and_the_order_of_rows_allow(engine: Engine) -> None:
    def workers(entity: type[Any]) -> int:
        return InsertSource(engine, entity, []).workers_of(4)

    one_writer = engine.dialect.name == "sqlite"
    assert [workers(entity) for entity in (Item, Dog, Person)] == (
        [0, 0, 0] if one_writer else [4, 4, 1]
    )


def test_what_the_mapper_adds_to_a_row_is_there(engine: Engine, log: FileLog) -> None:
    BulkLoad(InsertSource(engine, Animal, [{"id": 1}]), log).run()
    other = FileLog(log.folder.with_name("other"))
    BulkLoad(InsertSource(engine, Versioned, [{"id": 1}]), other).run()

    with Session(engine) as session:
        assert session.scalars(select(Animal.kind)).all() == ["animal"]
        assert session.scalars(select(Versioned.version)).all() == [1]


# -- rows that were there before ----------------------------------------


def test_a_foreign_row_is_an_error_and_is_never_deleted(engine: Engine, log: FileLog) -> None:
    add_items(engine, 3, 4, 5, 6)
    load = load_of(engine, log)

    with pytest.raises(IntegrityError) as raised:
        load.run()

    assert "Of the batch with rows 3 to 5 nothing was inserted." in raised.value.__notes__
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
        {"left": 2, "right": "a"},  # says nothing new
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


@pytest.fixture(params=["file", "database"])
def log_beside(request: pytest.FixtureRequest, log: FileLog, tmp_path: Path) -> Iterator[Log]:
    """A log that is not in the loaded database."""
    if request.param == "file":
        yield log
        return
    other = create_engine(f"sqlite:///{tmp_path / 'log.db'}")
    load_tables(MetaData()).create_all(other)
    yield DatabaseLog(other)
    other.dispose()


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
def test_a_key_is_there_if_the_server_says_so(
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
def test_a_key_that_comes_twice_hides_none_that_only_the_server_finds(
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


def test_somebody_who_is_first_with_a_key_is_seen_by_the_next_look(
    engine: Engine, log: FileLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    existing = Target.existing
    add_items(engine, 4)

    def look_too_early(target: Target, *args: Any) -> Any:
        monkeypatch.setattr(Target, "existing", existing)
        return []

    monkeypatch.setattr(Target, "existing", look_too_early)

    load_of(engine, log, items(5), on_existing="keep", batch_size=5).run()

    assert texts(engine) == {**expected(5), 4: "foreign"}


@pytest.mark.parametrize("on_existing", ["keep", "update"])
def test_an_error_that_no_other_row_explains_is_not_tried_again(
    engine: Engine, log: FileLog, on_existing: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr("sa_jobqueue.bulk.sources.insert_batches.time.sleep", pauses.append)
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
def test_of_two_rows_with_a_key_the_later_finds_the_earlier(
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
    existing, refused = Target.existing, list[str]()

    def look_and_let_write(target: Target, *args: Any) -> Any:
        found = existing(target, *args)
        with pytest.raises(sqlite3.OperationalError) as error:
            other.execute("INSERT INTO bulk_item (id) VALUES (1)")
        refused.append(str(error.value))
        return found

    monkeypatch.setattr(Target, "existing", look_and_let_write)

    load_of(own, log, items(3), on_existing="keep").run()

    assert refused == ["database is locked"]
    assert texts(own) == expected(3)
    other.close()
    own.dispose()


# -- doubts -------------------------------------------------------------


@pytest.mark.parametrize("committed", [True, False])
@pytest.mark.parametrize("batch", [0, 1, 3])
@pytest.mark.parametrize("then", ["run", "rollback"])
def test_a_batch_in_doubt_is_asked_about(
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


def failing_commits(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, error: DBAPIError, times: int
) -> None:
    """Have the server refuse the first commits of batches."""
    before, due, left = Entry.before_commit, [False], [times]

    def see(entry: Entry, *args: Any) -> None:
        before(entry, *args)
        due[0] = True

    def fail(*args: Any) -> None:
        if due[0] and left[0]:
            due[0] = False
            left[0] -= 1
            raise error

    monkeypatch.setattr(Entry, "before_commit", see)
    event.listen(engine, "commit", fail)


def test_an_error_that_another_try_may_mend_is_tried_again(
    engine: Engine, log: FileLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sa_jobqueue.bulk.sources.insert_batches.is_transient", lambda error: True)
    own = create_engine(engine.url)
    failing_commits(own, monkeypatch, OperationalError("COMMIT", None, Exception("deadlock")), 2)

    load_of(own, log, items(3)).run()

    assert texts(engine) == expected(3)
    own.dispose()


def test_what_no_try_mends_is_an_error(
    engine: Engine, log: FileLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr("sa_jobqueue.bulk.sources.insert_batches.is_transient", lambda error: True)
    monkeypatch.setattr("sa_jobqueue.bulk.sources.insert_batches.time.sleep", pauses.append)
    own = create_engine(engine.url)
    error = OperationalError("COMMIT", None, Exception("deadlock"))
    failing_commits(own, monkeypatch, error, TRIES + 1)

    with pytest.raises(OperationalError, match="deadlock"):
        load_of(own, log, items(3)).run()

    assert len(pauses) == TRIES - 1
    own.dispose()


@pytest.mark.only_on("sqlite")
def test_what_was_refused_because_of_a_reader_is_not_committed_by_the_next_try(
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

    monkeypatch.setattr("sa_jobqueue.bulk.sources.insert_batches.time.sleep", end_reading)

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
    assert log.marks[0] == INSERTING_IT
    log.close()
    own.dispose()


def test_what_the_server_refused_is_in_no_doubt(
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


def test_a_batch_is_one_transaction_with_autocommit_too(engine: Engine, log: FileLog) -> None:
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


# -- who was there before us --------------------------------------------


@pytest.mark.only_on("postgresql", "mysql", "mariadb")
@pytest.mark.parametrize("then", ["restore", "rollback"])
def test_what_the_server_still_does_for_a_killed_load_is_waited_for(
    engine: Engine, log: FileLog, then: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed_in_commit(monkeypatch, load_of(engine, log).run, 1, committed=False)
    head, _ = log.peek()
    assert head is not None
    left = engine.connect()
    hold_slot(left, head.id, 0, timedelta(seconds=20))  # its own connection may still end
    doubtful = [{"id": number, "item_text": f"item {number}"} for number in (3, 4, 5)]
    left.execute(insert(Item), doubtful)  # on its way
    impatient = load_of(engine, log)
    impatient.wait = timedelta(milliseconds=100)
    with pytest.raises(LockTimeout, match="The server still works for this load, as process"):
        getattr(impatient, then)()
    waiting = load_of(engine, log)
    waits = threading.Event()

    def wait_a_little(seconds: float) -> None:
        waits.set()
        sleep(seconds)

    monkeypatch.setattr("sa_jobqueue.bulk.sources.predecessors.time.sleep", wait_a_little)
    caller = threading.Thread(target=getattr(waiting, then))
    caller.start()
    assert waits.wait(20)

    left.commit()  # seconds after its client was killed
    left.detach()
    left.close()
    caller.join(20)

    assert texts(engine) == (expected(10) if then == "restore" else {})


@pytest.mark.only_on("postgresql", "mysql", "mariadb")
def test_a_connection_holds_its_slot_while_it_inserts(engine: Engine, log: FileLog) -> None:
    source = InsertSource(engine, Item, items(3))
    other = engine.connect()

    with source.at_work("a load", 1):
        hold_slot(other, "a load", 0, timedelta(0))
        with pytest.raises(LockTimeout):
            hold_slot(other, "a load", 1, timedelta(0))

    hold_slot(other, "a load", 1, timedelta(seconds=20))
    other.detach()
    other.close()


@pytest.mark.only_on("postgresql", "mysql", "mariadb")
@pytest.mark.parametrize("then", ["restore", "rollback"])
def test_all_that_have_ever_worked_for_a_load_are_waited_for(
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

    monkeypatch.setattr("sa_jobqueue.bulk.sources.predecessors.time.sleep", give_way)
    hold_slot(second, "a load", 0, timedelta(seconds=20))

    assert len(seen) > 1
    assert not any(seen)
    second.detach()
    second.close()


def test_the_wait_is_for_all_connections_together(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[timedelta] = []
    monkeypatch.setattr(
        "sa_jobqueue.bulk.sources.predecessors.hold_slot", lambda *given: waits.append(given[-1])
    )

    await_predecessors(engine, "a load", 3, timedelta(seconds=5))

    assert timedelta(seconds=5) > waits[0] > waits[1] > waits[2] > timedelta(0)


@pytest.mark.only_on("postgresql", "mysql", "mariadb")
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

    with InsertSource(engine, Item, []).at_work("a load", 0):
        assert len(told) == 1


@pytest.mark.only_on("postgresql", "mysql", "mariadb")
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
    """A row that is counted as long as it lives."""

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
