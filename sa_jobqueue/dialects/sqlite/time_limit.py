"""SQLite: statements are interrupted from within, since no server could do it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

#: After how many of its virtual machine's instructions SQLite asks whether to go on.
INSTRUCTIONS = 10_000


@contextmanager
def interrupted_after(driver: Any, limit: timedelta) -> Iterator[None]:
    """Inside, interrupt what runs when the time is over; it counts from here for all statements.

    A progress handler of the application's own is gone afterwards: SQLite does not tell it.
    """
    deadline = time.monotonic() + limit.total_seconds()
    driver.set_progress_handler(lambda: time.monotonic() > deadline, INSTRUCTIONS)
    try:
        yield
    finally:
        driver.set_progress_handler(None, 0)
