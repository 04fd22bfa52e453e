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
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any, Generic, TypeVar

from sqlalchemy import ColumnElement, select

from ..dialects import Database, is_missing_index
from ..dialects.registry import ByDialect
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
        # Where the table was found to lack an index that the model declares.
        self._unindexed: ByDialect[bool] = ByDialect()

    def for_spec(self, spec: ClaimSpec) -> ClaimPlan[T]:
        """Return a plan of the same kind that claims other rows of the class."""
        return ClaimPlan(spec, self.strategy)

    def built_for(
        self,
        database: Database,
        *,
        hooked: bool = False,
        drawn: bool = False,
        indexed: bool = True,
    ) -> Strategy:
        """Build the strategy with its statements for a database.

        Args:
            hooked: criteria of do_orm_execute hooks may join the predicate.
            drawn: candidates come from another session.
            indexed: the table has the indexes that the model declares.
        """
        return choose(
            self.strategy, self.spec, database, hooked=hooked, drawn=drawn, indexed=indexed
        )

    @built_once
    def _strategy(self, writer: Writer, hooked: bool, drawn: bool, indexed: bool) -> Strategy:
        strategy = self.built_for(writer.database, hooked=hooked, drawn=drawn, indexed=indexed)
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
            taken = self.take(writer, strategy, request)
            return self.claim_of(writer, strategy, request, taken, options)

    def request(
        self,
        owner: object | None,
        limit: int,
        rows: bool,
        candidates_from: AnySession | None = None,
    ) -> Request:
        """Check the arguments of a claim."""
        if not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:
            raise ArgumentError(f"limit is the number of jobs wanted, at least 1: {limit!r}")
        source = None if candidates_from is None else session_of(candidates_from)
        name = None if owner is None else checked_owner(owner)
        return Request(name, limit, rows, source)

    def strategy_for(self, writer: Writer, request: Request) -> Strategy:
        """Return the strategy that serves a request."""
        drawn = request.candidates_from is not None
        indexed = id(writer.connection.dialect) not in self._unindexed.values
        strategy = self._strategy(writer, writer.hooked, drawn, indexed)
        if request.owner is None or drawn:
            _check_request(strategy, request)
        return strategy

    def take(self, writer: Writer, strategy: Strategy, request: Request) -> Taken:
        """Take jobs; if the table lacks an index that a statement names, name none from now on."""
        try:
            return strategy.take(writer, request)
        except Exception as error:  # a handle_error listener may raise what it likes
            if not strategy.indexed or not is_missing_index(error):
                raise
        log.warning(
            "%s has no claim index, or no index of its keys; claims may read or lock more than "
            "they take",
            self.mapping,
        )
        self._unindexed.setdefault(writer.connection.dialect, True)
        return self.strategy_for(writer, request).take(writer, request)

    def claim_of(
        self,
        writer: Writer,
        strategy: Strategy,
        request: Request,
        taken: Taken,
        options: Sequence[Any] = (),
    ) -> Claim[Any]:
        """Return the claim of what a strategy has taken; the entities get their fences."""
        jobs, rows = taken.jobs, request.rows
        if options and not rows:
            self._load_options(writer, taken, options)
        parts = self._parts(request, taken)
        if rows and len(jobs) > 1 and strategy.database.repeats_keys:
            _refuse_repeated_keys(parts)  # of entities it shows as they are fenced
        claim: Claim[Any] = Claim(parts, candidates=taken.candidates, lost=taken.lost)
        if not rows:
            for part in parts:
                for bring_back in attach_fences(part):
                    if taken.hold is None:
                        undo_on_rollback(writer.session, bring_back)
            if taken.hold is None:
                expire_on_savepoint_rollback(writer.session, jobs)
        if self.spec.limits and self.mapping.wakes:
            self._note_all_found(writer, request, taken)
        if self.mapping.listeners and claim:
            note(writer, self.mapping, claim_event(self.spec, parts))
        if log.isEnabledFor(logging.DEBUG):
            log.debug("%s: %d of %s, %s", request.owner, len(jobs), self.mapping, strategy.name)
        if taken.lost:
            lost_log.debug("%d of %d candidates lost", taken.lost, taken.candidates)
        return claim

    def _note_all_found(self, writer: Writer, request: Request, taken: Taken) -> None:
        """Note that keys which this transaction has freed have no jobs left for others."""
        has_room = len(taken.jobs) < request.limit and not taken.lost
        if has_room and self.spec.sees_all_of_keys and not writer.hooked:
            forget_freed(writer, self.spec)

    def _load_options(self, writer: Writer, taken: Taken, options: Sequence[Any]) -> None:
        """Apply loader options by a second SELECT, which locks nothing.

        In the claim itself PostgreSQL refuses a joinedload(), and other databases lock the
        joined rows too. What the claim loaded is not loaded again.
        """
        if not taken.jobs:
            return
        mapping, keys = self.mapping, keys_of(self.mapping, taken.jobs)
        named = key_is_in(mapping, "sa_jobqueue_keys")
        again = select(mapping.entity).where(named).options(*options)
        try:
            writer.orm(again, {"sa_jobqueue_keys": key_values(keys)}).unique().all()
        except BaseException:
            if taken.hold is not None:  # the caller never gets to see these jobs
                taken.hold.let_go(writer.connection, mapping, keys, LetGo.AT_END)
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
        mapping, name = self.mapping, checked_owner(owner, claims=False)
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

    def _parts(self, request: Request, taken: Taken) -> list[FencedJobs]:
        """Make the tokens: one for each owner_date of the claim, or one for an unmarked claim."""
        mapping, spec, owner, rows = self.mapping, self.spec, request.owner, request.rows
        jobs, dates = list(taken.jobs), taken.dates
        keys = keys_of(mapping, jobs, rows=rows)
        limited_by = spec if spec.limits else None
        if taken.hold is not None:
            token = Token(spec.ready, owner, hold=taken.hold, limited_by=limited_by)
            return [FencedJobs(mapping, token, keys, jobs, rows)]
        tokens: dict[Any, Token] = {}
        parts, begin = [], 0
        for date, same in groupby(dates):  # a single statement has one date
            end = begin + len(list(same))
            if date not in tokens:
                tokens[date] = Token(spec.during, owner, [date], limited_by=limited_by)
            parts.append(FencedJobs(mapping, tokens[date], keys[begin:end], jobs[begin:end], rows))
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


