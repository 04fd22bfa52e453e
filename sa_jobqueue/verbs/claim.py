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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from sqlalchemy import ColumnElement, select
from sqlalchemy.orm.attributes import instance_dict

from ..databases import Database, is_missing_index
from ..databases.registry import ByDialect
from ..errors import ArgumentError
from ..events.event import Event, EventJob
from ..events.notes import forget_freed, note
from ..fence.claim import Claim, FencedJobs, attach_fences
from ..fence.token import LetGo, Token
from ..model.columns import OWNER_LENGTH, loses_microseconds
from ..model.keys import key_is_in, key_values, keys_of, repeated_key
from ..model.mapping import QueueMapping, any_mapping_of, mapping_of, word_of
from ..model.status import CLAIMED, UNCLAIMED
from ..owners.alive import SEPARATOR
from ..owners.owner import ConnectionOwner, Owner
from ..sessions.show import expire_on_savepoint_rollback
from ..sessions.transaction_end import undo_on_rollback
from ..sessions.writer import (
    AnyConnection,
    AnySession,
    Writer,
    built_once,
    writing,
)
from ..strategies import (
    AUTO,
    ClaimSpec,
    Request,
    Strategy,
    Taken,
    check_name,
    choose,
    key_limit,
    needs_no_mixin,
)

if TYPE_CHECKING:
    from ..rates import Rate

log = logging.getLogger("sa_jobqueue.claim")
lost_log = logging.getLogger("sa_jobqueue.lost")

T = TypeVar("T")


