"""The mark: the UPDATE by which a claim writes status, owner and owner_date."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import cached_property
from typing import Any

from sqlalchemy import ColumnElement, Integer, Update, bindparam, case, literal_column
from sqlalchemy.orm.attributes import instance_dict

from ...dialects import Database
from ...dialects.clock import as_utc
from ...errors import ArgumentError, UnsupportedDatabase
from ...fence.dates import distinct
from ...model.keys import key_batches, key_is_in, key_values, keys_of, repeated_key
from ...model.mapping import QueueMapping
from ...model.status import status_is
from ...model.transitions import claimed
from ...sessions.show import refresh, show_values
from ...sessions.writer import Writer
from ..spec import ClaimSpec, Request, Taken

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
