"""How many entries the log of a load has."""

from __future__ import annotations

from sa_jobqueue.bulk import Log
from sa_jobqueue.bulk.log import INSERTED

ALL = set(range(10))


def counts(log: Log) -> tuple[int, int]:
    """Return how many entries redo and undo have."""
    log.open()
    try:
        return log.redo_count, log.marks.count(INSERTED)
    finally:
        log.close()
