"""Where rows come from, and where they are read on; on one engine, since it has no part in it."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import Engine, create_engine, delete
from sqlalchemy.orm import Session

from sa_jobqueue import ArgumentError
from sa_jobqueue.bulk import BulkLoad, FileLog, InsertSource, Progress, SourceChanged
from sa_jobqueue.bulk.log import REMOVED
from sa_jobqueue.bulk.sources.insert_source import fingerprint
from sa_jobqueue.bulk.sources.keys import read_keys, written_keys
from sa_jobqueue.bulk.sources.row_files import rows_from
from sa_jobqueue.bulk.states import BLOCKED

from .fakes import Killed
from .models import Base, Item, Numbered, Thing
from .support import expected, items, killed_in_commit, load_of, texts


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
    """What can be iterated over again and again."""

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
        with pytest.raises(ArgumentError, match=r"one runs in this thread.*to_thread\(load\.run\)"):
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


def write_csv(path: Path, count: int = 10) -> Path:
    lines = [f'{row["id"]},"{row["text"]}"\r\n' for row in items(count)]
    path.write_text("id,text\r\n" + "".join(lines), newline="")
    return path


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
        if progress.inserted == 2:  # of two that are divided
            raise Killed

    load.progress = die
    with pytest.raises(Killed):
        load.run()
    path.write_text(path.read_text().replace("item 9", "item X"))

    with pytest.raises(SourceChanged, match="sha256"):
        load_of(engine, log, path).run()

    assert texts(engine) == expected(6)


def test_a_file_that_has_changed_is_refused_but_by_a_rollback(
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


def test_fewer_rows_than_at_first_are_refused_where_all_are_alike(
    engine: Engine, log: FileLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(count: int) -> BulkLoad[Any]:
        rows = iter([{"number": 1}] * count)  # of a list it would know how many they are
        return BulkLoad(InsertSource(engine, Thing, rows, batch_size=3), log)

    killed_in_commit(monkeypatch, load(10).run, 2, committed=False)

    with pytest.raises(SourceChanged, match="Rows 6 to 8 are not the same"):
        load(8).run()


def test_a_name_that_is_no_column_is_refused_when_the_load_goes_on_too(
    engine: Engine, log: FileLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed_in_commit(monkeypatch, load_of(engine, log).run, 2, committed=False)

    with pytest.raises(ArgumentError, match="Item has no column colour"):
        load_of(engine, log, items_but(7, colour="red")).run()


def test_a_total_that_nobody_knows_is_known_when_all_is_divided(
    engine: Engine, log: FileLog
) -> None:
    load = load_of(engine, log, generated)
    told: list[int | None] = []
    load.progress = lambda progress: told.append(progress.batches)

    load.run()

    assert told == [None] * 4
    assert load.status().batches == 4


def test_what_has_no_lasting_text_is_not_compared() -> None:
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


def test_what_is_no_engine_is_refused(engine: Engine) -> None:
    with pytest.raises(ArgumentError, match=r"a bulk load needs an Engine, not .*driver"):
        InsertSource(Session(engine), Item, [])  # type: ignore[arg-type]  # that is the point


@pytest.mark.parametrize(("total", "there"), [(11, 10), (9, 10)])
def test_a_total_that_is_wrong_is_an_error(
    engine: Engine, log: FileLog, total: int, there: int
) -> None:
    load = load_of(engine, log, generated, total=total)

    with pytest.raises(ArgumentError, match=f"total is {total}, and there are {there} rows"):
        load.run()

    assert load.state is BLOCKED
    load_of(engine, log, generated).run()
    assert texts(engine) == expected(10)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"rows": 5}, "rows are an iterable of mappings"),
        ({"rows": [{"id": 1}], "total": 2}, "total is 2, and there are 1 rows"),
        ({"rows": {"id": 1}}, "rows are an iterable of mappings"),
        ({"rows": "items.xml"}, r"items\.xml is none of \.csv, \.jsonl"),
        ({"rows": [], "batch_size": 0}, "at least one row"),
        ({"rows": [], "on_existing": "ignore"}, "one of error, keep, update"),
        ({"rows": [], "entity": dict}, "not a mapped class"),
    ],
)
def test_what_cannot_be_is_refused(engine: Engine, given: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        InsertSource(engine, **{"entity": Item, **given})


def test_a_name_that_is_no_column_is_refused(engine: Engine, log: FileLog) -> None:
    with pytest.raises(ArgumentError, match="Item has no column colour"):
        load_of(engine, log, [{"id": 1}, {"id": 2, "colour": "red"}]).run()

    assert texts(engine) == {}


# -- what files say -----------------------------------------------------


TYPES = {
    "number": (int, True),
    "amount": (Decimal, True),
    "flag": (bool, True),
    "at": (datetime, True),
    "id": (UUID, False),
    "text": (str, True),
    "document": (dict, True),
    "real": (float, True),
    "day": (date, True),
    "hour": (time, True),
    "data": (bytes, True),
}
ID = UUID("12345678123456781234567812345678")


def test_the_fields_of_a_csv_file_are_values_of_the_columns_types(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(
        "\ufefftext,number,amount,flag,at,id\n"
        f'"two\nlines, ""quoted""",5,1.50,True,2024-05-17 12:30,{ID}\n'
        f",,,,,{ID}\n\n"
        f"é,-1,0,0,2024-05-17,{ID.hex}\n",
        encoding="utf-8",
    )

    found = list(rows_from(path, TYPES).read(0, 0))

    at = datetime(2024, 5, 17, 12, 30)
    assert [row for _, row in found] == [
        dict(
            zip(
                ("text", "number", "amount", "flag", "at", "id"),
                ('two\nlines, "quoted"', 5, Decimal("1.50"), True, at, ID),
                strict=True,
            )
        ),
        {"text": "", "number": None, "amount": None, "flag": None, "at": None, "id": ID},
        {
            "text": "é",
            "number": -1,
            "amount": Decimal(0),
            "flag": False,
            "at": datetime(2024, 5, 17),
            "id": ID,
        },
    ]
    for index, (place, _) in enumerate(found):
        again = rows_from(path, TYPES).read(index, place)
        assert list(again) == found[index:]


