"""claim(): take up to `limit` jobs that are then this owner's alone.

::

    emails = claim(session, Email, Email.recipient.like("a%"), owner="mailer-1", limit=100)
    session.commit()                     # now the claim is visible, the row locks are gone

How it is done is the strategy's affair (``strategies/``); here is what all of
them share: the arguments are checked, the session's writing connection is
prepared, fences are put around what was claimed. A statement is built once per
:class:`Claiming`; :class:`sa_jobqueue.JobQueue` keeps one.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any, Generic, TypeVar, overload

from sqlalchemy import ColumnElement, Executable, select
from sqlalchemy import inspect as sa_inspect
from sqlalchemy.engine import Dialect
from sqlalchemy.engine.url import make_url

from .dialects import Database, database_of_dialect
from .errors import ArgumentError
from .fencing import Fence, Token, put_up
from .keys import key_is_in, key_values
from .mapping import QueueMapping, mapping_of, word_of
from .mixins import OWNER_LENGTH
from .sessions import AnySession, Writer, session_of, writing
from .status import CLAIMED, UNCLAIMED
from .strategies import AUTO, ClaimSpec, Request, Strategy, Taken, check_name, choose

log = logging.getLogger("sa_jobqueue.claim")
lost_log = logging.getLogger("sa_jobqueue.lost")

T = TypeVar("T")


class Claim(Sequence[T], Generic[T]):
    """The jobs of one claim, in claim order.

    Attributes:
        candidates: how many rows were looked at, None where the strategy
            cannot know.
        lost: how many of those others had first; None likewise. Many lost
            ones tell that there are too many claimers for this batch size.
        fences: the fence of each job, in the same order.
    """

    def __init__(
        self,
        jobs: Sequence[T],
        fences: Sequence[Fence],
        *,
        candidates: int | None = None,
        lost: int | None = None,
    ) -> None:
        self._jobs = tuple(jobs)
        self.fences = tuple(fences)
        self.candidates = candidates
        self.lost = lost

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[T]: ...
    def __getitem__(self, index: int | slice) -> T | Sequence[T]:
        return self._jobs[index]

    def __len__(self) -> int:
        return len(self._jobs)

    def __iter__(self) -> Iterator[T]:
        return iter(self._jobs)

    def __repr__(self) -> str:
        return f"<Claim of {len(self)} jobs, candidates={self.candidates}, lost={self.lost}>"

    def first(self) -> T | None:
        """Return the first job, None if nothing was claimed."""
        return self._jobs[0] if self._jobs else None


class Claiming(Generic[T]):
    """What is claimed and how, with its statements built at first use."""

    def __init__(self, spec: ClaimSpec, strategy: str = AUTO) -> None:
        check_name(strategy)
        self.spec = spec
        self.strategy = strategy
        self._built: dict[tuple[Database, bool, bool], Strategy] = {}

    @property
    def mapping(self) -> QueueMapping:
        """The mapping of the claimed entity."""
        return self.spec.mapping

    def built_for(
        self, database: Database, *, hooked: bool = False, drawn: bool = False
    ) -> Strategy:
        """Return the strategy with its statements for a database."""
        key = (database, hooked, drawn)
        strategy = self._built.get(key)
        if strategy is None:
            made = choose(self.strategy, self.spec, database, hooked=hooked, drawn=drawn)
            strategy = self._built.setdefault(key, made)
        return strategy

    def claim(
        self,
        session: AnySession,
        *,
        owner: object | None,
        limit: int,
        rows: bool = False,
        candidates_from: AnySession | None = None,
        options: Sequence[Any] = (),
    ) -> Claim[Any]:
        """Claim entities, or plain rows; see :func:`claim`."""
        request = Request(
            owner=checked_owner(owner),
            limit=_checked_limit(limit),
            rows=rows,
            candidates_from=None if candidates_from is None else session_of(candidates_from),
        )
        with writing(session, self.mapping) as writer:
            strategy = self.built_for(
                writer.database,
                hooked=writer.hooked,
                drawn=request.candidates_from is not None,
            )
            _check_request(strategy, request)
            taken = strategy.take(writer, request)
            if options and not rows:
                _load_options(writer, self.mapping, taken.jobs, options)
        return self._fenced(writer, strategy, request, taken)

    def _fenced(
        self, writer: Writer, strategy: Strategy, request: Request, taken: Taken
    ) -> Claim[Any]:
        jobs = taken.jobs
        fences = self._fences(writer, strategy, request, jobs)
        if not request.rows:
            put_up(jobs, fences)
        log.debug(
            "%s claimed %d of %s by %s", request.owner, len(jobs), self.mapping, strategy.name
        )
        if taken.lost:
            lost_log.debug("%d of %d candidates lost", taken.lost, taken.candidates)
        return Claim(jobs, fences, candidates=taken.candidates, lost=taken.lost)

    def _fences(
        self, writer: Writer, strategy: Strategy, request: Request, jobs: Sequence[Any]
    ) -> list[Fence]:
        if strategy.marks:
            return self.fences_of(request, jobs)
        transaction = writer.connection.get_transaction()
        held = Token(self.spec.ready, request.owner, transaction=transaction)
        keys = keys_of(self.mapping, jobs, rows=request.rows)
        return [Fence(self.mapping.entity, key, held) for key in keys]

    def fences_of(self, request: Request, jobs: Sequence[Any]) -> list[Fence]:
        """Make the fences of marked jobs; those of one moment share a token."""
        tokens: dict[datetime, Token] = {}
        fences = []
        keys = keys_of(self.mapping, jobs, rows=request.rows)
        for key, date in zip(keys, self._dates(request, jobs), strict=True):
            token = tokens.get(date)
            if token is None:
                token = tokens[date] = Token(self.spec.during, request.owner, [date])
            fences.append(Fence(self.mapping.entity, key, token))
        return fences

    def _dates(self, request: Request, jobs: Sequence[Any]) -> Iterator[datetime]:
        if request.rows:
            place = self.mapping.owner_date_place
            return (row[place] for row in jobs)
        attribute = self.mapping.attributes["owner_date"]
        return (getattr(job, attribute) for job in jobs)


def keys_of(
    mapping: QueueMapping, jobs: Sequence[Any], *, rows: bool = False
) -> list[tuple[Any, ...]]:
    """Return the primary keys of entities, or of plain rows."""
    if rows:
        places = mapping.key_places
        return [tuple(row[place] for place in places) for row in jobs]
    return [tuple(sa_inspect(job).identity) for job in jobs]


def checked_owner(owner: object | None) -> str | None:
    """Return an owner as text.

    Raises:
        ArgumentError: empty, over 64 characters, or with a ``~``, which marks
            the names of owners whose death can be noticed.
    """
    if owner is None:
        return None
    if not isinstance(owner, str | int) or isinstance(owner, bool):
        raise ArgumentError(f"an owner is a str or an int, not {type(owner).__name__}: {owner!r}")
    name = str(owner)
    if not name or len(name) > OWNER_LENGTH:
        raise ArgumentError(
            f"an owner has 1 to {OWNER_LENGTH} characters, this one has {len(name)}: {name!r}"
        )
    if "~" in name:
        raise ArgumentError(f"'~' is reserved in owners: {name!r}; use another character")
    return name


def _checked_limit(limit: int) -> int:
    if not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:
        raise ArgumentError(f"limit is the number of jobs wanted, at least 1: {limit!r}")
    return limit


def _check_request(strategy: Strategy, request: Request) -> None:
    if strategy.marks and request.owner is None:
        raise ArgumentError(
            "owner= is needed: the claim is marked with it. Use a name of the worker, such as "
            "its host and process id; strategy='held' does without"
        )
    if request.candidates_from is not None and strategy.name != "candidates":
        raise ArgumentError(
            f"candidates_from= is for strategy='candidates', and this is {strategy.name!r}"
        )


def _load_options(
    writer: Writer, mapping: QueueMapping, jobs: Sequence[Any], options: Sequence[Any]
) -> None:
    """Apply loader options by a select of their own, which locks nothing.

    In the claim itself a joinedload() would be refused (PostgreSQL), or lock
    the joined rows too. What the claim loaded is not loaded again.
    """
    if not jobs:
        return
    again = select(mapping.entity).where(key_is_in(mapping, "claim_keys")).options(*options)
    writer.orm(again, {"claim_keys": key_values(keys_of(mapping, jobs))}).unique().all()


def claiming(
    entity: type[T],
    *where: ColumnElement[bool],
    order_by: Any = (),
    ready: str = UNCLAIMED,
    during: str = CLAIMED,
    strategy: str = AUTO,
) -> Claiming[T]:
    """Say what is claimed and how; statuses are given as JobStatus or as words."""
    mapping = mapping_of(entity)
    spec = ClaimSpec(
        mapping=mapping,
        where=tuple(where),
        order_by=_checked_order(order_by),
        ready=word_of(mapping, ready),
        during=word_of(mapping, during),
    )
    return Claiming(spec, strategy)


def _checked_order(order_by: Any) -> tuple[Any, ...]:
    if isinstance(order_by, Iterable) and not isinstance(order_by, str | ColumnElement):
        return tuple(order_by)
    return (order_by,)


def claim(
    session: AnySession,
    entity: type[T],
    *where: ColumnElement[bool],
    owner: str | int | None = None,
    limit: int = 1,
    order_by: Any = (),
    candidates_from: AnySession | None = None,
    strategy: str = AUTO,
    options: Sequence[Any] = (),
) -> Claim[T]:
    """Claim up to `limit` jobs in the caller's transaction, and return them fresh.

    Nothing is committed: until the caller commits, the jobs are locked; then
    they are marked as claimed by `owner`.

    Args:
        session: a Session or scoped_session of the caller's.
        entity: a mapped class with JobMixin.
        where: criteria, joined by AND, that the jobs fulfil when they are
            claimed (not only when they were found).
        owner: who claims, 1 to 64 characters; needed except for ``held``.
        limit: the number of jobs wanted, at least 1; never more are claimed.
        order_by: replaces the claim order (priority, run_at); the primary key
            always comes last.
        candidates_from: another session, such as a replica's, that the
            ``candidates`` strategy draws its candidates from.
        strategy: ``"auto"``, or the name of one.
        options: loader options; ``joinedload`` is applied without locks.

    Returns:
        The claimed entities, persistent in `session`, in claim order.

    Raises:
        UnsupportedDatabase: no safe way to claim here.
        ArgumentError: a limit below 1, an owner that cannot be stored, ..
        DBAPIError: what the engine says; see :func:`is_transient`.
    """
    plan = claiming(entity, *where, order_by=order_by, strategy=strategy)
    return plan.claim(
        session, owner=owner, limit=limit, candidates_from=candidates_from, options=options
    )


def claimed_by(session: AnySession, entity: type[T], owner: str | int) -> Claim[T]:
    """Return an owner's claims with their fences, in claim order.

    To go on with them, or to release them, after a restart under the same name.

    Raises:
        ArgumentError: an owner that cannot be.
    """
    plan = claiming(entity)
    mapping = plan.mapping
    request = Request(owner=checked_owner(owner), limit=1)
    of_owner = (
        select(entity)
        .where(mapping.has_status(mapping.claimed), mapping.attribute("owner") == request.owner)
        .order_by(*plan.spec.order)
    )
    with writing(session, mapping) as writer:
        jobs = writer.orm(of_owner, populate_existing=True).unique().scalars().all()
    fences = plan.fences_of(request, jobs)
    put_up(jobs, fences)
    return Claim(jobs, fences)


def claim_statements(
    entity: Any,
    *where: ColumnElement[bool],
    dialect: str | Dialect,
    order_by: Any = (),
    strategy: str = AUTO,
) -> list[Executable]:
    """Return the very statements that claim() runs, in order, to print or EXPLAIN.

    Args:
        entity: a mapped class, or a JobQueue (then the rest is the queue's).
        dialect: an SQLAlchemy dialect (a connected one knows the server's
            version), or a name such as ``"postgresql"`` for the newest version.

    Raises:
        UnsupportedDatabase: no such claim on this database.
    """
    plan = getattr(entity, "plan", None)
    if not isinstance(plan, Claiming):
        plan = claiming(entity, *where, order_by=order_by, strategy=strategy)
    return plan.built_for(database_of_dialect(dialect_of(dialect))).statements()


def dialect_of(dialect: str | Dialect) -> Dialect:
    """Return a dialect by its name; a dialect is returned as it is."""
    if isinstance(dialect, Dialect):
        return dialect
    made: Dialect = make_url(f"{dialect}://").get_dialect()()
    return made
