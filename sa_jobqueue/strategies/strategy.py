"""What every strategy is: a way to claim, made for one queue on one database.

A strategy turns a :class:`ClaimSpec` into statements once, and runs them for each
:class:`Request`. What it is made of is in ``parts/``: :class:`ReadyRows` finds the
claimable rows, :class:`Mark` writes the claim, :class:`LockingRead` and
:class:`ReadBack` read jobs as entities or as plain rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from sqlalchemy import Executable

from ..dialects import Database
from ..errors import UnsupportedDatabase
from ..fence.carried import CarriedJobs
from ..sessions.writer import Writer
from .parts.mark import check_key
from .parts.ready_rows import ReadyRows
from .spec import ClaimSpec, Request, Taken


class Strategy(ABC):
    """One way to claim, on one database, for one queue.

    Attributes:
        name: the name that ``strategy=`` takes.
        marks: whether a claim writes status and owner.
        any_class: whether it claims classes without JobMixin too.
        candidates_elsewhere: whether it can read candidates from another session,
            which ``candidates_from=`` gives.
    """

    name: ClassVar[str]
    marks: ClassVar[bool] = True
    any_class: ClassVar[bool] = False
    candidates_elsewhere: ClassVar[bool] = False
    #: Whether one statement can finish jobs and claim the next, by take_after().
    carries_finishes = False

    def __init__(self, spec: ClaimSpec, database: Database) -> None:
        refusal = self.refusal(database)
        if refusal is not None:
            raise UnsupportedDatabase(
                f"strategy {self.name!r} cannot run on {database}: {refusal}; use strategy='auto'"
            )
        if self.marks:
            check_key(spec.mapping)
        self.spec = spec
        self.mapping = spec.mapping
        self.database = database
        self.ready = ReadyRows(spec, database)

    @staticmethod
    @abstractmethod
    def refusal(database: Database) -> str | None:
        """Return why this database cannot run the strategy; None if it can."""

    @abstractmethod
    def take(self, writer: Writer, request: Request) -> Taken:
        """Claim up to ``request.limit`` jobs."""

    def take_after(self, writer: Writer, request: Request, finish: CarriedJobs) -> Taken:
        """Finish jobs and claim, by one statement; nothing is claimed if a job was lost."""
        raise NotImplementedError(self.name)

    def _is_single(self, request: Request) -> bool:
        """Tell whether a claim is for one job, which a key of one column names."""
        return request.limit == 1 and len(self.mapping.keys) == 1

    @abstractmethod
    def statements(self) -> list[Executable]:
        """List what :meth:`take` executes, in order, for a claim of entities."""

    def explainable(self) -> list[Executable]:
        """List these statements in a form whose plan is the same with and without ready jobs."""
        return self.statements()
