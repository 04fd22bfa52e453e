"""What every strategy is made of: reads of jobs, locks in claim order and by key, and the mark.

A strategy turns a :class:`ClaimSpec` into statements once, and runs them for each
:class:`Request`. :class:`ReadyRows` finds the claimable rows; a mark writes the claim: status,
owner and owner_date. Each statement has two forms: of entities, and of plain rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import wraps
from operator import itemgetter
from typing import Any, ClassVar, Concatenate, ParamSpec, TypeAlias, TypeVar

from sqlalchemy import (
    Column,
    ColumnElement,
    DateTime,
    Executable,
    Integer,
    Update,
    bindparam,
    case,
    literal_column,
    type_coerce,
)
from sqlalchemy import select as sa_select
from sqlalchemy.engine import Dialect
from sqlalchemy.orm import selectinload
from sqlalchemy.orm.attributes import instance_dict
from sqlalchemy.types import TypeDecorator

from ..databases import Database
from ..databases.clock import UtcText, as_utc
from ..errors import ArgumentError, UnsupportedDatabase
from ..fence.token import Identity, distinct
from ..model.indexes import claim_index
from ..model.keys import by_key, key_batches, key_is_in, key_values, keys_of, repeated_key
from ..model.mapping import TIME_ROLES, QueueMapping
from ..model.status import status_is
from ..model.transitions import OWNER, claimed
from ..sessions.show import refresh, show_values
from ..sessions.writer import Writer
from .ready_rows import ReadyRows
from .spec import ClaimSpec, Request, Taken

#: A job that was locked, and the time of the claim if a mark follows.
Locked: TypeAlias = "tuple[Any, Any]"

P = ParamSpec("P")
S = TypeVar("S", bound="Strategy")


def kept(build: Callable[Concatenate[S, P], Any]) -> Callable[Concatenate[S, P], Any]:
    """Build a statement once for a strategy and each form of it, which the arguments name."""

    @wraps(build)
    def built(strategy: S, /, *form: P.args, **named: P.kwargs) -> Any:
        key = (build, form, *named.items())
        statement = strategy.kept.get(key)
        if statement is None:
            statement = strategy.kept.setdefault(key, build(strategy, *form, **named))
        return statement

    return built


class Strategy(ABC):
    """One way to claim, on one database, for one queue.

    Attributes:
        name: the name that ``strategy=`` takes.
        marks: whether a claim writes status and owner.
        any_class: whether it claims classes without JobMixin too.
        indexed: whether statements may name the indexes that the model declares.
    """

    name: ClassVar[str]
    marks: ClassVar[bool] = True
    any_class: ClassVar[bool] = False
    #: Whether one statement can finish the jobs of a request and claim the next.
    carries_finishes = False

    def __init__(self, spec: ClaimSpec, database: Database, *, indexed: bool = True) -> None:
        self.check_database(database)
        if self.marks:
            _check_key(spec.mapping)
        self.spec = spec
        self.mapping = spec.mapping
        self.database = database
        self.indexed = indexed
        self.ready = ReadyRows(spec, database)
        self.kept: dict[Any, Any] = {}

    @classmethod
    def check_database(cls, database: Database) -> None:
        """Refuse a database that cannot run the strategy.

        Raises:
            UnsupportedDatabase: with the way out.
        """
        refusal = cls.refusal(database)
        if refusal is not None:
            raise UnsupportedDatabase(
                f"strategy {cls.name!r} cannot run on {database}: {refusal}; use strategy='auto'"
            )

    @staticmethod
    def refusal(database: Database) -> str | None:
        """Return why this database cannot run the strategy; None if it can."""
        return None if database.skip_locked else "it has no SELECT .. FOR UPDATE SKIP LOCKED"

    @abstractmethod
    def take(self, writer: Writer, request: Request) -> Taken:
        """Claim up to ``request.limit`` jobs."""

    def add_rest(self, writer: Writer, request: Request, taken: Taken) -> Taken:
        """Add what a claim has passed over that finished jobs; see :class:`.place.Placed`."""
        return taken

    @abstractmethod
    def statements(self, *, from_head: bool = False) -> list[Executable]:
        """List what :meth:`take` executes, in order, for a claim of entities.

        Args:
            from_head: in a form whose plan is the same with and without ready jobs.
        """

    # -- reads ----------------------------------------------------------

    def select_jobs(self, select: Callable[..., Any], *, rows: bool, marks: bool = False) -> Any:
        """Make a SELECT of jobs, as entities or as plain rows.

        Args:
            select: makes the SELECT of the columns that it is given.
            marks: a mark follows. So the SELECT reads the time of the claim: after the entity, or
                in plain rows, which are read as they will be once they are marked.
        """
        moment = None
        if marks:  # the clock of a database with one writer is coarse
            coarse = self.database.one_writer
            moment = self.database.claim_date() if coarse else self.database.moment()
        if rows:
            written = {} if moment is None else claimed(self.mapping, self.spec.during, moment)
            return select(*row_columns(self.mapping, written, orm=True))
        date = [] if moment is None else [moment.label("sa_jobqueue_date")]
        return select(self.mapping.entity, *date).options(*loading_options(self.mapping))

    def read(
        self, writer: Writer, request: Request, statement: Any, parameters: dict[str, Any]
    ) -> Sequence[Any]:
        """Read jobs, entities or plain rows; overwrite what the session had loaded before."""
        if not request.rows:
            return writer.fresh(statement, parameters).scalars().all()
        run = writer.orm if writer.hooked else writer.built
        return run(statement, parameters).all()

    def rounds(self, request: Request, jobs: Sequence[Any]) -> dict[Identity, int]:
        """Return the round of each row: a new round may take a row that nothing marks."""
        mapping = self.mapping
        if not mapping.has("round"):
            return {}
        if request.rows:
            rounds = [row[mapping.round_ordinal] for row in jobs]
        else:
            rounds = [getattr(job, mapping.attributes["round"]) for job in jobs]
        return dict(zip(keys_of(mapping, jobs, rows=request.rows), rounds, strict=True))

    # -- locks ----------------------------------------------------------

    def lock(
        self, writer: Writer, request: Request, statement: Any, parameters: dict[str, Any]
    ) -> list[Locked]:
        """Lock and read jobs, each with the time of the claim if a mark follows."""
        if not self.marks:
            return [(job, None) for job in self.read(writer, request, statement, parameters)]
        if not request.rows:
            pairs: Any = writer.fresh(statement, parameters)
            return list(pairs)
        parameters = {**parameters, OWNER: request.owner}
        rows = self.read(writer, request, statement, parameters)
        return list(zip(rows, map(self.mapping.owner_date_of_row, rows), strict=True))

    def lock_ready(
        self, writer: Writer, request: Request, start: Mapping[str, Any] | None = None
    ) -> list[Locked]:
        """Lock up to ``request.limit`` ready rows in claim order, level by level.

        Args:
            start: the parameters of a place to begin at, in one level.
        """
        # One that begins at the first ready row must see all commits.
        from_first = not start and writer.begun_by_verb
        statement = self.lock_next(request.rows, bool(start), from_first)
        return self.ready.collect(
            writer,
            request.limit,
            lambda **parameters: self.lock(writer, request, statement, parameters),
            start,
        )

    def lock_and_mark(
        self, writer: Writer, request: Request, start: Mapping[str, Any] | None = None
    ) -> Taken:
        """Lock ready rows, and mark them by their keys."""
        with writer.atomically():
            writer.lock_writes(self.mapping.table)
            return self.mark(writer, request, self.lock_ready(writer, request, start))

    @kept
    def lock_next(self, rows: bool = False, from_place: bool = False, first: bool = True) -> Any:
        """Lock the next ready rows.

        Args:
            from_place: begin at a place in the claim order.
            first: begin at the first ready row; see :attr:`ReadyRows.from_first`.
        """

        def select(*columns: Any) -> Any:
            read = self.ready.locked(self.ready.select(*columns, from_place=from_place))
            if first and self.indexed:
                read = read.where(*self.ready.from_first)
            return self._by_claim_index(read)

        return self.select_jobs(select, rows=rows, marks=self.marks)

    def _by_claim_index(self, read: Any) -> Any:
        """Bind the read by a hint, else by FORCE INDEX, which is an error without the index.

        Without it an optimizer may stray, and the claim locks all rows on its way.
        """
        index = claim_index(self.mapping)
        if index is None or self.spec.order_by or not self.indexed:
            return read
        if self.ready.claim_index_hint:
            return self.ready.by_claim_index(read)
        words = self.database.forced_index(index)
        return read if words is None else read.with_hint(self.mapping.table, words)

    @kept
    def lock_by_keys(self, rows: bool = False) -> Any:
        """Lock the rows of some keys that are still claimable, and pass over locked ones."""
        return self.select_jobs(self.select_by_keys, rows=rows, marks=self.marks)

    def select_by_keys(self, *columns: Any) -> Any:
        """Lock the rows of some keys that are still claimable, and select these columns."""
        found = sa_select(*columns).where(
            self.ready.key_is_in("sa_jobqueue_keys"), *self.ready.criteria
        )
        found = found.order_by(*self.spec.order)
        return self.ready.locked(by_key(found, self.mapping.table, self.database))

    def lock_keys(
        self, writer: Writer, request: Request, identities: Sequence[Identity]
    ) -> list[Locked]:
        """Lock the rows of some keys, as far as they are claimable and nobody has locked them."""
        keys = {"sa_jobqueue_keys": self.lockable(identities)}
        return self.lock(writer, request, self.lock_by_keys(request.rows), keys)

    def keys_locked(self, request: Request, locked: Sequence[Locked]) -> list[Identity]:
        """Return the primary keys of jobs that were locked."""
        return keys_of(self.mapping, [job for job, _ in locked], rows=request.rows)

    def lockable(self, identities: Sequence[tuple[Any, ...]]) -> Any:
        """Return keys for a locking read that leaves no lock on rows that fail its criteria.

        InnoDB looks a single key up in another way, and keeps the row locked until
        the transaction ends: then the row's owner could not finish it. A second key of
        NULL prevents that, and finds no row.
        """
        values = key_values(identities)
        if len(identities) == 1 and self.database.keeps_one_key:
            width = len(self.mapping.keys)
            return [values[0], None if width == 1 else (None,) * width]
        return values

    # -- the mark -------------------------------------------------------

    def mark_values(self, owner_date: ColumnElement[Any] | None = None) -> dict[Any, Any]:
        """Return the values that a mark writes, at the time of its own statement by default."""
        date = self.database.claim_date() if owner_date is None else owner_date
        return claimed(self.mapping, self.spec.during, date)

    @property
    def is_unmarked(self) -> ColumnElement[bool]:
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

    @kept
    def mark_by_keys(self) -> Update:
        """Mark locked rows, by primary key."""
        date = bindparam("sa_jobqueue_owner_date", type_=self.mapping.column("owner_date").type)
        marked = self.database.update_by_key(self.mapping.table, self.mapping.keys)
        named = key_is_in(self.mapping, "sa_jobqueue_keys", self.database)
        return marked.where(named, self.is_unmarked).values(self.mark_values(date))

    def mark(self, writer: Writer, request: Request, locked: Sequence[Locked]) -> Taken:
        """Mark rows that :meth:`lock` has locked, and show it in the entities.

        Each row gets the time of the read that locked it, or the next that the owner has not
        had. A claim that goes level by level makes several reads.
        """
        own = {read: distinct(request.owner, as_utc(read)) for read in {read for _, read in locked}}
        jobs, dates = [job for job, _ in locked], [own[read] for _, read in locked]
        identities = keys_of(self.mapping, jobs, rows=request.rows)
        for date in own.values():
            of_date = [key for key, its in zip(identities, dates, strict=True) if its == date]
            for batch in key_batches(of_date):
                parameters = {
                    "sa_jobqueue_keys": key_values(batch),
                    "sa_jobqueue_owner_date": date,
                    OWNER: request.owner,
                }
                marked = writer.built(self.mark_by_keys(), parameters).rowcount
                if marked != len(batch):
                    raise _mismatch(self.mapping, locked=len(batch), marked=marked)
        if not request.rows:
            shown = [self._shown(job, request, date) for job, date in zip(jobs, dates, strict=True)]
            show_values(writer.session, list(zip(jobs, shown, strict=True)))
            refresh(writer, self.mapping, jobs, self.mapping.onupdate_keys)
        return Taken(jobs, dates)

    def _shown(self, entity: Any, request: Request, date: Any) -> dict[str, Any]:
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

    def dates(self, request: Request, jobs: Sequence[Any]) -> list[datetime]:
        """Return the owner_date of each job, which was read after the mark."""
        if request.rows:
            return list(map(self.mapping.owner_date_of_row, jobs))
        key = self.mapping.attributes["owner_date"]
        return list(map(as_utc, map(itemgetter(key), map(instance_dict, jobs))))


def check_transaction(writer: Writer, why: str) -> None:
    """Refuse a connection without transactions, which keeps no locks.

    Args:
        why: what a strategy needs it for, to begin the message.

    Raises:
        UnsupportedDatabase: it is in AUTOCOMMIT.
    """
    if writer.in_autocommit:
        raise UnsupportedDatabase(
            f"{why}, and an AUTOCOMMIT connection has no transaction: use a session without "
            "AUTOCOMMIT"
        )


def check_sees_commits(sees_commits: bool, why: str) -> None:
    """Refuse a transaction that does not see what others have committed.

    Raises:
        UnsupportedDatabase: its isolation level hides that.
    """
    if not sees_commits:
        raise UnsupportedDatabase(
            f"{why}, and an isolation level other than READ COMMITTED hides that. Begin the "
            'transaction as READ COMMITTED, as with create_engine(.., isolation_level="READ '
            'COMMITTED")'
        )


def _mismatch(mapping: QueueMapping, *, locked: int, marked: int) -> UnsupportedDatabase:
    if marked > locked:
        return repeated_key(mapping)
    return UnsupportedDatabase(
        f"of {locked} locked rows of {mapping} the claim marked {marked}; roll back. Either row "
        "locks do not hold here (a server or a proxy that ignores FOR UPDATE), and another "
        "claimer has the others: use a server whose locks hold. Or a BEFORE UPDATE trigger "
        "skipped rows: let it pass claims"
    )


def _check_key(mapping: QueueMapping) -> None:
    """Refuse a primary key that the mark would change: no finish would find its row again.

    Raises:
        ArgumentError: a claim writes a column of the key.
    """
    written = [role for role in ("status", "owner", "owner_date", "attempts") if mapping.has(role)]
    for column in map(mapping.column, written):
        if column in mapping.keys:
            raise ArgumentError(
                f"the primary key of {mapping} holds {column.name!r}, which a claim writes: its "
                "finish would not find the row again. Take the column out of the key, and "
                "partition by a column that never changes, such as the day of the insert"
            )


# -- plain rows, and how entities load ------------------------------------------


class ReadAsUTC(TypeDecorator[datetime]):
    """A type that reads points in time as aware UTC; for result columns, never for a table.

    The rows of a claim have the same owner_date, so it is converted once for all of them.
    """

    impl = DateTime(timezone=True)
    cache_ok = True

    def result_processor(self, dialect: Dialect, coltype: Any) -> Any:
        """Return a function that makes a driver's value aware UTC, and remembers the last one."""
        read = self.impl_instance.result_processor(dialect, coltype)
        known: tuple[Any, datetime | None] = (None, None)

        def in_utc(value: Any) -> datetime | None:
            nonlocal known
            last, moment = known
            if value != last:
                found = value if read is None else read(value)
                moment = None if found is None else as_utc(found)
                known = (value, moment)
            return moment

        return in_utc