def test_a_byte_order_mark_is_no_part_of_a_quoted_name(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes(b'\xef\xbb\xbf"number","text"\r\n"5","a"\r\n')

    assert list(rows_from(path, TYPES).read(0, 0)) == [(20, {"number": 5, "text": "a"})]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("rows.csv", b"id,text\n1,\xe4\n", r"rows\.csv: the row at byte 8 is no CSV in UTF-8"),
        ("rows.csv", b'id,text\n1,a\n2,"b\n3,c\n', "the row at byte 12 is no CSV.*end of data"),
        ("rows.csv", b"id,text\r1,a\r", "the row at byte 0 is no CSV"),
        ("rows.csv", b"id,text\n1,%s\n" % (b"a" * 200_000), "byte 8 is no CSV.*field limit"),
        ("rows.csv", b"id,text,id\n1,a,2\n", "the first line has id twice"),
        ("rows.jsonl", b'{"id": 1}\n{"id": 2', r"rows\.jsonl: the row at byte 10 is no JSON"),
        ("rows.jsonl", b'{"text": "\xe4"}\n', "the row at byte 0 is no JSON in UTF-8"),
        ("rows.jsonl", b"\n[1, 2]\n", "the row at byte 1 is no JSON object"),
    ],
)
def test_what_is_no_row_of_a_file_is_refused_with_its_place(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    path = tmp_path / name
    path.write_bytes(content)

    with pytest.raises(ArgumentError, match=message):
        list(rows_from(path, {}).read(0, 0))


def test_a_row_of_a_csv_file_with_another_number_of_fields_is_named(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("id,text\n1,a\n2\n")

    with pytest.raises(ArgumentError, match="the row at byte 12 has 1 fields, not 2"):
        list(rows_from(path, {}).read(0, 0))


@pytest.mark.parametrize(
    ("name", "field", "kind"),
    [
        ("number", "two", "int"),
        ("flag", "no", "bool"),
        ("id", "", "UUID"),
        ("amount", "much", "Decimal"),
    ],
)
def test_a_field_that_is_no_value_of_its_column_is_named(
    tmp_path: Path, name: str, field: str, kind: str
) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(f"{name},text\n{field},b\n")

    with pytest.raises(ArgumentError, match=rf"rows\.csv: {name}='{field}' is no {kind}"):
        list(rows_from(path, TYPES).read(0, 0))


@pytest.mark.parametrize("suffix", ["jsonl", "ndjson", "JSONL"])
def test_the_values_of_a_json_file_are_of_the_columns_types(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"rows.{suffix}"
    path.write_text(
        f'{{"id": "{ID}", "number": 5, "at": null}}\n\n{{"amount": "1.5"}}\n'
        '{"real": "1.5", "day": "2024-05-17", "hour": "12:30", "data": "00ff"}\n'
    )

    found = [row for _, row in rows_from(path, TYPES).read(0, 0)]

    assert found == [
        {"id": ID, "number": 5, "at": None},
        {"amount": Decimal("1.5")},
        {"real": 1.5, "day": date(2024, 5, 17), "hour": time(12, 30), "data": b"\x00\xff"},
    ]


def test_a_number_of_a_json_file_keeps_its_digits(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"amount": 1234567890123456.7891, "number": 1, "real": 0.1}')

    ((_, row),) = rows_from(path, TYPES).read(0, 0)

    assert row == {"amount": Decimal("1234567890123456.7891"), "number": 1, "real": 0.1}


@pytest.mark.parametrize(
    ("name", "content", "documents"),
    [
        ("rows.csv", 'document\n"{""a"": [1]}"\n"""text"""\n""\n', [{"a": [1]}, "text", None]),
        ("rows.jsonl", '{"document": ""}\n{"document": "5"}\n', ["", "5"]),
    ],
)
def test_documents_are_json_in_a_csv_file_and_themselves_in_a_json_file(
    tmp_path: Path, name: str, content: str, documents: list[Any]
) -> None:
    path = tmp_path / name
    path.write_text(content)

    assert [row["document"] for _, row in rows_from(path, TYPES).read(0, 0)] == documents


def test_an_empty_text_is_none_where_a_column_has_no_texts(tmp_path: Path) -> None:
    types = {"number": (int, True), "period": (timedelta, True), "tags": (list, True)}
    rows, lines = tmp_path / "rows.csv", tmp_path / "rows.jsonl"
    rows.write_text('number,period,tags\n1,,"[2, 3]"\n')
    lines.write_text('{"number": ""}\n')

    ((_, row),) = rows_from(rows, types).read(0, 0)
    ((_, line),) = rows_from(lines, types).read(0, 0)

    assert row == {"number": 1, "period": None, "tags": [2, 3]}
    assert line == {"number": None}


def test_an_empty_csv_file_has_no_rows(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.touch()

    assert list(rows_from(path, TYPES).read(0, 0)) == []


def test_a_file_is_known_again_by_its_name_its_size_and_its_hash(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "rows.csv")
    content = path.read_bytes()

    assert rows_from(path, TYPES).details == {
        "file": "rows.csv",
        "size": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
    }


def test_a_document_that_is_no_json_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("document\n{\n")

    with pytest.raises(ArgumentError, match=r"rows\.csv: document='\{' is no JSON"):
        list(rows_from(path, TYPES).read(0, 0))


@pytest.mark.parametrize(
    ("keys", "written"),
    [
        ([(5,), (6,), (7,)], [{"ints": [5, 3]}]),
        ([(5,), (7,)], [{"int": [5, 7]}]),
        ([(1, "a"), (2, "b")], [{"ints": [1, 2]}, {"str": ["a", "b"]}]),
        ([(ID,)], [{"UUID": [ID.hex]}]),
        ([(Decimal("1.50"),)], [{"Decimal": ["1.50"]}]),
        ([(datetime(2024, 5, 17, 1, 2, 3, 4),)], [{"datetime": ["2024-05-17T01:02:03.000004"]}]),
        ([(b"\x00\xff",)], [{"bytes": ["00ff"]}]),
    ],
)
def test_keys_are_read_as_they_were_written(keys: Any, written: Any) -> None:
    assert written_keys(keys) == written
    assert read_keys(json.loads(json.dumps(written))) == keys


@pytest.mark.parametrize("keys", [[(True,)], [(1,), ("a",)], [(1.5,)]])
def test_keys_that_a_log_cannot_keep_are_refused(keys: Any) -> None:
    with pytest.raises(ArgumentError, match="keys of one of the types Decimal, UUID, bytes"):
        written_keys(keys)
