"""The queue's columns by their roles: types, defaults, and the order in a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import DateTime, Integer, SmallInteger, String, Text
from sqlalchemy.dialects import mysql
from sqlalchemy.orm import mapped_column
from sqlalchemy.types import TypeEngine

from ..dialects.clock import clock_default, utc_now
from .options import QueueArgs
from .status import STATUS_LENGTH, UNCLAIMED

OWNER_LENGTH = 64

#: The key in Column.info by which we recognise our columns.
MARK = "sa_jobqueue"

#: The key in a status column's info for the table's own words, by status.
WORDS = "sa_jobqueue_words"


def timestamp_type() -> TypeEngine[datetime]:
    """Return the type of every point in time: UTC with microseconds, on each database."""
    return DateTime(timezone=True).with_variant(mysql.DATETIME(fsp=6), "mysql", "mariadb")


def _status(entity: type) -> Any:
    args = QueueArgs.of(entity)
    word = args.word(UNCLAIMED)
    return String(max(STATUS_LENGTH, *map(len, args.words))), _required(word, insert_default=word)


def _priority(entity: type) -> Any:
    return SmallInteger(), _required("0", insert_default=0)


def _run_at(entity: type) -> Any:
    return timestamp_type(), _required(clock_default(), insert_default=utc_now())


def _count(entity: type) -> Any:
    return Integer(), _required("0", insert_default=0)


def _max_attempts(entity: type) -> Any:
    # Else the ORM would write the default for a None, which means: for ever.
    type_ = Integer().evaluates_none()
    most = QueueArgs.of(entity).max_attempts
    default = {} if most is None else {"server_default": str(most), "insert_default": most}
    return type_, {**_OPTIONAL, **default}


def _required(server_default: Any, *, insert_default: Any) -> dict[str, Any]:
    return {
        "nullable": False,
        "server_default": server_default,
        "insert_default": insert_default,
    }


_OPTIONAL = {"nullable": True}

#: Each role's type and options, for the class that gets the column.
_COLUMNS: Mapping[str, Callable[[type], tuple[TypeEngine[Any], dict[str, Any]]]] = {
    "status": _status,
    "owner": lambda entity: (String(OWNER_LENGTH), _OPTIONAL),
    "owner_date": lambda entity: (timestamp_type(), _OPTIONAL),
    "priority": _priority,
    "run_at": _run_at,
    "attempts": _count,
    "max_attempts": _max_attempts,
    "last_error": lambda entity: (Text(), _OPTIONAL),
    "round": _count,
}

#: The mixins' columns come behind the user's own, in this order.
_SORT_ORDER = {role: 1_000 + ordinal for ordinal, role in enumerate(_COLUMNS)}


def column_of(role: str, name: str, entity: type) -> Any:
    """Return the column of a role for a class, under the given name."""
    type_, options = _COLUMNS[role](entity)
    return mapped_column(name, type_, sort_order=_SORT_ORDER[role], info={MARK: role}, **options)
