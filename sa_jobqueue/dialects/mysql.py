"""MySQL: SKIP LOCKED since 8.0.1, no RETURNING."""

from __future__ import annotations

from .base import Version
from .innodb import InnoDB


class MySQL(InnoDB):
    """MySQL 5.7 and later, by any driver."""

    title = "MySQL"
    minimum = (5, 7)

    def __init__(self, version: Version | None) -> None:
        super().__init__(version)
        self.skip_locked = self.lock_of = self.at_least(8, 0, 1)
