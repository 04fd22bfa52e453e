"""Keys as people write them: what is written is read again."""

from __future__ import annotations

import enum
import uuid
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some
from sqlalchemy import Boolean, Date, DateTime, Enum, Float, LargeBinary, Numeric, String, Time
from sqlalchemy.orm import DeclarativeBase, mapped_column

from sa_jobqueue import ArgumentError, JobMixin, JobQueue

# Inner: a parser that the commands and the page share; each text is tried beside it.
from sa_jobqueue.steering import key_from, key_text, keys_from
from tests.models import Document, Email, Pair

ANY_TEXT = some.text(some.characters(exclude_characters="\0", exclude_categories=["Cs"]))


@given(some.integers(-(2**63) + 1, 2**63 - 1), ANY_TEXT)
def test_a_wide_key_is_read_as_it_was_written(left: int, right: str) -> None:
    key = (left, right)

    assert key_from(JobQueue(Pair).mapping, key_text(key)) == key


@pytest.mark.parametrize(
    ("entity", "text", "key"),
    [
        (Email, "7", (7,)),
        (Document, "00000000-0000-0000-0000-000000000007", (uuid.UUID(int=7),)),
        (Pair, "7,north", (7, "north")),
        (Pair, "7,", (7, "")),
        (Pair, r"7,a\,b\\c", (7, "a,b\\c")),
    ],
)
def test_a_key_is_a_text(entity: Any, text: str, key: tuple[Any, ...]) -> None:
    assert key_from(JobQueue(entity).mapping, text) == key
    assert key_text(key) == text


NO_KEYS = {
    Email: ["", "x", "1,2", str(2**63), "9" * 5_000],
    Document: ["7"],
    Pair: ["7", "7,north,8", "north,7", "7,a\0b", "7,a\\"],
}


@pytest.mark.parametrize(
    ("entity", "text"), [(entity, text) for entity, texts in NO_KEYS.items() for text in texts]
)
def test_what_is_no_key_is_refused(entity: Any, text: str) -> None:
    with pytest.raises(ArgumentError, match=f"is no key of {entity.__name__}, which is "):
        key_from(JobQueue(entity).mapping, text)


class Color(enum.Enum):
    RED = "r"


KINDS: list[tuple[Any, Any, str, list[str]]] = [
    (Date(), date(2026, 1, 2), "2026-01-02", ["", "x", "2026-13-45"]),
    (DateTime(), datetime(2026, 1, 2, 3, 4, 5), "2026-01-02T03:04:05", ["", "today"]),
    (Time(), time(3, 4, 5), "03:04:05", ["25:00"]),
    (Numeric(10, 2), Decimal("1.50"), "1.50", ["", "x", "NaN", "Infinity", "1e999999"]),
    (Float(53), 1.5, "1.5", ["", "x", "nan", "inf", "1e999"]),
    (Boolean(), True, "True", ["", "x", "2"]),
    (LargeBinary(), b"\x01\xff/", "01ff2f", ["x", "0"]),
    (Enum(Color), Color.RED, "RED", ["", "r", "Color.RED", "__class__"]),
    (String(20), "a/b, c", "a/b, c", ["a\0b", "\udcff"]),
]


@pytest.mark.parametrize(("kind", "value", "text", "wrong"), KINDS)
def test_a_key_of_any_type_is_a_text(kind: Any, value: Any, text: str, wrong: list[str]) -> None:
    class Base(DeclarativeBase):
        pass

    names = {"__tablename__": "keyed", "id": mapped_column(kind, primary_key=True)}
    mapping = JobQueue(type("Keyed", (JobMixin, Base), names)).mapping

    assert key_text((value,)) == text
    assert key_from(mapping, text) == (value,)
    for each in wrong:
        with pytest.raises(ArgumentError, match="is no key of Keyed"):
            key_from(mapping, each)


def test_each_key_counts_once() -> None:
    assert keys_from(JobQueue(Email).mapping, ["7", "8", "07"]) == [(7,), (8,)]
