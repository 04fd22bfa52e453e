"""What the supervisor of a worker does beside: a chore is run when it is due."""

from __future__ import annotations

from typing import Protocol


class Chore(Protocol):
    """Something to do now and then, in the supervisor's thread.

    Attributes:
        due_at: when it is due, by time.monotonic(); infinity: never.
    """

    @property
    def due_at(self) -> float: ...

    def run(self) -> None: ...
