"""Rows of every kind come in, go on after a kill, and go again."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import datetime
from decimal import Decimal
from typing import Any

import pytest
from sqlalchemy import (
    Engine,
    Pool,
    SingletonThreadPool,
    StaticPool,
    create_engine,
    event,
    select,
)
from sqlalchemy.orm import Session

from sa_jobqueue import ArgumentError
from sa_jobqueue.bulk import BulkLoad, DatabaseLog, FileLog, InsertSource, Progress, SourceChanged
from tests.models import Animal, Dog, Pair
from tests.support import make_engine

from .fakes import Killed
from .models import Base, Item, Named, Person, Thing
from .support import add_items, count, expected, items, load_of, texts

pytestmark = pytest.mark.by_turns("sqlite", "postgresql", "mysql", "mariadb")


def load(engine: Engine, log: FileLog, entity: type[Any], rows: Any, **options: Any) -> Any:
    return BulkLoad(InsertSource(engine, entity, rows, **options), log)


def kill_after(batches: int, load: BulkLoad[Any]) -> None:
    """Kill a load when so many batches are in."""

    def die(progress: Progress) -> None:
        if progress.inserted == batches:
            raise Killed

    load.progress = die
    with pytest.raises(Killed):
        load.run()


def things(engine: Engine) -> dict[int | None, Thing]:
    with Session(engine) as session:
        found = session.scalars(select(Thing).order_by(Thing.number)).all()
        return {thing.number: thing for thing in found}


# -- values and keys ----------------------------------------------------

THING: dict[str, Any] = {
    "number": -5,
    "real": 1.5,
    "amount": Decimal("12.30"),
    "flag": True,
    "at": datetime(2024, 5, 17, 12, 30, 15, 123456),
    "text": "tab\tline\nback\\slash\rquote'\"é €",
    "data": b"\x00\xff\\",
}


def test_values_are_stored_as_by_the_orm_by_keys_that_the_log_has(
    engine: Engine, log: FileLog
) -> None:
    given = uuid.uuid4()
    rows = [{**THING, "id": given}, *({"number": n, "document": {"a": [n]}} for n in range(5))]
    kill_after(2, load(engine, log, Thing, rows, batch_size=2))
    before = {number: thing.id for number, thing in things(engine).items()}

    load(engine, log, Thing, rows).run()

    after = things(engine)
    assert list(after) == [-5, 0, 1, 2, 3, 4]
    assert {number: after[number].id for number in before} == {**before, -5: given}
    assert {name: getattr(after[-5], name) for name in THING} == THING
    assert [after[n].document for n in range(5)] == [{"a": [n]} for n in range(5)]
    assert {(thing.constant, thing.on_server) for thing in after.values()} == {(7, 8)}
    load(engine, log, Thing, []).rollback()
    assert things(engine) == {}


@pytest.fixture
def strict(engine: Engine) -> Iterator[Engine]:
    """An engine whose connections to SQLite check foreign keys, too."""
    strict = make_engine(engine.url)
    if strict.dialect.name == "sqlite":
        event.listen(strict, "connect", lambda driver, _: driver.execute(FOREIGN_KEYS))
    yield strict
    strict.dispose()


FOREIGN_KEYS = "PRAGMA foreign_keys = ON"


@pytest.mark.parametrize(
    ("entity", "rows"),
    [
        (Dog, [{"id": number, "trick": f"trick {number}"} for number in range(1, 6)]),
        (Animal, [{"id": number} for number in range(1, 6)]),
        (Person, [{"id": n, "mother": (n - 1) // 2 if n else None} for n in range(5)]),
        (Pair, [{"left": number // 3, "right": f"r{number % 3}"} for number in range(500)]),
    ],
)
def test_rows_of_every_kind_of_class_come_and_go(
    strict: Engine, log: FileLog, entity: type[Any], rows: list[Any]
) -> None:
    with Session(strict) as session, session.begin():
        session.add(Pair(left=1, right="other"))
    foreign = count(strict, entity)
    kill_after(1, load(strict, log, entity, rows, batch_size=2 if len(rows) == 5 else 250))

    again = load(strict, log, entity, rows)
    again.run()

    with Session(strict) as session:
        assert len(session.scalars(select(entity)).all()) == foreign + len(rows)
    again.rollback()
    assert count(strict, entity) == foreign
    assert count(strict, Animal) == 0


@pytest.mark.only_on("sqlite")
@pytest.mark.parametrize("pool", [StaticPool, SingletonThreadPool])
@pytest.mark.parametrize("in_database", [True, False])
def test_a_database_in_memory_is_loaded_too(
    log: FileLog, pool: type[Pool], in_database: bool
) -> None:
    engine = create_engine("sqlite://", poolclass=pool)
    Base.metadata.create_all(engine)
    source = InsertSource(engine, Item, items(10), batch_size=3)
    memory = BulkLoad(source, DatabaseLog(engine) if in_database else log)

    memory.run()

    assert texts(engine) == expected(10)
    memory.rollback()
    assert texts(engine) == {}
    engine.dispose()


# -- rows that were there -----------------------------------------------


@pytest.mark.only_on("mysql", "mariadb")
def test_a_key_exists_if_the_server_compares_it_as_equal(engine: Engine, log: FileLog) -> None:
    def names() -> dict[str, str | None]:
        with Session(engine) as session:
            return {named.name: named.text for named in session.scalars(select(Named))}

    with Session(engine) as session, session.begin():
        session.add_all(Named(name=name, text="foreign") for name in ("BOB", "EVE"))
    rows = [{"name": name, "text": "new"} for name in ("ann", "bob", "Bab", "eve", "joe")]
    named = load(engine, log, Named, rows, on_existing="keep")

    named.run()

    there = dict.fromkeys(("BOB", "EVE"), "foreign")
    assert names() == {**dict.fromkeys(("ann", "Bab", "joe"), "new"), **there}
    named.rollback()
    assert names() == there


@pytest.mark.parametrize("batch_size", [1, 4])
def test_the_later_of_two_rows_with_one_key_finds_the_earlier(
    engine: Engine, log: FileLog, batch_size: int
) -> None:
    add_items(engine, 1)
    rows = [
        {"id": number, "text": text} for number, text in ((2, "a"), (1, "b"), (2, "c"), (3, "e"))
    ]
    twice = load(engine, log, Item, rows, on_existing="keep", batch_size=batch_size)

    twice.run()

    assert texts(engine) == {1: "foreign", 2: "a", 3: "e"}
    twice.rollback()
    assert texts(engine) == {1: "foreign"}


# -- the same rows again ------------------------------------------------


def generated() -> Iterator[dict[str, Any]]:
    yield from items(10)


@pytest.mark.only_on("sqlite")
@pytest.mark.parametrize(
    "rows",
    [
        lambda: items(10),
        lambda: generated,
        lambda: iter(items(10)),
    ],
)
@pytest.mark.parametrize("batches", [0, 3])
def test_a_load_goes_on_with_rows_of_every_kind(
    engine: Engine, log: FileLog, rows: Any, batches: int
) -> None:
    if batches:
        kill_after(batches, load_of(engine, log, rows()))
    else:
        load_of(engine, log, rows()).prepare()

    load_of(engine, log, rows(), batch_size=5).run()

    assert texts(engine) == expected(10)
    assert load_of(engine, log).status().divided == 4


@pytest.mark.only_on("sqlite")
@pytest.mark.parametrize("as_list", [True, False])
@pytest.mark.parametrize(
    "rows",
    [
        items(10)[::-1],
        items(8),
        [*items(6), {"id": 6, "text": "another first row"}, *items(3, 7)],
        [*items(7), {"id": 77, "text": "item 7"}, *items(2, 8)],
        [*items(8), {"id": 8, "text": "another last row"}, *items(1, 9)],
    ],
)
def test_other_rows_than_at_first_are_refused_but_by_a_rollback(
    engine: Engine, log: FileLog, rows: list[Any], as_list: bool
) -> None:
    load_of(engine, log).prepare()  # all batches are logged
    kill_after(2, load_of(engine, log))
    changed = load_of(engine, log, rows if as_list else iter(rows))

    with pytest.raises(SourceChanged, match=r"the same rows in the same order, or roll|the total"):
        changed.run()

    assert texts(engine) == expected(6)
    changed.rollback()
    assert texts(engine) == {}


@pytest.mark.only_on("sqlite")
@pytest.mark.parametrize("total", [11, 9])
def test_a_total_that_is_wrong_is_an_error(engine: Engine, log: FileLog, total: int) -> None:
    with pytest.raises(ArgumentError, match=f"total is {total}, but there are 10 rows"):
        load_of(engine, log, generated, total=total).run()

    load_of(engine, log, generated).run()
    assert texts(engine) == expected(10)


@pytest.mark.only_on("sqlite")
def test_rows_that_can_be_read_only_once_are_refused_or_read_again_after_an_error(
    engine: Engine, log: FileLog
) -> None:
    def interrupted() -> Iterator[dict[str, Any]]:
        yield from items(4)
        if fails:
            raise OSError(fails.pop())
        yield from items(6, 4)

    fails = ["the disk is gone"]
    once = load_of(engine, log, interrupted())
    with pytest.raises(OSError, match="gone"):
        once.run()
    with pytest.raises(SourceChanged, match="give a list, or a function"):
        once.run()

    fails.append("the disk is gone")
    again = load_of(engine, log, interrupted)
    with pytest.raises(OSError, match="gone"):
        again.run()
    again.run()

    assert texts(engine) == expected(10)


class LiveRow(dict[str, Any]):
    """A row that counts how many rows are alive."""

    alive = most = 0

    def __init__(self, **values: Any) -> None:
        super().__init__(**values)
        LiveRow.alive += 1
        LiveRow.most = max(LiveRow.most, LiveRow.alive)

    def __del__(self) -> None:
        LiveRow.alive -= 1


@pytest.mark.only_on("sqlite")
def test_no_more_rows_live_than_those_of_two_batches(engine: Engine, log: FileLog) -> None:
    rows = (LiveRow(id=number, text="a") for number in range(1_000))

    load_of(engine, log, rows, batch_size=10).run()

    assert count(engine, Item) == 1_000
    assert LiveRow.most <= 20
