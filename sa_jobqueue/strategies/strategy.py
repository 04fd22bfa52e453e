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
from typing import Any, ClassVar, Concatenate, ParamSpec, TypeVar

from sqlalchemy import ColumnElement, Executable, Integer, Update, bindparam, case, literal_column
from sqlalchemy import select as sa_select
from sqlalchemy.orm.attributes import instance_dict

from ..dialects import Database
from ..dialects.clock import as_utc
from ..errors import ArgumentError, UnsupportedDatabase
from ..fence.carried import CarriedJobs
from ..fence.token import Identity, distinct
from ..model.indexes import claim_index
from ..model.keys import by_key, key_batches, key_is_in, key_values, keys_of, repeated_key
from ..model.mapping import QueueMapping
from ..model.status import status_is
from ..model.transitions import claimed
from ..sessions.show import refresh, show_values
from ..sessions.writer import Writer
from .ready_rows import ReadyRows
from .rows import loading_options, row_columns
from .spec import ClaimSpec, Request, Taken

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
        candidates_elsewhere: whether it can read candidates from another session,
            which ``candidates_from=`` gives.
        indexed: whether statements may name the indexes that the model declares.
    """

    name: ClassVar[str]
    marks: ClassVar[bool] = True
    any_class: ClassVar[bool] = False
    candidates_elsewhere: ClassVar[bool] = False
    #: Whether one statement can finish jobs and claim the next, by take_after().
    carries_finishes = False

    def __init__(self, spec: ClaimSpec, database: Database, *, indexed: bool = True) -> None:
        refusal = self.refusal(database)
        if refusal is not None:
            raise UnsupportedDatabase(
                f"strategy {self.name!r} cannot run on {database}: {refusal}; use strategy='auto'"
            )
        if self.marks:
            _check_key(spec.mapping)
        self.spec = spec
        self.mapping = spec.mapping
        self.database = database
        self.indexed = indexed
        self.ready = ReadyRows(spec, database)
        self.kept: dict[Any, Any] = {}

    @staticmethod
    def refusal(database: Database) -> str | None:
        """Return why this database cannot run the strategy; None if it can."""
        return None if database.skip_locked else "it has no SELECT .. FOR UPDATE SKIP LOCKED"

    @abstractmethod
    def take(self, writer: Writer, request: Request) -> Taken:
        """Claim up to ``request.limit`` jobs."""

    def take_after(self, writer: Writer, request: Request, finish: CarriedJobs) -> Taken:
        """Finish jobs and claim, by one statement; nothing is claimed if a job was lost."""
        raise NotImplementedError(self.name)

    def take_rest(self, writer: Writer, request: Request, taken: Taken) -> Taken:
        """Add what stands before the place where take_after() began; it may have found too few."""
        raise NotImplementedError(self.name)

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
        """Read jobs by :meth:`select_jobs`; overwrite what the session had loaded before."""
        if request.rows:
            return writer.rows(statement, parameters).all()
        return writer.fresh(statement, parameters).all()

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

    def lock_ready(
        self, writer: Writer, request: Request, start: Mapping[str, Any] | None = None
    ) -> Sequence[Any]:
        """Lock up to ``request.limit`` ready rows in claim order, level by level.

        Args:
            start: the parameters of a place to begin at, in one level.
        """

        def lock(**parameters: Any) -> Sequence[Any]:
            # One that begins at the first ready row must see all commits.
            from_first = not start and writer.begun_by_verb
            statement = self.lock_next(request.rows, bool(start), from_first)
            if self.marks and request.rows:
                parameters["sa_jobqueue_owner"] = request.owner
            return self.read(writer, request, statement, parameters)

        if start:
            return lock(sa_jobqueue_limit=request.limit, **start)
        return self.ready.levels.collect(writer, request.limit, lock)

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
        self, writer: Writer, request: Request, identities: Sequence[tuple[Any, ...]]
    ) -> Sequence[Any]:
        """Lock the rows of some keys, as far as they are claimable and nobody has locked them."""
        parameters = {"sa_jobqueue_keys": self.lockable(identities)}
        if self.marks and request.rows:
            parameters["sa_jobqueue_owner"] = request.owner
        return self.read(writer, request, self.lock_by_keys(request.rows), parameters)

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

    def mark(self, writer: Writer, request: Request, locked: Sequence[Any]) -> Taken:
        """Mark rows that a read with ``marks=True`` has locked, and show it in the entities.

        Each row gets the time of the read that locked it, or the next that the owner has not
        had. A claim that goes level by level makes several reads.
        """
        if request.rows:
            jobs, read = locked, list(map(self.mapping.owner_date_of_row, locked))
        else:
            jobs, read = [job for job, _ in locked], [as_utc(date) for _, date in locked]
        own = {date: distinct(request.owner, date) for date in dict.fromkeys(read)}
        dates = [own[date] for date in read]
        identities = keys_of(self.mapping, jobs, rows=request.rows)
        for date in dict.fromkeys(dates):
            of_date = [key for key, its in zip(identities, dates, strict=True) if its == date]
            for batch in key_batches(of_date):
                parameters = {
                    "sa_jobqueue_keys": key_values(batch),
                    "sa_jobqueue_owner": request.owner,
                    "sa_jobqueue_owner_date": date,
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
        return [as_utc(instance_dict(job)[key]) for job in jobs]


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
