"""The fields of CSV and JSON files become values of the columns' types."""

from __future__ import annotations

import hashlib
import json
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import JSON, Engine, Integer, String, TypeDecorator
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.ext.mutable import MutableDict
from sqlalchemy.orm import Mapped, declarative_base, mapped_column

from sa_jobqueue import ArgumentError
from sa_jobqueue.bulk import BulkLoad, FileLog, InsertSource
from sa_jobqueue.bulk.sources.destination import Destination
from sa_jobqueue.bulk.sources.keys import decode_keys, encode_keys
from sa_jobqueue.bulk.sources.row_files import rows_from
from tests.bulk.models import Thing
from tests.bulk.sources.support import stored_things, write_csv

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
    "pause": (timedelta, True),
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
        ("rows.csv", b"id,text\n1,\xe4\n", r"rows\.csv: the row at byte 8 is not CSV in UTF-8"),
        ("rows.csv", b'id,text\n1,a\n2,"b\n3,c\n', "the row at byte 12 is not CSV.*end of data"),
        ("rows.csv", b"id,text\r1,a\r", "the row at byte 0 is not CSV"),
        ("rows.csv", b"id,text\n1,%s\n" % (b"a" * 200_000), "byte 8 is not CSV.*field limit"),
        ("rows.csv", b"id,text,id\n1,a,2\n", "the first line has id twice"),
        ("rows.jsonl", b'{"id": 1}\n{"id": 2', r"rows\.jsonl: the row at byte 10 is not JSON"),
        ("rows.jsonl", b'{"text": "\xe4"}\n', "the row at byte 0 is not JSON in UTF-8"),
        ("rows.jsonl", b"\n[1, 2]\n", "the row at byte 1 is not a JSON object"),
        ("rows.jsonl", b'{"text": "a"}\n{"text": "\\uD800"}\n', r"byte 14 has '.ud800' alone"),
        ("rows.jsonl", b'{"\\udFFF": 1}\n', r"byte 0 has '.udfff' alone, which is half of a"),
    ],
)
def test_a_line_that_is_no_row_is_refused_with_its_position(
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
        ("pause", "PT5S", "timedelta: give seconds, or hours:minutes:seconds"),
        ("pause", "inf", "timedelta"),
        ("pause", "1:60:00", "timedelta"),
        ("pause", "1:00:60", "timedelta"),
    ],
)
def test_a_field_that_is_no_value_of_its_column_is_named(
    tmp_path: Path, name: str, field: str, kind: str
) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(f"{name},text\n{field},b\n")

    with pytest.raises(ArgumentError, match=rf"csv: {name}='{field}' cannot be read as {kind}"):
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


def test_a_character_that_is_escaped_as_its_two_halves_is_read(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"text": "\\ud83d\\ude00"}')

    ((_, row),) = rows_from(path, TYPES).read(0, 0)

    assert row == {"text": "\N{GRINNING FACE}"}


@pytest.mark.parametrize(
    "duration",
    [timedelta(seconds=5), timedelta(days=-1, seconds=1.5), timedelta(days=40, microseconds=1)],
)
def test_a_duration_is_read_as_python_writes_it_and_as_seconds(
    tmp_path: Path, duration: timedelta
) -> None:
    seconds = duration.total_seconds()
    csv, jsonl = tmp_path / "rows.csv", tmp_path / "rows.jsonl"
    csv.write_text(f'pause,number\n"{duration}",1\n{seconds},2\n,3\n')
    jsonl.write_text(
        f'{{"pause": "{duration}"}}\n{{"pause": {seconds}}}\n{{"pause": null}}\n{{"pause": 3}}'
    )

    from_csv = [row["pause"] for _, row in rows_from(csv, TYPES).read(0, 0)]
    from_json = [row["pause"] for _, row in rows_from(jsonl, TYPES).read(0, 0)]

    assert from_csv == [duration, duration, None]
    assert from_json == [duration, duration, None, timedelta(seconds=3)]


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


class Prefs(TypeDecorator[Any]):
    impl = JSON
    cache_ok = True


class Code(TypeDecorator[str]):
    impl = String
    cache_ok = True


class Count(TypeDecorator[int]):
    impl = Integer
    cache_ok = True


def test_the_fields_of_a_csv_file_fit_a_class_with_documents_and_types_of_its_own(
    tmp_path: Path,
) -> None:
    class Account(declarative_base()):  # type: ignore[misc]  # a call
        __tablename__ = "account"
        id: Mapped[int] = mapped_column(primary_key=True)
        document: Mapped[Any | None] = mapped_column(JSON().with_variant(JSONB(), "postgresql"))
        watched: Mapped[Any | None] = mapped_column(MutableDict.as_mutable(JSON()))
        prefs: Mapped[Any | None] = mapped_column(Prefs)
        code: Mapped[str | None] = mapped_column(Code)
        count: Mapped[int | None] = mapped_column(Count)

    path = tmp_path / "rows.csv"
    path.write_text('id,document,watched,prefs,code,count\n1,[],{},"""a""",,\n2,,,,c,3\n')

    found = rows_from(path, Destination(Account).types).read(0, 0)

    assert [tuple(row.values()) for _, row in found] == [
        (1, [], {}, "a", "", None),
        (2, None, None, None, "c", "3"),
    ]


def test_the_documents_of_a_csv_file_are_stored_as_documents(
    engine: Engine, log: FileLog, tmp_path: Path
) -> None:
    path = tmp_path / "rows.csv"
    path.write_text('number,document\n1,"{""a"": [1]}"\n')

    BulkLoad(InsertSource(engine, Thing, path), log).run()

    (thing,) = stored_things(engine)
    assert thing["document"] == {"a": [1]}


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


def test_a_file_is_recognized_by_its_name_size_and_hash(tmp_path: Path) -> None:
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

    with pytest.raises(ArgumentError, match=r"rows\.csv: document='\{' cannot be read as JSON"):
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
    assert encode_keys(keys) == written
    assert decode_keys(json.loads(json.dumps(written))) == keys


@pytest.mark.parametrize("keys", [[(True,)], [(1,), ("a",)], [(1.5,)]])
def test_keys_that_a_log_cannot_keep_are_refused(keys: Any) -> None:
    with pytest.raises(ArgumentError, match="keys of one of the types Decimal, UUID, bytes"):
        encode_keys(keys)
