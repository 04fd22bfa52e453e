"""What a job can be, and how statuses stand in SQL.

Which verb changes which status, and to what, is in ``transitions.py``.
"""

from __future__ import annotations

import re
from enum import Enum, StrEnum
from typing import Any

from sqlalchemy import ColumnElement, literal_column

from ..errors import ArgumentError

STATUS_LENGTH = 16


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
        ArgumentError: longer than 16 characters, or with characters other
            than letters, digits, underscore, space, dot, colon and hyphen.
    """
    plain = str(word.value) if isinstance(word, Enum) else word
    if not isinstance(plain, str) or len(plain) > STATUS_LENGTH or not _WORD.fullmatch(plain):
        raise ArgumentError(
            f"{word!r} cannot be a status: use at most {STATUS_LENGTH} letters, digits, "
            "underscores, spaces, dots, colons or hyphens"
        )
    return plain


def word_literal(word: str) -> ColumnElement[str]:
    """Return a status word as an SQL literal."""
    return literal_column(f"'{status_word(word)}'")


def exact_pattern(word: str) -> ColumnElement[str]:
    """Return a status word as a LIKE pattern that only the word itself matches."""
    pattern = status_word(word).replace("_", "\\_")
    return literal_column(f"'{pattern}'")


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
