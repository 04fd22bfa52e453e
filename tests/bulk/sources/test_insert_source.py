"""Rows of mapped classes come in and go again."""

from __future__ import annotations

import uuid
from datetime import datetime
from decimal import Decimal
from typing import Any

import pytest
from sqlalchemy import Engine, MetaData, create_engine, event, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from sa_jobqueue import ArgumentError
from sa_jobqueue.bulk import BulkLoad, DatabaseLog, FileLog, InsertSource, load_tables
from sa_jobqueue.bulk.states import CANCELLED
from tests.bulk.models import (
    Animal,
    Coded,
    Dog,
    Hexed,
    Item,
    Numbered,
    Pair,
    Person,
    Rounded,
    RoundedPart,
    Thing,
    Versioned,
)
from tests.bulk.sources.support import count, stored_things
from tests.bulk.support import add_items, expected, items, killed_in_commit, load_of, texts
from tests.support import SERVERS, statements_seen


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


THING = {
    "number": -5,
    "real": 1.5,
    "amount": Decimal("12.30"),
    "flag": True,
    "at": datetime(2024, 5, 17, 12, 30, 15, 123456),
    "text": "tab\tline\nback\\slash\rquote'\"é €",
    "data": b"\x00\xff\\",
}


@pytest.mark.parametrize("document", [None, {"a": [1]}])
def test_values_of_every_type_are_stored_as_by_the_orm(
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
def test_an_error_in_copy_is_raised_as_sqlalchemys(
    engine: Engine, log: FileLog, driver: str
) -> None:
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

    with pytest.raises(ArgumentError, match=r"has no id, and the server would choose it.*a UUID"):
        load.run()


def test_a_zero_that_the_server_would_replace_is_refused(
    engine: Engine, log: FileLog, db_alias: str
) -> None:
    load = BulkLoad(InsertSource(engine, Numbered, [{"id": 0, "text": "a"}]), log)

    if db_alias in ("mysql", "mariadb"):
        with pytest.raises(ArgumentError, match="is 0, and this server replaces 0"):
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


@pytest.mark.only_on(*SERVERS)  # SQLite rounds nothing
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
def test_rows_that_refer_to_each_other_are_deleted_last_first(
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


def test_the_number_of_workers_is_what_the_database_and_the_order_of_rows_allow(
    engine: Engine,
) -> None:
    def workers(entity: type[Any]) -> int:
        return InsertSource(engine, entity, []).worker_count(4)

    one_writer = engine.dialect.name == "sqlite"
    assert [workers(entity) for entity in (Item, Dog, Person)] == (
        [0, 0, 0] if one_writer else [4, 4, 1]
    )


def test_values_that_the_mapper_adds_are_inserted(engine: Engine, log: FileLog) -> None:
    BulkLoad(InsertSource(engine, Animal, [{"id": 1}]), log).run()
    other = FileLog(log.folder.with_name("other"))
    BulkLoad(InsertSource(engine, Versioned, [{"id": 1}]), other).run()

    with Session(engine) as session:
        assert session.scalars(select(Animal.kind)).all() == ["animal"]
        assert session.scalars(select(Versioned.version)).all() == [1]