class ClaimPlan(Generic[T]):
    """What is claimed and how, with its statements built at first use."""

    def __init__(self, spec: ClaimSpec, strategy: str = AUTO) -> None:
        check_name(strategy, spec)
        self.spec = spec
        #: The mapping of the claimed entity.
        self.mapping: QueueMapping = spec.mapping
        self.strategy = strategy
        # Where the table was found to lack an index that the model declares.
        self._unindexed: ByDialect[bool] = ByDialect()

    def for_spec(self, spec: ClaimSpec) -> ClaimPlan[T]:
        """Return a plan of the same kind that claims other rows of the class."""
        return ClaimPlan(spec, self.strategy)

    def strategy_on(self, database: Database, **found: bool) -> Strategy:
        """Build the strategy with its statements for a database; see :func:`choose`."""
        return choose(self.strategy, self.spec, database, **found)

    def claim(
        self,
        session: AnyConnection,
        *,
        owner: object | None,
        limit: int,
        rows: bool = False,
        options: Sequence[Any] = (),
        take: Callable[[Writer, Request], Taken] | None = None,
    ) -> Claim[Any]:
        """Claim entities, or plain rows; see :func:`claim`.

        Args:
            take: takes the jobs, instead of :meth:`take`, and does more in one go.
        """
        if not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:
            raise ArgumentError(f"limit is the number of jobs wanted, at least 1: {limit!r}")
        name = None if owner is None else checked_owner(owner)
        request = Request(name, limit, rows)
        with writing(session, self.mapping, rows=rows, shard_by=options) as writer:
            taken = (take or self.take)(writer, request)
            return self._claim_of(writer, request, taken, options)

    def take(self, writer: Writer, request: Request) -> Taken:
        """Take jobs; if the table lacks an index that a statement names, name none from now on."""
        strategy = self.strategy_for(writer, request)
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
        return self.take(writer, request)

    def strategy_for(self, writer: Writer, request: Request) -> Strategy:
        """Return the strategy that serves a request, and refuse what it does not serve."""
        indexed = id(writer.connection.dialect) not in self._unindexed.values
        strategy = self._strategy(writer, writer.hooked, indexed)
        if strategy.marks and request.owner is None:
            raise ArgumentError(
                "owner= is needed, because the claim writes it to the rows. Use a name of the "
                "worker, such as its host and process id; strategy='held' and 'advisory' need none"
            )
        return strategy

    @built_once
    def _strategy(self, writer: Writer, hooked: bool, indexed: bool) -> Strategy:
        strategy = self.strategy_on(writer.database, hooked=hooked, indexed=indexed)
        if strategy.marks:
            _check_owner_date(self.mapping, writer)
        return strategy

    def _claim_of(
        self, writer: Writer, request: Request, taken: Taken, options: Sequence[Any]
    ) -> Claim[Any]:
        """Return the claim of what was taken; the entities get their fences."""
        jobs, mapping = taken.jobs, self.mapping
        if options and jobs and not request.rows:
            self._load_options(writer, taken, options)
        parts = self._parts(request, taken, may_repeat=writer.database.repeats_keys)
        claim: Claim[Any] = Claim(
            parts, candidates=taken.candidates, lost=taken.lost, refills_in=taken.refills_in
        )
        if not request.rows:
            session = writer.session
            for part in parts:
                for bring_back in attach_fences(part):
                    if taken.hold is None:
                        undo_on_rollback(session, bring_back)
            if taken.hold is None:
                expire_on_savepoint_rollback(session, jobs)
        if self.spec.key_limit and mapping.wakes:
            self._note_all_found(writer, request, taken)
        if mapping.listeners and claim:
            note(writer, mapping, claim_event(self.spec, parts))
        if log.isEnabledFor(logging.DEBUG):
            name = self.strategy_for(writer, request).name
            log.debug("%s: %d of %s, %s", request.owner, len(jobs), mapping, name)
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
        mapping, keys = self.mapping, keys_of(self.mapping, taken.jobs)
        named = key_is_in(mapping, "sa_jobqueue_keys")
        again = select(mapping.entity).where(named).options(*options)
        try:
            writer.orm(again, {"sa_jobqueue_keys": key_values(keys)}).unique().all()
        except BaseException:
            if taken.hold is not None:  # the caller never gets to see these jobs
                taken.hold.let_go(writer.connection, keys, LetGo.AT_END)
            raise

    def begin(self, session: AnyConnection, *, rows: bool) -> None:
        """Begin a transaction that writes before it claims as one that sees what others commit.

        For claims that look again: once something was written, the level can only be asked for.
        """
        if self.spec.key_limit or self.spec.strict:
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

    def _parts(
        self, request: Request, taken: Taken, *, may_repeat: bool = False
    ) -> list[FencedJobs]:
        """Divide what was taken by its tokens: one for each owner_date, or one without a date.

        Args:
            may_repeat: two rows may have one key. Of entities that shows as they are fenced.
        """
        spec, hold, rows, jobs = self.spec, taken.hold, request.rows, list(taken.jobs)
        keys = keys_of(self.mapping, jobs, rows=rows)
        if rows and may_repeat and len(set(keys)) < len(keys):
            raise repeated_key(self.mapping)
        status = spec.during if hold is None else spec.ready
        limited_by = spec if spec.key_limit else None
        tokens: dict[Any, Token] = {}
        parts, begin = [], 0
        undated: list[Any] = [None] * len(jobs)
        for date, same in groupby(taken.dates or undated):
            end = begin + len(list(same))
            if date not in tokens:
                dates = [] if date is None else [date]
                tokens[date] = Token(status, request.owner, dates, hold, limited_by)
            some = tokens[date], keys[begin:end], jobs[begin:end]
            parts.append(FencedJobs(self.mapping, *some, rows))
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
    rate: Rate | None = None,
    rate_by: Any = None,
    fair_by: Any = None,
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
        key_limit=key_limit(mapping, serial_by, limit_by),
        placed=placed,
    )
    if rate is not None or rate_by is not None:
        from ..strategies.rates import checked_rate

        rate, rate_by = checked_rate(mapping, rate, rate_by, spec.ready)
        spec = replace(spec, rate=rate, rate_by=rate_by)
    if fair_by is not None:
        from ..strategies.fair import checked_fair_by

        spec = replace(spec, fair_by=checked_fair_by(spec, fair_by))
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
        strategy: ``"auto"``, or the name of a strategy.
        options: loader options; ``joinedload`` is applied without locks. In a ShardedSession
            ``set_shard_id("eu")`` names the database.

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
    return plan.claim(session, owner=owner, limit=limit, options=options)


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


# -- the event of a claim ------------------------------------------------------


def claim_event(spec: ClaimSpec, parts: Sequence[FencedJobs]) -> Event:
    """Make the event of a claim."""
    jobs = tuple(job for part in parts for job in _told(spec, part))
    at = jobs[-1].owner_date if jobs else None
    return Event("after_claim", "claim", spec.mapping.entity, jobs, len(jobs), at=at)


def _told(spec: ClaimSpec, part: FencedJobs) -> Iterator[EventJob]:
    mapping, token, unmarked = spec.mapping, part.token, part.token.hold is not None
    name = mapping.attributes.get("attempts", "")
    key = mapping.column("attempts").key if name else ""
    for identity, job in zip(part.identities, part.jobs, strict=True):
        shown = job._mapping.get(key) if part.rows else instance_dict(job).get(name)
        yield EventJob(
            identity,
            token.status,
            token.status,
            token.owner,
            tuple(token.dates),
            # An unmarked claim has counted nothing.
            attempts=None if shown is None else shown + unmarked,
            unmarked=unmarked,
            before=spec.ready,
        )