def row_columns(
    mapping: QueueMapping,
    written: Mapping[Column[Any], Any] | None = None,
    *,
    orm: bool = False,
) -> list[ColumnElement[Any]]:
    """List the table's columns for a row.

    Args:
        written: what a claim is about to write: these columns have their new values.
        orm: as mapped attributes, so that hooks of the session can add criteria.
    """
    times = {mapping.column(role) for role in TIME_ROLES if mapping.has(role)}
    columns = []
    for column in mapping.table.c:
        value: Any = column
        if written and column in written:
            value = written[column]
        elif orm and mapping.mapper.columns.contains_column(column):
            value = getattr(mapping.entity, mapping.mapper.get_property_by_column(column).key)
        if column in times and not isinstance(value.type, UtcText):
            value = type_coerce(value, ReadAsUTC)
        plain = value is column and column.name == column.key
        columns.append(value if plain else value.label(column.key))
    return columns


def loading_options(mapping: QueueMapping) -> list[Any]:
    """List options for a SELECT of entities that locks: no joins but the entity's own.

    FOR UPDATE is refused on the nullable side of an outer join, and would lock the
    joined rows elsewhere.
    """
    return [
        selectinload(getattr(mapping.entity, relationship.key))
        for relationship in mapping.mapper.relationships
        if relationship.lazy in ("joined", False)
    ]
