"""What a job can be, and which change of status each verb makes.

:data:`TRANSITIONS` is the state diagram of ``docs/architecture.md``; a test
holds the two against each other, and every write of the library names the
status that it leaves in its WHERE clause.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum, StrEnum

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

TRANSITIONS: Mapping[str, frozenset[tuple[JobStatus, JobStatus]]] = {
    "claim": frozenset({(UNCLAIMED, CLAIMED)}),
    "complete": frozenset({(CLAIMED, DONE)}),
    "fail": frozenset({(CLAIMED, UNCLAIMED), (CLAIMED, FAILED)}),
    "cancel_claimed": frozenset({(CLAIMED, CANCELLED)}),
    "release": frozenset({(CLAIMED, UNCLAIMED)}),
    "reap": frozenset({(CLAIMED, UNCLAIMED), (CLAIMED, FAILED)}),
    "cancel": frozenset({(UNCLAIMED, CANCELLED)}),
    "retry": frozenset({(FAILED, UNCLAIMED), (DONE, UNCLAIMED), (CANCELLED, UNCLAIMED)}),
    "start_round": frozenset({(FAILED, UNCLAIMED), (DONE, UNCLAIMED), (CANCELLED, UNCLAIMED)}),
}

# Statuses stand in the SQL as literals, since partial indexes are proved from
# literals only: so a word must need no escaping on any engine.
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
