"""claim(): take up to `limit` jobs, which belong to this owner alone from then on.

::

    emails = claim(session, Email, Email.recipient.like("a%"), owner="mailer-1", limit=100)
    session.commit()                     # now the claim is visible, the row locks are gone

The strategies (``strategies/``) know how to claim. Here is what they share: the arguments
are checked, the session's writing connection is prepared, and the claimed entities get
their fences. Statements are built once for each :class:`ClaimPlan`;
:class:`sa_jobqueue.JobQueue` keeps a plan.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import lru_cache
from itertools import groupby
from typing import Any, Generic, TypeVar

from sqlalchemy import ColumnElement, select

from ..dialects import Database
from ..errors import ArgumentError
from ..events.notes import forget_freed, note
from ..fence.claim import Claim, FencedJobs, attach_fences
from ..fence.token import LetGo, Token
from ..model.columns import OWNER_LENGTH, loses_microseconds
from ..model.keys import key_is_in, key_values, keys_of, repeated_key
from ..model.mapping import QueueMapping, any_mapping_of, mapping_of, word_of
from ..model.status import CLAIMED, UNCLAIMED
from ..owners.alive import SEPARATOR
from ..owners.owner import ConnectionOwner, Owner
from ..sessions.built_once import built_once
from ..sessions.show import expire_on_savepoint_rollback
from ..sessions.transaction_end import undo_on_rollback
from ..sessions.writer import (
    AnyConnection,
    AnySession,
    Writer,
    session_of,
    writing,
)
from ..strategies import (
    AUTO,
    WAIT,
    ClaimSpec,
    Request,
    Strategy,
    Taken,
    check_name,
    choose,
    key_limits,
    needs_no_mixin,
)
from .claim_event import claim_event

log = logging.getLogger("sa_jobqueue.claim")
lost_log = logging.getLogger("sa_jobqueue.lost")

T = TypeVar("T")


class ClaimPlan(Generic[T]):
    """What is claimed and how, with its statements built at first use."""

    def __init__(self, spec: ClaimSpec, strategy: str = AUTO) -> None:
        check_name(strategy, strict=spec.strict, limited=bool(spec.limits))
        self.spec = spec
        #: The mapping of the claimed entity.
        self.mapping: QueueMapping = spec.mapping
        self.strategy = strategy

    def for_spec(self, spec: ClaimSpec) -> ClaimPlan[T]:
        """Return a plan of the same kind that claims other rows of the class."""
        return ClaimPlan(spec, self.strategy)

    def built_for(
        self, database: Database, *, hooked: bool = False, drawn: bool = False
    ) -> Strategy:
        """Build the strategy with its statements for a database.

        Args:
            hooked: criteria of do_orm_execute hooks may join the predicate.
            drawn: candidates come from another session.
        """
        return choose(self.strategy, self.spec, database, hooked=hooked, drawn=drawn)

    @built_once
    def _strategy(self, writer: Writer, hooked: bool, drawn: bool) -> Strategy:
        strategy = self.built_for(writer.database, hooked=hooked, drawn=drawn)
        if strategy.marks:
            _check_owner_date(self.mapping, writer)
        return strategy

    def claim(
        self,
        session: AnyConnection,
        *,
        owner: object | None,
        limit: int,
        rows: bool = False,
        candidates_from: AnySession | None = None,
        options: Sequence[Any] = (),
    ) -> Claim[Any]:
        """Claim entities, or plain rows; see :func:`claim`."""
        request = self.request(owner, limit, rows, candidates_from)
        with writing(session, self.mapping, rows=rows) as writer:
            strategy = self.strategy_for(writer, request)
            taken = strategy.take(writer, request)
            return self.claim_of(writer, strategy, request, taken, options)

    def request(
        self,
        owner: object | None,
        limit: int,
        rows: bool,
        candidates_from: AnySession | None = None,
    ) -> Request:
        """Check the arguments of a claim."""
        source = None if candidates_from is None else session_of(candidates_from)
        return Request(checked_owner(owner), _checked_limit(limit), rows, source)

    def strategy_for(self, writer: Writer, request: Request) -> Strategy:
        """Return the strategy that serves a request."""
        drawn = request.candidates_from is not None
        strategy = self._strategy(writer, writer.hooked, drawn)
        if request.owner is None or drawn:
            _check_request(strategy, request)
        return strategy

    def claim_of(
        self,
        writer: Writer,
        strategy: Strategy,
        request: Request,
        taken: Taken,
        options: Sequence[Any] = (),
    ) -> Claim[Any]:
        """Return the claim of what a strategy has taken; the entities get their fences."""
        if options and not request.rows:
            with self._freed_on_error(writer, taken):
                _load_options(writer, self.mapping, taken.jobs, options)
        parts = self._parts(request, taken)
        jobs = len(taken.jobs)
        if jobs > 1 and request.rows and strategy.database.repeats_keys:
            _refuse_repeated_keys(parts)  # of entities it shows as they are fenced
        claim: Claim[Any] = Claim(parts)
        claim.candidates, claim.lost = taken.candidates, taken.lost
        if not request.rows:
            self._attach(writer, taken, parts)
        if self.spec.limits and self.mapping.wakes:
            self._note_all_found(writer, request, taken)
        if self.mapping.listeners and claim:
            note(writer, self.mapping, claim_event(self.spec, parts))
        if log.isEnabledFor(logging.DEBUG):
            log.debug("%s: %d of %s, %s", request.owner, jobs, self.mapping, strategy.name)
        if taken.lost:
            lost_log.debug("%d of %d candidates lost", taken.lost, taken.candidates)
        return claim

    def _note_all_found(self, writer: Writer, request: Request, taken: Taken) -> None:
        """Note that keys which this transaction has freed have no jobs left for others."""
        has_room = len(taken.jobs) < request.limit and not taken.lost
        if has_room and self.spec.sees_all_of_keys and not writer.hooked:
            forget_freed(writer, self.spec)

    @contextmanager
    def _freed_on_error(self, writer: Writer, taken: Taken) -> Iterator[None]:
        """On an error free the locks of jobs that the caller never gets to see."""
        try:
            yield
        except BaseException:
            if taken.hold is not None:
                keys = keys_of(self.mapping, taken.jobs)
                taken.hold.let_go(writer.connection, self.mapping, keys, LetGo.AT_END)
            raise

    def begin(self, session: AnyConnection, *, rows: bool) -> None:
        """Begin a transaction that writes before it claims as one that sees what others commit.

        For claims that look again: once something was written, the level can only be asked for.
        """
        if self.spec.limits or self.spec.strict:
            with writing(session, self.mapping, rows=rows, reads=True) as writer:
                _ = writer.sees_commits

    def claimed_by(
        self, session: AnySession, owner: str | int | Owner, *, options: Sequence[Any] = ()
    ) -> Claim[Any]:
        """Return an owner's claims with their fences; see :func:`claimed_by`.

        Args:
            options: loader options.
        """
        mapping, name = self.mapping, _owner_name(owner)
        of_owner = (
            select(mapping.entity)
            .where(
                mapping.has_status(*self.spec.in_progress),
                mapping.attribute("owner") == name,
                *self.spec.where,
            )
            .order_by(*self.spec.order)
            .options(*options)
        )
        with writing(session, mapping, reads=True) as writer:
            found = writer.orm(of_owner, populate_existing=True).unique().scalars().all()
        owner_key, date_key = mapping.attributes["owner"], mapping.attributes["owner_date"]
        # Compared again in Python: some collations ignore the case.
        jobs = [job for job in found if getattr(job, owner_key) == name]
        taken = Taken(jobs, [getattr(job, date_key) for job in jobs])
        parts = self._parts(Request(name, limit=1), taken)
        for part in parts:
            attach_fences(part)
        return Claim(parts)

    def _attach(self, writer: Writer, taken: Taken, parts: Sequence[FencedJobs]) -> None:
        """Give claimed entities their fences, which a rollback of the claim takes back."""
        session = writer.session
        earlier = [bring_back for part in parts for bring_back in attach_fences(part)]
        if taken.hold is None:
            for bring_back in earlier:
                undo_on_rollback(session, bring_back)
            expire_on_savepoint_rollback(session, taken.jobs)

    def _parts(self, request: Request, taken: Taken) -> list[FencedJobs]:
        """Make the tokens: one for each owner_date of the claim, or one for an unmarked claim."""
        mapping, owner, jobs = self.mapping, request.owner, list(taken.jobs)
        keys, dates = keys_of(mapping, jobs, rows=request.rows), taken.dates
        limited_by = self.spec if self.spec.limits else None
        if taken.hold is not None:
            token = Token(self.spec.ready, owner, hold=taken.hold, limited_by=limited_by)
            return [FencedJobs(mapping, token, keys, jobs, request.rows)]
        if dates and dates.count(dates[0]) == len(dates):  # as those of a single statement are
            token = Token(self.spec.during, owner, [dates[0]], limited_by=limited_by)
            return [FencedJobs(mapping, token, keys, jobs, request.rows)]
        tokens: dict[datetime, Token] = {}
        parts, begin = [], 0
        for date, same in groupby(dates):
            end = begin + sum(1 for _ in same)
            made = Token(self.spec.during, owner, [date], limited_by=limited_by)
            token = tokens.setdefault(date, made)
            parts.append(FencedJobs(mapping, token, keys[begin:end], jobs[begin:end], request.rows))
            begin = end
        return parts


@built_once
def _check_owner_date(mapping: QueueMapping, writer: Writer) -> None:
    """Refuse a type that loses microseconds on this database.

    Raises:
        ArgumentError: names a type that keeps them.
    """
    column, dialect = mapping.column("owner_date"), writer.connection.dialect
    loss = loses_microseconds(column.type, dialect, writer.database.time_digits)
    if loss is not None:
        raise ArgumentError(
            f"{mapping}.{mapping.attributes['owner_date']} loses microseconds on "
            f"{writer.database}, so every finish would be lost: {loss}. Declare the column with "
            "sa_jobqueue.migration.timestamp_type(), or its impl if it is a TypeDecorator: on "
            "MySQL and MariaDB that is mysql.DATETIME(fsp=6)"
        )


def _refuse_repeated_keys(parts: Sequence[FencedJobs]) -> None:
    for part in parts:
        if len(set(part.identities)) < len(part.identities):
            raise repeated_key(part.mapping)


def checked_owner(owner: object | None) -> str | None:
    """Return the owner's name.

    Raises:
        ArgumentError: the name is empty, has over 64 characters, or is a string of the
            caller's own with a ``~``, which marks the owners whose death can be noticed.
        LockLost: an Owner that has lost its lock.
    """
    if owner is None:
        return None
    if isinstance(owner, str) and not isinstance(owner, ConnectionOwner):
        return _checked_name(owner)
    return _owner_name(owner)


@lru_cache(typed=True)  # a worker claims by the same name again and again
def _checked_name(owner: str) -> str:
    name = _owner_name(owner)
    if SEPARATOR in name:
        raise ArgumentError(
            f"'~' is reserved in owners: {name!r}; use another character, or give the Owner itself"
        )
    return name


def _owner_name(owner: object) -> str:
    """Return an owner as it is written to the table."""
    if isinstance(owner, Owner):
        return owner.name
    if not isinstance(owner, (str, int)) or isinstance(owner, bool):
        raise ArgumentError(f"an owner is a str or an int, not {type(owner).__name__}: {owner!r}")
    name = str(owner)
    if not name or len(name) > OWNER_LENGTH:
        raise ArgumentError(
            f"an owner has 1 to {OWNER_LENGTH} characters, and {name!r} has {len(name)}"
        )
    return name


def _checked_limit(limit: int) -> int:
    if not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:
        raise ArgumentError(f"limit is the number of jobs wanted, at least 1: {limit!r}")
    return limit


def _check_request(strategy: Strategy, request: Request) -> None:
    if strategy.marks and request.owner is None:
        raise ArgumentError(
            "owner= is needed, because the claim writes it to the rows. Use a name of the worker, "
            "such as its host and process id; strategy='held' and 'advisory' need none"
        )
    if request.candidates_from is not None and not strategy.candidates_elsewhere:
        raise ArgumentError(
            f"candidates_from= is for strategy='candidates'; this claim uses {strategy.name!r}"
        )


def _load_options(
    writer: Writer, mapping: QueueMapping, jobs: Sequence[Any], options: Sequence[Any]
) -> None:
    """Apply loader options by a second SELECT, which locks nothing.

    In the claim itself PostgreSQL refuses a joinedload(), and other databases lock the
    joined rows too. What the claim loaded is not loaded again.
    """
    if not jobs:
        return
    again = select(mapping.entity).where(key_is_in(mapping, "sa_jobqueue_keys")).options(*options)
    writer.orm(again, {"sa_jobqueue_keys": key_values(keys_of(mapping, jobs))}).unique().all()


def claim_plan(
    entity: type[T],
    *where: ColumnElement[bool],
    order_by: Any = (),
    ready: str = UNCLAIMED,
    during: str = CLAIMED,
    strategy: str = AUTO,
    strict: bool = False,
    serial_by: Any = None,
    limit_by: Mapping[Any, int] | None = None,
    on_retry: str = WAIT,
) -> ClaimPlan[T]:
    """Make a plan of what is claimed and how; statuses are JobStatus or words."""
    mapping = any_mapping_of(entity) if needs_no_mixin(strategy) else mapping_of(entity)
    spec = ClaimSpec(
        mapping=mapping,
        where=tuple(where),
        order_by=_checked_order(order_by),
        ready=word_of(mapping, ready),
        during=word_of(mapping, during),
        strict=strict,
        limits=key_limits(mapping, serial_by, limit_by, on_retry),
        on_retry=on_retry,
    )
    mapping.refuse_other_tables(spec.where)
    return ClaimPlan(spec, strategy)


def _checked_order(order_by: Any) -> tuple[Any, ...]:
    several = isinstance(order_by, Iterable) and not isinstance(order_by, str | ColumnElement)
    ordering = tuple(order_by) if several else (order_by,)
    words = [element for element in ordering if isinstance(element, str)]
    if words:
        raise ArgumentError(f"order_by= takes attributes, as in Email.id.desc(), not {words[0]!r}")
    return ordering


def claim(
    session: AnySession,
    entity: type[T],
    *where: ColumnElement[bool],
    owner: str | int | Owner | None = None,
    limit: int = 1,
    order_by: Any = (),
    candidates_from: AnySession | None = None,
    strategy: str = AUTO,
    options: Sequence[Any] = (),
) -> Claim[T]:
    """Claim up to `limit` jobs in the caller's transaction, and return them fresh.

    Nothing is committed. Until the caller commits, the jobs are locked; from then on they
    are marked as claimed by `owner`.

    Args:
        session: a Session or scoped_session of the caller's.
        entity: a mapped class with JobMixin; for ``advisory``, any mapped class.
        where: criteria, joined by AND, that the jobs meet when they are
            claimed (not only when they were found).
        owner: who claims: an :class:`Owner`, or 1 to 64 characters; all strategies but
            ``held`` and ``advisory`` need it.
        limit: the most jobs to claim, at least 1.
        order_by: replaces the claim order (round, priority, run_at); the primary key
            always comes last.
        candidates_from: another session, such as a replica's, in which the
            ``candidates`` strategy reads its candidates.
        strategy: ``"auto"``, or the name of a strategy.
        options: loader options; ``joinedload`` is applied without locks.

    Returns:
        The claimed entities, persistent in `session`, in claim order.

    Raises:
        UnsupportedDatabase: there is no safe way to claim on this database.
        ArgumentError: a limit below 1, an owner that cannot be stored, ..
        DBAPIError: an error of the database; see :func:`is_transient`.
    """
    plan = claim_plan(entity, *where, order_by=order_by, strategy=strategy)
    return plan.claim(
        session, owner=owner, limit=limit, candidates_from=candidates_from, options=options
    )


def claimed_by(session: AnySession, entity: type[T], owner: str | int | Owner) -> Claim[T]:
    """Return an owner's claims with their fences, in claim order.

    After a restart under the same name, an owner goes on with them or releases them.

    Args:
        owner: as it was given to the claim, or as it is written in the ``owner`` column.

    Raises:
        ArgumentError: `owner` cannot be the name of an owner.
    """
    return claim_plan(entity).claimed_by(session, owner)
