"""reap(): return the claims of owners that are dead, or silent for too long, to the queue.

::

    reaped = reap(session, Email)
    session.commit()
    for owner, count in reaped.by_owner.items():
        print(f"{count} jobs of {owner} can be claimed again")

The state of the owner decides (``owners/alive.py``). The claims of a dead Owner are reaped at
once, and those of an unknown owner after the lease. Claims of an owner that is alive are reaped
only with an explicit `max_runtime`. A plain read proposes rows. Each row is then locked by its
primary key and checked again. A job that was finished, renewed or claimed again in between
therefore stays as it is, and two reapers reap no claim twice.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple

from sqlalchemy import BigInteger, ColumnElement, and_, bindparam, case, select
from sqlalchemy.exc import DBAPIError

from ..databases import is_mistake, is_refusal
from ..databases.clock import as_utc, utc_now
from ..errors import ArgumentError
from ..events.event import Event, EventJob
from ..events.notes import note, note_claimable
from ..model.keys import key_batches, key_is_in, key_values, locked_by_key
from ..model.mapping import QueueMapping, mapping_of
from ..model.status import FAILED, UNCLAIMED, status_is
from ..model.transitions import attempts_used_up, reaped
from ..owners.alive import OwnerState, is_connection_owner, owner_states
from ..sessions.show import loaded, show_expired
from ..sessions.writer import AnySession, Writer, writing
from ..strategies import ClaimSpec
from .backoff import LONGEST_AGE, check_durations

log = logging.getLogger("sa_jobqueue.reap")

#: How many claims a call of reap() reaps by default.
REAP_LIMIT = 1_000

_KEYS = "sa_jobqueue_keys"

# Never released: setting it again replaces it, and it ends with the transaction.
_SAVEPOINT = "sa_jobqueue_reap"


class ReapReason(StrEnum):
    """Why a claim was reaped."""

    DEAD_OWNER = "dead owner"
    LEASE_OVER = "lease over"
    MAX_RUNTIME_OVER = "max_runtime over"


@dataclass(frozen=True)
class ReapedJob:
    """One job whose claim was reaped.

    Attributes:
        identity: the primary key's values.
        owner: whose claim it was; None if the column was empty.
        reason: why it was reaped.
        failed: whether its attempts were used up; if not, it can be claimed again.
        owner_date: the time of the claim or of its last renewal; None if the column was empty.
    """

    identity: tuple[Any, ...]
    owner: str | None
    reason: ReapReason
    failed: bool
    owner_date: datetime | None


@dataclass(frozen=True)
class Reaped:
    """The jobs that a call of reap() has reaped; its length is their number.

    Attributes:
        jobs: the jobs.
        more: the limit was reached, so another call may find more.
    """

    jobs: tuple[ReapedJob, ...] = ()
    more: bool = False

    def __len__(self) -> int:
        return len(self.jobs)

    def __bool__(self) -> bool:
        return bool(self.jobs)

    @property
    def failed(self) -> int:
        """How many have failed, because their attempts were used up."""
        return sum(job.failed for job in self.jobs)

    @property
    def unclaimed(self) -> int:
        """How many can be claimed again."""
        return len(self.jobs) - self.failed

    @property
    def by_owner(self) -> dict[str | None, int]:
        """How many claims of each owner were reaped."""
        return dict(Counter(job.owner for job in self.jobs))


def reap(
    session: AnySession,
    entity: type[Any],
    *,
    lease: timedelta | None = None,
    max_runtime: timedelta | None = None,
    limit: int | None = None,
) -> Reaped:
    """Reap the claims of dead owners at once, and those of unknown owners after the lease.

    The jobs become unclaimed again, and the attempt counts. With RetryMixin, jobs whose
    attempts are used up become failed, and ``last_error`` gives the reason. Any number of
    reapers may run at once.

    Args:
        session: the caller's; nothing is committed.
        entity: a mapped class with JobMixin; no other rows are touched.
        lease: how long a claim of an unknown owner is left alone, since the claim or
            its last renewal; None takes ``__queue_args__["lease"]``, by default 10
            minutes.
        max_runtime: also reap claims whose last renewal is longer ago than this, even if
            their owner is alive. ``timedelta(0)`` reaps all claims.
        limit: the most claims for this call; None is 1,000.

    Raises:
        ArgumentError: a lease that is no time, a negative max_runtime, a limit
            below 1.
        DBAPIError: an error of the database; see :func:`is_transient`.
    """
    mapping = mapping_of(entity)
    spec = ClaimSpec(mapping, (), (), ready=mapping.word(UNCLAIMED), during=mapping.claimed)
    return reap_claims(session, spec, lease, max_runtime, limit)


def reap_claims(
    session: AnySession,
    spec: ClaimSpec,
    lease: timedelta | None,
    max_runtime: timedelta | None,
    limit: int | None,
) -> Reaped:
    """Reap claims of one queue; see :func:`reap`.

    Only the queue's criteria on the columns that lead the index count. The values of other
    columns may have changed since the claim.
    """
    mapping = mapping_of(spec.mapping.mapper)  # refuses a class without JobMixin
    lease = mapping.args.lease if lease is None else lease
    limit = REAP_LIMIT if limit is None else limit
    check_durations(zero=False, longest=LONGEST_AGE, lease=lease)
    check_durations(zero=True, none=True, longest=LONGEST_AGE, max_runtime=max_runtime)
    if not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:
        raise ArgumentError(f"limit must be the number of claims to reap, at least 1: {limit!r}")
    with writing(session, mapping) as writer, writer.atomically():
        writer.lock_writes(mapping.table)
        reaper = _Reaper(writer, spec, mapping)
        reaped = reaper.reap(reaper.rules(lease, max_runtime), limit)
    if reaped:
        mapping.head.changes += 1
        if mapping.listeners:
            for told in _events(spec, reaped):
                note(writer, mapping, told)
        frees_keys = bool(spec.key_limit or mapping.args.per_key)
        if mapping.wakes and (frees_keys or reaped.failed < len(reaped)):
            note_claimable(writer, mapping)
        entities = loaded(writer, mapping, (job.identity for job in reaped.jobs))
        show_expired(writer.session, mapping, entities)
        owners = ", ".join(f"{owner}: {count}" for owner, count in reaped.by_owner.items())
        log.info("%d of %s, %d of them failed; %s", len(reaped), mapping, reaped.failed, owners)
    return reaped


def _events(spec: ClaimSpec, reaped: Reaped) -> Iterator[Event]:
    """Make an event of the jobs of each reason."""
    now = {True: spec.mapping.word(FAILED), False: spec.ready}
    for reason, of_reason in groupby(reaped.jobs, attrgetter("reason")):  # rule by rule
        jobs = tuple(
            EventJob(
                job.identity,
                now[job.failed],
                spec.during,
                job.owner,
                tuple(filter(None, [job.owner_date])),
                before=spec.during,
            )
            for job in of_reason
        )
        yield Event("after_reap", "reap", spec.mapping.entity, jobs, len(jobs), error=str(reason))


class _Rule(NamedTuple):
    """Which claims are reaped, and why."""

    reason: ReapReason
    criteria: tuple[ColumnElement[bool], ...]


@dataclass(frozen=True)
class _Reaper:
    """One call of reap(), on the session's writing connection."""

    writer: Writer
    spec: ClaimSpec
    mapping: QueueMapping

    # -- which claims ---------------------------------------------------

    def rules(self, lease: timedelta, max_runtime: timedelta | None) -> Iterator[_Rule]:
        """Yield what is reaped, by what is known of the owners that have claims now.

        Only the last rule can take claims of an owner who comes later.
        """
        owner = self.mapping.attribute("owner")
        owners = set(self.writer.orm(select(owner).where(*self._claimed).distinct()).scalars())
        states = owner_states(self.writer.connection, owners - {None})
        dead = {name for name, state in states.items() if state is OwnerState.DEAD}
        unknown = {name for name, state in states.items() if state is OwnerState.UNKNOWN}
        # A pool drops connections while its process lives and goes on working.
        cut = set(filter(is_connection_owner, dead))
        expired = self._older_than(lease)
        for names, reason, further in (
            (dead - cut, ReapReason.DEAD_OWNER, ()),
            (cut, ReapReason.DEAD_OWNER, expired),
            (unknown, ReapReason.LEASE_OVER, expired),
        ):
            if names:
                yield _Rule(reason, (owner.in_(sorted(names)), *further))
        if None in owners:
            yield _Rule(ReapReason.LEASE_OVER, (owner.is_(None), *expired))
        if max_runtime is not None:
            yield _Rule(ReapReason.MAX_RUNTIME_OVER, self._older_than(max_runtime))

    @property
    def _claimed(self) -> list[ColumnElement[bool]]:
        return [self.mapping.has_status(*self.spec.in_progress), *self.spec.equalities]

    def _older_than(self, age: timedelta) -> tuple[ColumnElement[bool], ...]:
        """Return the criterion that a claim, or its renewal, is older, by the database's clock."""
        if not age:  # every claim is, even one without a time
            return ()
        shift = bindparam(
            "sa_jobqueue_age", -(age // timedelta(microseconds=1)), BigInteger, unique=True
        )
        return (self.mapping.attribute("owner_date") < utc_now(shift),)

    # -- taking them back -----------------------------------------------

    def reap(self, rules: Iterator[_Rule], limit: int) -> Reaped:
        """Reap what the rules name, until the limit is reached."""
        reaped: list[ReapedJob] = []
        for rule in rules:
            # The oldest first, by a plain read: a locking read holds all that InnoDB walks.
            found = select(*self.mapping.key_attributes).where(*self._claimed, *rule.criteria)
            oldest = found.order_by(self.mapping.attribute("owner_date")).limit(limit)
            keys = [tuple(key) for key in self.writer.orm(oldest)]
            for batch in key_batches(keys):
                reaped += self._take_back(rule, batch)
            limit -= len(keys)
            if limit <= 0:
                break
        return Reaped(tuple(reaped), more=limit <= 0)

    def _take_back(self, rule: _Rule, keys: Sequence[tuple[Any, ...]]) -> list[ReapedJob]:
        locked = self._lock(rule, keys)
        refused: set[tuple[Any, ...]] = set()
        with self.mapping.counting(self.writer, [job.identity for job in locked if job.failed]):
            for failed in (False, True):
                changed = [job.identity for job in locked if job.failed is failed]
                if changed:
                    refused |= self._write(self._update(rule, failed=failed), changed)
        return [job for job in locked if job.identity not in refused]

    def _lock(self, rule: _Rule, keys: Sequence[tuple[Any, ...]]) -> list[ReapedJob]:
        """Lock those of the rows that the rule still names; pass over rows that others hold."""
        mapping, database = self.mapping, self.writer.database
        read = select(
            mapping.attribute("owner"),
            attempts_used_up(mapping),
            mapping.attribute("owner_date"),
            *mapping.key_attributes,
        ).where(key_is_in(mapping, _KEYS, database), *self._claimed, *rule.criteria)
        locking = locked_by_key(read, mapping, database, keep_references=True, skip_locked=True)
        found: Any = self.writer.orm(locking, {_KEYS: key_values(keys)})
        return [
            ReapedJob(tuple(key), owner, rule.reason, bool(failed), date and as_utc(date))
            for owner, failed, date, *key in found
        ]

    def _write(self, update: Any, keys: list[tuple[Any, ...]]) -> set[tuple[Any, ...]]:
        """Write to rows; return those that refuse it: a row costs no other row its reap."""
        connection = self.writer.connection
        connection.exec_driver_sql(f"SAVEPOINT {_SAVEPOINT}")
        try:
            written = self.writer.core(update, {_KEYS: key_values(keys)}).rowcount
        except DBAPIError as error:
            if not is_refusal(error) or is_mistake(error):
                raise
            reason = str(error.orig)
        else:
            if written == len(keys):
                return set()
            # Group Replication lets another member's transaction break our row locks.
            reason = "its lock was lost, and its claim has ended"
        connection.exec_driver_sql(f"ROLLBACK TO SAVEPOINT {_SAVEPOINT}")
        if len(keys) > 1:
            return set().union(*(self._write(update, [key]) for key in keys))
        log.warning("%s %r cannot be reaped: %s", self.mapping, keys[0], reason)
        return set(keys)

    def _update(self, rule: _Rule, *, failed: bool) -> Any:
        mapping = self.mapping
        # The rule is asked again: in Group Replication another member's transaction breaks our row
        # locks, and may have claimed the row since. The CASE makes InnoDB go by the primary key.
        claimed = status_is(mapping.column("status"), *self.spec.in_progress)
        is_claimed = case((and_(claimed, *rule.criteria), 1), else_=0) == 1
        named = key_is_in(mapping, _KEYS, self.writer.database)
        changed = self.writer.database.update_by_key(mapping.table, mapping.keys).where(
            named, is_claimed
        )
        values = reaped(mapping, self.spec.ready, rule.reason, failed=failed)
        return changed.ordered_values(*values.items())
