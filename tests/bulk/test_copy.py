"""COPY stores what INSERT stores, and leaves to INSERT what has no text form."""

from __future__ import annotations

import enum
import math
import uuid
from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest
from sqlalchemy import (
    ARRAY,
    JSON,
    DateTime,
    Engine,
    Enum,
    Integer,
    Interval,
    Numeric,
    create_engine,
    delete,
    insert,
    select,
    text,
)
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from sa_jobqueue.bulk import BulkLoad, FileLog, InsertSource, Progress
from tests.support import statements_seen

from .models import Item
from .support import add_items, expected, load_of, texts

pytestmark = pytest.mark.only_on("postgresql")


class Mood(enum.Enum):
    GOOD = "good"
    BAD = "bad"


class Own(DeclarativeBase):
    pass


class Value(Own):
    """A value of each type, under names that need quotes; COPY leaves the last three to INSERT."""

    __tablename__ = "bulk values"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    text: Mapped[str | None] = mapped_column("Some Text")
    real: Mapped[float | None]
    amount: Mapped[Decimal | None] = mapped_column(Numeric(40, 20))
    flag: Mapped[bool | None]
    at: Mapped[datetime | None]
    at_zone: Mapped[datetime | None] = mapped_column(DateTime(timezone=True))
    day: Mapped[date | None]
    hour: Mapped[time | None]
    uuid: Mapped[uuid.UUID | None]
    data: Mapped[bytes | None]
    mood: Mapped[Mood | None]
    constant: Mapped[str] = mapped_column(default="a\tb\\")
    humour: Mapped[Mood] = mapped_column(Enum(Mood, native_enum=False), default=Mood.BAD)
    numbers: Mapped[list[int] | None] = mapped_column(ARRAY(Integer))
    document: Mapped[Any | None] = mapped_column(JSON)
    lasts: Mapped[timedelta | None] = mapped_column(Interval)


@pytest.fixture
def engine(engine: Engine) -> Iterator[Engine]:
    Own.metadata.create_all(engine)
    yield engine
    Own.metadata.drop_all(engine)


class Word(str):
    """A text of a class of its own."""

    __slots__ = ()

    def __str__(self) -> str:
        return "not this"


#: Ends the connection that copies.
#: Other processes run this test in databases of their own.
END = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
    "WHERE application_name = 'copies' AND datname = current_database()"
)

EAST = timezone(timedelta(hours=5, minutes=30))
NASTY: list[tuple[str, Any]] = [
    *(("text", text) for text in ("", "\\N", "\\.", "\\", "a\tb", "a\nb", "a\rb", "\r\n", "\\t")),
    *(("text", text) for text in ("é€😀", "\x01\x0b\x0c\x85\u2028", "'\"%s:a", " ")),
    *(("real", real) for real in (math.nan, math.inf, -math.inf, 1 / 3, 1e300, 5e-324, 7)),
    *(("amount", Decimal(text)) for text in ("12345678901234567890.123456789", "1E+3", "NaN")),
    *(("flag", flag) for flag in (True, False)),
    *(("at", at) for at in (datetime(2024, 5, 17, 1, 2, 3, 4), datetime.min)),
    *(("at_zone", datetime(2024, 5, 17, 1, 2, 3, 4, tzinfo=zone)) for zone in (UTC, EAST)),
    ("day", date(2024, 5, 17)),
    ("hour", time(1, 2, 3, 4)),
    ("uuid", uuid.UUID(int=5)),
    *(("data", data) for data in (b"", b"\\x41", bytes(range(256)))),
    ("mood", Mood.GOOD),
]
NOTHING = dict.fromkeys(name for name, _ in NASTY)


def stored(engine: Engine, entity: type[Any]) -> list[str]:
    """Return what is in the table, as text: NaN is not equal to itself."""
    with engine.connect() as connection:
        found = connection.execute(select(entity.__table__).order_by(entity.__table__.c.id))
        return [repr(tuple(row)) for row in found]


def test_copy_stores_what_insert_stores(engine: Engine, log: FileLog) -> None:
    rows = [{"id": n, **NOTHING, name: value} for n, (name, value) in enumerate(NASTY)]
    with Session(engine) as session, session.begin():
        session.execute(insert(Value), rows)
    inserted = stored(engine, Value)
    with engine.begin() as connection:
        connection.execute(delete(Value))

    with statements_seen(engine) as seen:
        BulkLoad(InsertSource(engine, Value, rows, batch_size=3), log).run()

    assert stored(engine, Value) == inserted
    assert [statement for statement in seen if "INSERT" in statement] == []


@pytest.mark.parametrize(
    ("name", "given", "arrives"),
    [
        ("text", Word("a\tb"), "a\tb"),
        ("numbers", [1, 2], [1, 2]),
        ("document", {"a": ["\t\\"]}, {"a": ["\t\\"]}),
        ("lasts", timedelta(days=1, seconds=5), timedelta(days=1, seconds=5)),
    ],
)
def test_rows_that_copy_cannot_write_are_inserted(
    engine: Engine, log: FileLog, name: str, given: Any, arrives: Any
) -> None:
    rows = [{"id": 1, name: given}, {"id": 2, name: None}]
    BulkLoad(InsertSource(engine, Value, rows), log).run()

    with engine.connect() as connection:
        found = connection.execute(select(getattr(Value, name)).order_by(Value.id)).scalars()
        assert list(found) == [arrives, None]


@pytest.mark.parametrize("driver", ["psycopg2", "psycopg"])
def test_an_error_in_copy_is_raised_as_sqlalchemys(
    engine: Engine, log: FileLog, driver: str
) -> None:
    pytest.importorskip(driver)
    url = engine.url.set(drivername=f"postgresql+{driver}")
    other = create_engine(url.update_query_dict({"application_name": "copies"}))
    add_items(engine, 4)
    load = load_of(other, log)
    with pytest.raises(IntegrityError, match="COPY"):
        load.run()
    assert texts(engine) == {**expected(3), 4: "foreign"}

    def end_the_connection(_: Progress) -> None:
        with engine.begin() as connection:
            connection.execute(text(END))

    with engine.begin() as connection:
        connection.execute(delete(Item))
    load.progress = end_the_connection
    with pytest.raises(DBAPIError, match="COPY") as raised:
        load.run()

    assert raised.value.connection_invalidated
    other.dispose()
