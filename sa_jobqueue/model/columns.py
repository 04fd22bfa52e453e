"""The queue's columns by their roles, the table of its rounds, and what a type can keep."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

from sqlalchemy import (
    BLANK_SCHEMA,
    BigInteger,
    Column,
    DateTime,
    Integer,
    SmallInteger,
    String,
    Table,
    Text,
)
from sqlalchemy.dialects import mysql
from sqlalchemy.engine import Dialect
from sqlalchemy.orm import mapped_column
from sqlalchemy.types import TypeEngine

from ..databases.clock import clock_default, utc_now
from ..errors import ArgumentError
from .indexes import shortened
from .keys import table_in
from .mapping import QueueMapping
from .status import STATUS_LENGTH, UNCLAIMED, QueueArgs

OWNER_LENGTH = 64

#: The key in Column.info by which we recognise our columns.
MARK = "sa_jobqueue"

#: The key in a status column's info for the table's own words, by status.
WORDS = "sa_jobqueue_words"


#: How text becomes a value of a column, for what neither JSON nor a command line can write.
FROM_TEXT: Mapping[Any, Callable[[str], Any]] = {
    date: date.fromisoformat,
    datetime: datetime.fromisoformat,
    time: time.fromisoformat,
    Decimal: Decimal,
    UUID: UUID,
}


def timestamp_type() -> TypeEngine[datetime]:
    """Return the type of every point in time: UTC with microseconds, on each database."""
    return DateTime(timezone=True).with_variant(mysql.DATETIME(fsp=6), "mysql", "mariadb")


def column_of(role: str, name: str, entity: type) -> Any:
    """Return the column of a role for a class, under the given name."""
    args = QueueArgs.of(entity)
    word, most = args.word(UNCLAIMED), args.max_attempts
    # Each with the default of the table and that of the ORM. The mixins' columns come behind the
    # user's own, in this order.
    columns: dict[str, tuple[TypeEngine[Any], Any, Any]] = {
        "status": (String(max(STATUS_LENGTH, *map(len, args.words))), word, word),
        "owner": (String(OWNER_LENGTH), None, None),
        "owner_date": (timestamp_type(), None, None),
        "priority": (SmallInteger(), "0", 0),
        "run_at": (timestamp_type(), clock_default(), utc_now()),
        "attempts": (Integer(), "0", 0),
        # Else the ORM would write the default for a None, which means: for ever.
        "max_attempts": (Integer().evaluates_none(), None if most is None else str(most), most),
        "last_error": (Text(), None, None),
        "round": (Integer(), "0", 0),
        "expires_at": (timestamp_type(), None, None),
        "group_id": (BigInteger(), None, None),
    }
    type_, of_table, of_orm = columns[role]
    defaults = {} if of_orm is None else {"server_default": of_table, "insert_default": of_orm}
    return mapped_column(
        name,
        type_,
        nullable=of_orm is None or role == "max_attempts",
        sort_order=1_000 + list(columns).index(role),
        info={MARK: role},
        **defaults,
    )


# The table that records a queue's rounds: ``<table>_rounds``.
#
# It gives out each number once, and tells a round whose start was interrupted from a
# complete one. The queue's rows could not tell: a row that was claimed at the time, or that
# was inserted since, looks like a forgotten row.
#
# ::
#
#     round  criteria  begun_at             started_at
#     1      5f3a..    2026-01-05 08:00:00  2026-01-05 08:00:07
#     2      5f3a..    2026-02-02 08:00:00  NULL                  killed while it started
#
# It is in the metadata of the queue's table, so ``create_all()`` and Alembic create it.

#: The databases' shortest limit for a name, less our suffix.
_ROOM = 63 - len("_rounds")

#: Where a queue's table keeps the table of its rounds; see `indexes.py` for the reason.
_KEPT = "_sa_jobqueue_rounds"


def add_round_table(mapping: QueueMapping, timestamp: TypeEngine[Any]) -> None:
    """Add the table of a queue's rounds to the metadata of the queue's table, once.

    Raises:
        ArgumentError: another table has this name.
    """
    table = mapping.table
    name = f"{shortened(table.name, _ROOM)}_rounds"
    if _KEPT in vars(table):
        return
    if table_in(table.metadata, name, table.schema) is not None:
        raise ArgumentError(
            f"{name!r} is the table that records the rounds of {mapping}, and the metadata has "
            "another table of this name: rename the other table"
        )
    vars(table)[_KEPT] = Table(
        name,
        table.metadata,
        Column("round", Integer, primary_key=True, autoincrement=False),
        Column("criteria", String(64), nullable=False),
        Column("begun_at", timestamp, nullable=False),
        Column("started_at", timestamp),
        schema=BLANK_SCHEMA if table.schema is None else table.schema,
    )


def round_table(mapping: QueueMapping) -> Table:
    """Return the table of a queue's rounds.

    Raises:
        ArgumentError: a class without RoundMixin, or with it in another table than the status.
    """
    if not mapping.has("round"):
        raise ArgumentError(f"{mapping} has no rounds: add RoundMixin to its bases")
    if mapping.column("round").table is not mapping.table:
        raise ArgumentError(
            f"the round of {mapping} is in another table than its status: put RoundMixin into the "
            "class that has JobMixin"
        )
    rounds: Table = vars(mapping.table)[_KEPT]
    return rounds


# What ``last_error`` keeps of an error: text that every database stores, of bounded length.
#
# ::
#
#     error_text(ValueError("no luck"), 10_000)  # "ValueError: no luck"
#
# A long text keeps both ends: a message says most at its beginning, a traceback at its end.
# The length counts characters, not bytes, so no character is cut in two.

#: What is kept of an error, in characters: at most 40,000 of the 65,535 bytes that
#: MySQL's TEXT holds.
ERROR_LENGTH = 10_000

#: The shortest column that will do: it holds the longest text that reap() has the database write.
SHORTEST_LENGTH = 100

#: Room for the line that tells how much was left out.
_GAP = 40


def error_length(*mappings: QueueMapping) -> int:
    """Return how many characters fit into the last_error of all of these classes."""
    columns = [mapping.column("last_error") for mapping in mappings if mapping.has("last_error")]
    lengths = [getattr(column.type, "length", None) or ERROR_LENGTH for column in columns]
    return int(min([ERROR_LENGTH, *lengths]))


def error_text(error: str | BaseException | None, length: int = ERROR_LENGTH) -> str | None:
    """Return what last_error keeps of an error, at most `length` characters."""
    if error is None:
        return None
    if isinstance(error, BaseException):
        error = _told(error)
    # Characters that a database refuses must not keep a failure from being written.
    storable = error.replace("\0", "\\0").encode("utf-8", "backslashreplace").decode("utf-8")
    return _shortened(storable, length) or None


def in_ascii(text: str) -> str:
    """Return a text as every column can store it, such as one of MySQL in latin1 or utf8mb3."""
    return text.encode("ascii", "backslashreplace").decode("ascii")


def first_line(error: str | BaseException | None) -> str:
    """Return the beginning of an error, for a line in a log."""
    return (error_text(error) or "").partition("\n")[0][:200]


def _told(error: BaseException) -> str:
    """Return an error's type and message, and after those of a group what its members say."""
    text = f"{type(error).__name__}: {_message(error)}"
    if not isinstance(error, BaseExceptionGroup):
        return text
    return f"{text}: {'; '.join(map(_told, error.exceptions))}"


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as unprintable:
        return f"(its text raised {type(unprintable).__name__})"


