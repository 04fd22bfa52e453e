"""The kinds of rows, and where a load goes on reading them."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, delete
from sqlalchemy.orm import Session

from sa_jobqueue import ArgumentError
from sa_jobqueue.bulk import BulkLoad, FileLog, InsertSource, Progress, SourceChanged
from sa_jobqueue.bulk.log import REMOVED
from sa_jobqueue.bulk.sources.insert_source import fingerprint
from sa_jobqueue.bulk.states import BLOCKED
from tests.bulk.fakes import Killed
from tests.bulk.models import Base, Item, Numbered, Thing
from tests.bulk.sources.support import write_csv
from tests.bulk.support import expected, items, killed_in_commit, load_of, texts


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    engine = create_engine(f"sqlite:///{tmp_path / 'rows.db'}")
    Base.metadata.create_all(engine)
    yield engine
    engine.dispose()


def generated() -> Iterator[dict[str, Any]]:
    yield from items(10)


async def generated_asynchronously() -> AsyncIterator[dict[str, Any]]:
    for row in items(10):
        yield row


class Asynchronous:
    """An iterable that can be iterated over again and again."""

    def __aiter__(self) -> AsyncIterator[dict[str, Any]]:
        return generated_asynchronously()


@pytest.mark.parametrize(
    "rows",
    [
        lambda: items(10),
        lambda: tuple(items(10)),
        lambda: generated,
        lambda: generated_asynchronously,
        lambda: iter(items(10)),
        lambda: generated_asynchronously(),
        lambda: Asynchronous(),
        lambda: Asynchronous,
    ],
)
def test_a_load_that_was_killed_goes_on_with_rows_of_every_kind(
    engine: Engine, log: FileLog, rows: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed_in_commit(monkeypatch, load_of(engine, log, rows()).run, 1, committed=False)

    load_of(engine, log, rows()).run()

    assert texts(engine) == expected(10)


def test_an_event_loop_that_runs_already_is_refused_with_the_way_out(
    engine: Engine, log: FileLog
) -> None:
    load = load_of(engine, log, generated_asynchronously)

    async def call() -> None:
        with pytest.raises(ArgumentError, match=r"runs an event loop.*to_thread\(load\.run\)"):
            load.run()
        await asyncio.to_thread(load.run)

    asyncio.run(call())

    assert texts(engine) == expected(10)


@pytest.mark.parametrize("row", [(1, "a"), Item(id=1), "text"])
def test_a_row_that_is_no_mapping_is_refused(engine: Engine, log: FileLog, row: Any) -> None:
    with pytest.raises(ArgumentError, match="a row maps attribute names to values"):
        load_of(engine, log, [row]).run()


def test_an_iterator_that_was_read_is_refused_with_the_way_out(
    engine: Engine, log: FileLog
) -> None:
    load = load_of(engine, log, iter(items(10)))
    load.prepare()

    with pytest.raises(SourceChanged, match="give a list, a file, or a function"):
        load.insert()

    load_of(engine, log, iter(items(10))).run()
    assert texts(engine) == expected(10)


def write_jsonl(path: Path, count: int = 10) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in items(count)))
    return path


@pytest.mark.parametrize("write", [write_csv, write_jsonl])
def test_a_file_is_read_on_at_the_right_place(
    engine: Engine, log: FileLog, tmp_path: Path, write: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / f"items.{write.__name__.removeprefix('write_')}")
    killed_in_commit(monkeypatch, load_of(engine, log, path).run, 2, committed=False)
    load = load_of(engine, log, str(path))
    read: list[int] = []
    plain_read = load.source.rows.read

    def see(index: int, place: int) -> Any:
        read.append(place)
        return plain_read(index, place)

    load.source.rows.read = see
    hashed: list[str] = []
    file_digest = hashlib.file_digest

    def see_hash(file: Any, kind: str) -> Any:
        hashed.append(kind)
        return file_digest(file, kind)

    monkeypatch.setattr(hashlib, "file_digest", see_hash)

    load.run()

    assert texts(engine) == expected(10)
    assert hashed == ["sha256"]
    content = path.read_bytes()
    assert read[0] == content.rindex(b"\n", 0, content.index(b"item 6")) + 1


def take_back(engine: Engine, log: FileLog, *batches: int) -> None:
    """Leave a load as a rollback that was killed in the middle, by several workers."""
    head = log.open()
    assert head is not None
    for number in batches:
        log.after_commit(number, REMOVED)
    log.store(replace(head, state=BLOCKED))
    log.close()
    with engine.begin() as connection:
        connection.execute(delete(Item).where((Item.id // 3).in_(batches)))


def test_a_file_is_opened_once_for_batches_that_follow_each_other(
    engine: Engine, log: FileLog, tmp_path: Path
) -> None:
    path = write_jsonl(tmp_path / "items.jsonl")
    load_of(engine, log, path).run()
    take_back(engine, log, 0, 1, 3)
    load = load_of(engine, log, path)
    places: list[int] = []
    read = load.source.rows.read

    def see(index: int, place: int) -> Any:
        places.append(place)
        return read(index, place)

    load.source.rows.read = see

    load.run()

    assert texts(engine) == expected(10)
    assert places == [0, path.read_bytes().index(b'{"id": 9')]


def test_a_function_is_called_once_for_all_that_is_missing(engine: Engine, log: FileLog) -> None:
    load_of(engine, log, generated).run()
    take_back(engine, log, 0, 1, 3)
    calls: list[str] = []

    def called() -> Iterator[dict[str, Any]]:
        calls.append("called")
        return generated()

    load_of(engine, log, called).run()

    assert texts(engine) == expected(10)
    assert calls == ["called"]


def test_a_file_that_has_changed_is_not_divided_on(
    engine: Engine, log: FileLog, tmp_path: Path
) -> None:
    path = write_csv(tmp_path / "items.csv")
    load = load_of(engine, log, path)

    def die(progress: Progress) -> None:
        if progress.inserted == 2:  # of two batches that are divided
            raise Killed

    load.progress = die
    with pytest.raises(Killed):
        load.run()
    path.write_text(path.read_text().replace("item 9", "item X"))

    with pytest.raises(SourceChanged, match="sha256"):
        load_of(engine, log, path).run()

    assert texts(engine) == expected(6)


def test_only_a_rollback_accepts_a_file_that_has_changed(
    engine: Engine, log: FileLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_csv(tmp_path / "items.csv")
    killed_in_commit(monkeypatch, load_of(engine, log, path).run, 2, committed=True)
    path.write_text(path.read_text().replace("item 9", "item X"))

    with pytest.raises(SourceChanged, match="sha256"):
        load_of(engine, log, path).run()
    path.unlink()
    load_of(engine, log, path).rollback()

    assert texts(engine) == {}


def items_but(number: int, **changed: Any) -> list[dict[str, Any]]:
    return [{**row, **(changed if row["id"] == number else {})} for row in items(10)]


@pytest.mark.parametrize(
    "rows",
    [
        items(9, first=1),
        items(10)[::-1],
        items(8),
        [{"id": n} for n in range(10)],
        items_but(6, text="another first row"),
        items_but(7, id=77),
        items_but(8, text="another last row"),
    ],
)
def test_other_rows_than_at_first_are_refused(
    engine: Engine, log: FileLog, rows: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed_in_commit(monkeypatch, load_of(engine, log).run, 2, committed=False)

    with pytest.raises(
        SourceChanged, match=r"the same rows in the same order, or roll|began with the total"
    ):
        load_of(engine, log, rows).run()

    assert texts(engine) == expected(6)


@pytest.mark.parametrize("written", [True, False])
def test_rows_that_were_corrected_are_prepared_again_and_inserted(
    engine: Engine, log: FileLog, tmp_path: Path, written: bool
) -> None:
    def rows(*given: Any) -> Any:
        path = tmp_path / "items.jsonl"
        path.write_text("".join(f"{json.dumps(row)}\n" for row in given))
        return path if written else list(given)

    with pytest.raises(ArgumentError):
        load_of(engine, log, rows(*items(10), "no row")).prepare()

    load = load_of(engine, log, rows(*items(10)))
    load.prepare()
    load.insert()

    assert texts(engine) == expected(10)


def test_fewer_rows_than_at_first_are_refused_where_all_are_alike(
    engine: Engine, log: FileLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(count: int) -> BulkLoad[Any]:
        rows = iter([{"number": 1}] * count)  # a list would tell how many rows there are
        return BulkLoad(InsertSource(engine, Thing, rows, batch_size=3), log)

    killed_in_commit(monkeypatch, load(10).run, 2, committed=False)

    with pytest.raises(SourceChanged, match="Rows 6 to 8 are not the same"):
        load(8).run()


def test_a_name_that_is_no_column_is_refused_even_when_the_load_goes_on(
    engine: Engine, log: FileLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed_in_commit(monkeypatch, load_of(engine, log).run, 2, committed=False)

    with pytest.raises(ArgumentError, match="Item has no column colour"):
        load_of(engine, log, items_but(7, colour="red")).run()


def test_an_unknown_total_is_known_when_all_rows_are_divided(engine: Engine, log: FileLog) -> None:
    load = load_of(engine, log, generated)
    told: list[int | None] = []
    load.progress = lambda progress: told.append(progress.batches)

    load.run()

    assert told == [None] * 4
    assert load.status().batches == 4


def test_rows_without_a_lasting_text_are_not_compared() -> None:
    assert fingerprint([{"a": object()}]) == fingerprint([{"a": object()}])
    assert fingerprint([{"a": 1, "b": 2}]) == fingerprint([{"b": 2, "a": 1}])
    assert fingerprint([{"a": "\ud800"}]) != fingerprint([{"a": "\ud801"}])


def test_batches_stay_as_large_as_when_the_load_began(
    engine: Engine, log: FileLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed_in_commit(monkeypatch, load_of(engine, log).run, 1, committed=True)
    load = load_of(engine, log, batch_size=5)

    load.run()

    assert texts(engine) == expected(10)
    assert load.status().divided == 4


def test_another_table_is_refused(engine: Engine, log: FileLog) -> None:
    with load_of(engine, log) as load:
        load.prepare()

    with pytest.raises(SourceChanged, match="began with the table 'bulk_item'"):
        BulkLoad(InsertSource(engine, Numbered, []), log).rollback()


def test_an_object_that_is_no_engine_is_refused(engine: Engine) -> None:
    with pytest.raises(ArgumentError, match=r"a bulk load needs an Engine, not .*driver"):
        InsertSource(Session(engine), Item, [])  # type: ignore[arg-type]  # the mistake under test


@pytest.mark.parametrize(("total", "there"), [(11, 10), (9, 10)])
def test_a_total_that_is_wrong_is_an_error(
    engine: Engine, log: FileLog, total: int, there: int
) -> None:
    load = load_of(engine, log, generated, total=total)

    with pytest.raises(ArgumentError, match=f"total is {total}, but there are {there} rows"):
        load.run()

    assert load.state is BLOCKED
    load_of(engine, log, generated).run()
    assert texts(engine) == expected(10)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"rows": 5}, "rows are an iterable of mappings"),
        ({"rows": [{"id": 1}], "total": 2}, "total is 2, but there are 1 rows"),
        ({"rows": {"id": 1}}, "rows are an iterable of mappings"),
        ({"rows": "items.xml"}, r"items\.xml: .* ends in \.csv, \.jsonl"),
        ({"rows": [], "batch_size": 0}, "at least one row"),
        ({"rows": [], "on_existing": "ignore"}, "one of error, keep, update"),
        ({"rows": [], "entity": dict}, "not a mapped class"),
    ],
)
def test_invalid_arguments_are_refused(engine: Engine, given: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        InsertSource(engine, **{"entity": Item, **given})


def test_a_name_that_is_no_column_is_refused(engine: Engine, log: FileLog) -> None:
    with pytest.raises(ArgumentError, match="Item has no column colour"):
        load_of(engine, log, [{"id": 1}, {"id": 2, "colour": "red"}]).run()

    assert texts(engine) == {}
