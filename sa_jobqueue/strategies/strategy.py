"""What every strategy is: a way to claim, made for one queue on one database.

A strategy turns a :class:`ClaimSpec` into statements once, and runs them for each
:class:`Request`. :class:`ReadyRows` finds the claimable rows, :class:`Mark` writes the claim,
status, owner and owner_date, and :class:`LockingRead` and :class:`ReadBack` read jobs as
entities or as plain rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from datetime import datetime
from functools import cached_property
from typing import Any, ClassVar

from sqlalchemy import ColumnElement, Executable, Integer, Update, bindparam, case, literal_column
from sqlalchemy.orm.attributes import instance_dict

from ..dialects import Database
from ..dialects.clock import as_utc
from ..errors import ArgumentError, UnsupportedDatabase
from ..fence.carried import CarriedJobs
from ..fence.token import distinct
from ..model.keys import key_batches, key_is_in, key_values, keys_of, repeated_key
from ..model.mapping import QueueMapping
from ..model.status import status_is
from ..model.transitions import claimed
from ..sessions.show import refresh, show_values
from ..sessions.writer import Writer
from .ready_rows import ReadyRows
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

    def take_rest(self, writer: Writer, request: Request, taken: Taken) -> Taken:
        """Add what stands before the place where take_after() began; it may have found too few."""
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


#: The roles of the columns that a mark writes.
_MARKED = ("status", "owner", "owner_date", "attempts")


class Mark:
    """How the claims of one queue are marked on one database."""

    def __init__(self, spec: ClaimSpec, database: Database) -> None:
        self.spec = spec
        self.mapping = spec.mapping
        self.database = database

    def values(self, owner_date: ColumnElement[Any] | None = None) -> dict[Any, Any]:
        """Return the values that a mark writes, at the time of its own statement by default."""
        date = self.database.claim_date() if owner_date is None else owner_date
        return claimed(self.mapping, self.spec.during, date)

    @cached_property
    def is_ready(self) -> ColumnElement[bool]:
        """The criterion that a row still has the status that the mark leaves.

        The row locks make sure of it. A server that ignores FOR UPDATE, or a proxy that
        cuts it out, gives the same rows to two claimers: then only one of them marks each.
        """
        # The CASE keeps every index but the primary key from serving the UPDATE: with the bare
        # comparison PostgreSQL read 9,668 pages of a table without statistics, by the claim
        # index, where the primary key needs a few.
        is_ready = status_is(self.mapping.column("status"), self.spec.ready)
        yes = literal_column("1", Integer)
        return case((is_ready, yes), else_=literal_column("0", Integer)) == yes

    @cached_property
    def by_key(self) -> Update:
        """Mark locked rows, by primary key."""
        return (
            self.database.update_by_key(self.mapping.table, self.mapping.keys)
            .where(key_is_in(self.mapping, "sa_jobqueue_keys", self.database), self.is_ready)
            .values(
                self.values(
                    bindparam(
                        "sa_jobqueue_owner_date", type_=self.mapping.column("owner_date").type
                    )
                )
            )
        )

    def write(self, writer: Writer, request: Request, locked: Sequence[Any]) -> Taken:
        """Mark rows that a :class:`LockingRead` has locked, and show it in the entities.

        Each row gets the time of the read that locked it, or the next that the owner has not
        had. A claim that goes level by level makes several reads.
        """
        if request.rows:
            dates = list(map(self.mapping.owner_date_of_row, locked))
            jobs: Sequence[Any] = locked
        else:
            dates = [as_utc(date) for _, date in locked]
            jobs = [entity for entity, _ in locked]
        own = {date: distinct(request.owner, date) for date in dict.fromkeys(dates)}
        dates = [own[date] for date in dates]
        identities = keys_of(self.mapping, jobs, rows=request.rows)
        for date in dict.fromkeys(dates):
            of_date = [key for key, its in zip(identities, dates, strict=True) if its == date]
            self._write_date(writer, request, of_date, date)
        if not request.rows:
            self._show(writer, request, jobs, dates)
        return Taken(jobs, dates)

    def taken(self, request: Request, jobs: Sequence[Any]) -> Taken:
        """Return jobs that were read after the mark, with the dates that they show."""
        if request.rows:
            return Taken(jobs, list(map(self.mapping.owner_date_of_row, jobs)))
        key = self.mapping.attributes["owner_date"]
        return Taken(jobs, [as_utc(instance_dict(job)[key]) for job in jobs])

    def _write_date(
        self, writer: Writer, request: Request, identities: Sequence[Any], date: Any
    ) -> None:
        for batch in key_batches(identities):
            parameters = {
                "sa_jobqueue_keys": key_values(batch),
                "sa_jobqueue_owner": request.owner,
                "sa_jobqueue_owner_date": date,
            }
            marked = writer.built(self.by_key, parameters).rowcount
            if marked != len(batch):
                check_count(self.mapping, limit=len(batch), marked=marked)
                raise _mismatch(self.mapping, locked=len(batch), marked=marked)

    def _show(
        self, writer: Writer, request: Request, entities: Sequence[Any], dates: Sequence[datetime]
    ) -> None:
        pairs = zip(entities, dates, strict=True)
        show_values(writer.session, [(job, self._shown(job, request, date)) for job, date in pairs])
        refresh(writer, self.mapping, entities, self.mapping.onupdate_keys)

    def _shown(self, entity: Any, request: Request, date: datetime) -> dict[str, Any]:
        attributes = self.mapping.attributes
        shown = {
            attributes["status"]: self.mapping.shown(self.spec.during),
            attributes["owner"]: request.owner,
            attributes["owner_date"]: date,
        }
        if "attempts" in attributes:
            attempts = instance_dict(entity).get(attributes["attempts"])
            if attempts is not None:
                shown[attributes["attempts"]] = attempts + 1
        return shown


def _mismatch(mapping: QueueMapping, *, locked: int, marked: int) -> UnsupportedDatabase:
    return UnsupportedDatabase(
        f"of {locked} locked rows of {mapping} the claim marked {marked}; roll back. Either row "
        "locks do not hold here (a server or a proxy that ignores FOR UPDATE), and another "
        "claimer has the others: use a server whose locks hold. Or a BEFORE UPDATE trigger "
        "skipped rows: let it pass claims"
    )


def check_count(mapping: QueueMapping, *, limit: int, marked: int) -> None:
    """Refuse a claim that marked more rows than it locked.

    Raises:
        UnsupportedDatabase: several rows have one primary key.
    """
    if marked > limit:
        raise repeated_key(mapping)


def check_key(mapping: QueueMapping) -> None:
    """Refuse a primary key that the mark would change: no finish would find its row again.

    Raises:
        ArgumentError: a claim writes a column of the key.
    """
    written = [role for role in _MARKED if mapping.has(role)]
    for role in written:
        if mapping.column(role) in mapping.keys:
            raise ArgumentError(
                f"the primary key of {mapping} holds {mapping.column(role).name!r}, which a claim "
                "writes: its finish would not find the row again. Take the column out of the key, "
                "and partition by a column that never changes, such as the day of the insert"
            )
