"""Tables of the library's own beside a queue's: its MetaData tells of them.

Who asks here loads nothing else: an application without such tables pays nothing for them.
"""

from __future__ import annotations

from typing import Any

from .mapping import QueueMapping

#: The keys in ``MetaData.info``: of ControlTables, of Schedules, and of the history's Table.
CONTROL = "sa_jobqueue.control"
SCHEDULES = "sa_jobqueue.schedules"
HISTORY = "sa_jobqueue.history"


def beside(mapping: QueueMapping, what: str) -> Any:
    """Return what is beside a queue's table; None: there is none."""
    return mapping.table.metadata.info.get(what)