def _shortened(text: str, length: int) -> str:
    """Cut the middle out of a text that is too long."""
    if len(text) <= length:
        return text
    kept = length - _GAP
    begin, end = text[: kept - kept // 2], text[len(text) - kept // 2 :]
    return f"{begin}\n.. {len(text) - kept} characters ..\n{end}"


# Whether a column keeps a time zone, and the microseconds of owner_date.
#
# The microseconds are a part of the fence. Where a column does not keep them, the row holds another
# time than the token of its claim, and every finish is lost.

DIGITS = 6

#: The number in ``DATETIME(6)`` or ``TIMESTAMP(3) WITH TIME ZONE``.
_NUMBER = re.compile(r"\((\d+)\)")

_SOME_TIME = datetime(2001, 2, 3, 4, 5, 6, 123457, tzinfo=UTC)


def has_no_zone(type_: TypeEngine[Any], dialect: Dialect) -> bool:
    """Tell whether a type is a time without a time zone, in SQL."""
    return "WITHOUT TIME ZONE" in type_.compile(dialect=dialect)


def loses_microseconds(type_: TypeEngine[Any], dialect: Dialect, default: int) -> str | None:
    """Tell how a type loses microseconds on a database; None: it keeps them.

    Args:
        default: the digits of a type that names no number.
    """
    written = type_.compile(dialect=dialect)
    number = _NUMBER.search(written)
    digits = int(number[1]) if number else default
    if digits < DIGITS:
        return f"{written} keeps {digits} digits of a second"
    own = type_.dialect_impl(dialect)
    write, read = own.bind_processor(dialect), own.result_processor(dialect, None)
    stored = _SOME_TIME if write is None else write(_SOME_TIME)
    back = stored if read is None else read(stored)
    if getattr(back, "microsecond", None) != _SOME_TIME.microsecond:
        return f"{type_!r} gives back {back!r} for {_SOME_TIME!r}"
    return None


def same_kind(left: TypeEngine[Any], right: TypeEngine[Any]) -> bool:
    """Tell whether two types hold the same kind of value, such as INTEGER and BIGINT."""
    return left._type_affinity is right._type_affinity


def variant_of(type_: TypeEngine[Any], dialect: str) -> TypeEngine[Any] | None:
    """Return what ``with_variant()`` has given a type for a dialect; None: nothing."""
    return type_._variant_mapping.get(dialect)