def checked_owner(owner: object, *, claims: bool = True) -> str:
    """Return an owner as it is written to the table.

    Args:
        claims: the caller claims in this name, and does not only look for its claims.

    Raises:
        ArgumentError: the name is empty, has over 64 characters, or is a string of the
            caller's own with a ``~``, which marks the owners whose death can be noticed.
        LockLost: an Owner that has lost its lock.
    """
    if isinstance(owner, Owner):
        return owner.name
    if not isinstance(owner, (str, int)) or isinstance(owner, bool):
        raise ArgumentError(f"an owner is a str or an int, not {type(owner).__name__}: {owner!r}")
    name = str(owner)
    if not name or len(name) > OWNER_LENGTH:
        raise ArgumentError(
            f"an owner has 1 to {OWNER_LENGTH} characters, and {name!r} has {len(name)}"
        )
    if claims and SEPARATOR in name and not isinstance(owner, ConnectionOwner):
        raise ArgumentError(
            f"'~' is reserved in owners: {name!r}; use another character, or give the Owner itself"
        )
    return name


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
    placed: bool = True,
) -> ClaimPlan[T]:
    """Make a plan of what is claimed and how; statuses are JobStatus or words.

    Args:
        placed: claims may begin at the place where the last one began.
    """
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
        placed=placed,
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
        entity: a mapped class with JobMixin; for ``held`` and ``advisory``, any mapped class.
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
    if where or not (isinstance(order_by, tuple) and order_by == ()):
        plan = claim_plan(entity, *where, order_by=order_by, strategy=strategy, placed=False)
    else:
        plan = _plan_of_class(entity, strategy)
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
    return _plan_of_class(entity, AUTO).claimed_by(session, owner)


def _plan_of_class(entity: type[T], strategy: str) -> ClaimPlan[T]:
    """Return the plan of all jobs of a class, which is kept with the class's mapping."""
    kept = any_mapping_of(entity).plans
    plan: ClaimPlan[T] | None = kept.get(strategy)
    if plan is None:
        plan = kept[strategy] = claim_plan(entity, strategy=strategy, placed=False)
    return plan
