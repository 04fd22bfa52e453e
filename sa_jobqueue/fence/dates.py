"""Times that tell the claims of one owner apart, also those that were rolled back.

The owner_date of a claim is part of its fence. Two statements of one owner may begin in the
same microsecond, one of them waiting for a row of the other: once the other is rolled back,
which leaves no trace in the database, the waiting claim would get the row with the same
time, and so the same fence. So this process remembers the times that it has written.
"""

from __future__ import annotations

import os
from datetime import datetime, timedelta
from threading import Lock

#: How many times are remembered: those of the claims that may still be under way.
MOST = 4_096

_MICROSECOND = timedelta(microseconds=1)

_lock = Lock()
_had: dict[tuple[str | None, datetime], None] = {}


def distinct(owner: str | None, date: datetime) -> datetime:
    """Return this time, or the next one that no claim or renewal of the owner has had.

    Args:
        owner: the name that claims; threads of a process may share it.
        date: the database's time, with microseconds.
    """
    with _lock:
        while (owner, date) in _had:
            date += _MICROSECOND
        _had[owner, date] = None
        if len(_had) > MOST:
            del _had[next(iter(_had))]
    return date


def _after_fork() -> None:
    global _lock
    _lock = Lock()  # another thread of the parent may have held it


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
