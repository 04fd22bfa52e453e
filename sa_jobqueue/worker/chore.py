"""A chore: what the supervisor of a worker does at intervals."""

from __future__ import annotations

from typing import Protocol


class Chore(Protocol):
    """Work that is due now and then, in the supervisor's thread.

    Attributes:
        due_at: when it is due, by time.monotonic(); infinity: never.
    """

    @property
    def due_at(self) -> float: ...

    def run(self) -> None: ...
