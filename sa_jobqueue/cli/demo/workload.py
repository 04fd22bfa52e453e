"""What a run of producers and consumers is told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from ...strategies import AUTO


@dataclass(frozen=True, kw_only=True)
class Workload:
    """The settings that each process gets when it starts.

    Attributes:
        pause: the seconds between two transactions of a process.
        delete: whether finished rows are deleted.
        log: whether each process logs its work in the database, in the transaction that
            does the work.
    """

    url: str
    producers: int
    consumers: int
    pause: float
    delete: bool
    strategy: str = AUTO
    log: bool = False


#: How a process asks what to do next: False, go on; True, drain; None, stop.
GoOn: TypeAlias = Callable[[], bool | None]
