"""What a job can be, and how statuses stand in SQL.

Which verb changes which status, and to what, is in ``transitions.py``.
"""

from __future__ import annotations

import re
from enum import Enum, StrEnum
from typing import Any

from sqlalchemy import ColumnElement, String, literal_column, select, type_coerce
from sqlalchemy import Enum as EnumType
from sqlalchemy.types import TypeEngine

from ..dialects.expressions import as_enum
from ..errors import ArgumentError

#: The length of our own status column, unless a word of the queue is longer.
STATUS_LENGTH = 16

#: The most characters of a word.
LONGEST_WORD = 64


class JobStatus(StrEnum):
    """The five statuses; a member is its plain string."""

    UNCLAIMED = "unclaimed"
    CLAIMED = "claimed"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


UNCLAIMED, CLAIMED, DONE, FAILED, CANCELLED = JobStatus

# Statuses stand in the SQL as literals, because no planner proves from a parameter that a
# partial index serves. So a word must need no escaping on any database.
_WORD = re.compile(r"[\w][\w .:-]*", re.ASCII)


def status_word(word: str) -> str:
    """Return `word` as a plain string, checked to be usable as a status.

    Raises:
        ArgumentError: longer than 64 characters, or with characters other
            than letters, digits, underscore, space, dot, colon and hyphen.
    """
    plain = str(word.value) if isinstance(word, Enum) else word
    if not isinstance(plain, str) or len(plain) > LONGEST_WORD or not _WORD.fullmatch(plain):
        raise ArgumentError(
            f"{word!r} cannot be a status: use at most {LONGEST_WORD} letters, digits, "
            "underscores, spaces, dots, colons or hyphens"
        )
    return plain


def word_literal(word: str, type_: TypeEngine[Any] | None = None) -> ColumnElement[Any]:
    """Return a status word as an SQL literal.

    Args:
        type_: of the column that the word is written to, or read as; a comparison needs none.
    """
    literal: ColumnElement[Any] = literal_column(f"'{status_word(word)}'", type_)
    return as_enum(literal, type_) if type_ is not None and _is_native(type_) else literal


def status_again(status: Any, word: str) -> ColumnElement[bool]:
    """Compare a status with a word so that PostgreSQL does not know it for an index's condition.

    A LIKE without a wildcard is a comparison for equality to an index. An enum has no LIKE; there
    the word comes from a subquery.
    """
    if _is_native(status.type):
        again: ColumnElement[bool] = (
            status == select(word_literal(word, status.type)).scalar_subquery()
        )
        return again
    pattern = status_word(word).replace("_", "\\_")
    like: ColumnElement[bool] = status.like(literal_column(f"'{pattern}'"))
    return like


def as_word(status: Any) -> ColumnElement[str]:
    """Read a status as the table's own word, also where its type is an Enum of Python's."""
    return type_coerce(status, String())


def _is_native(type_: TypeEngine[Any]) -> bool:
    return isinstance(type_, EnumType) and bool(type_.native_enum)


def status_is(status: Any, *words: str) -> ColumnElement[bool]:
    """Compare a status column with literal words, so that partial indexes serve."""
    literals = [word_literal(word) for word in words]
    criterion: ColumnElement[bool] = (
        status == literals[0] if len(literals) == 1 else status.in_(literals)
    )
    return criterion


def status_is_not(status: Any, *words: str) -> ColumnElement[bool]:
    """Compare a status column with literal words that it may not have."""
    criterion: ColumnElement[bool] = status.not_in([word_literal(word) for word in words])
    return criterion
