"""held: lock ready rows and mark nothing; the transaction is the claim.

Claim, work and finish happen in one transaction: one commit a batch. A dead
connection frees the rows at once; their attempt is not counted then, so a job
that kills its worker comes back again and again.
"""

from __future__ import annotations

from typing import ClassVar

from sqlalchemy import Executable

from ..errors import UnsupportedDatabase
from ..sessions import Writer
from .locking import LockingStrategy
from .spec import Request, Taken


class Held(LockingStrategy):
    """Rows locked and not marked."""

    name = "held"
    marks: ClassVar[bool] = False

    def take(self, writer: Writer, request: Request) -> Taken:
        if writer.in_autocommit:
            raise UnsupportedDatabase(
                "strategy 'held' needs a transaction that holds its row locks, and an AUTOCOMMIT "
                "connection has none; use strategy='auto', or a session without AUTOCOMMIT"
            )
        locked = self.lock(writer, request)
        return Taken(locked if request.rows else [entity for entity, _ in locked])

    def statements(self) -> list[Executable]:
        steps = [self.first_step] if self.spec.steps else []
        return [*steps, self.lock_entities]
