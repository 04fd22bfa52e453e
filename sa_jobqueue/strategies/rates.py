"""Rates: a claim takes as many jobs as the buckets of its queue have tokens.

::

    JobQueue(Email, rate=Rate(10, per=timedelta(seconds=1)), rate_by=Email.customer_id)

A claim looks which jobs are next; it locks the rows of their buckets, waiting for none; it locks
as many jobs as these have tokens, and marks them; and it writes when each bucket will be full
again. So a rollback gives the tokens back, and nobody else takes tokens of these buckets until this
transaction has ended.

An empty bucket is not locked. With `rate_by`, the look passes over all jobs whose bucket is empty,
so the jobs of other keys are found behind any number of them.
"""

from __future__ import annotations

import hashlib
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Executable,
    Integer,
    String,
    and_,
    bindparam,
    cast,
    func,
    literal,
    or_,
    select,
    update,
)

from ..databases import Database
from ..databases.clock import EPOCH, as_utc, utc_now
from ..errors import ArgumentError
from ..fence.token import Identity
from ..model.mapping import QueueMapping
from ..model.status import UNCLAIMED
from ..rates import Rate, rate_table_of
from ..sessions.transactions import missing_tables_named
from ..sessions.writer import Writer
from .candidates import OVERDRAW, ByCandidates
from .per_key import LOCKS_KEYS, WINDOW, check_key_locks
from .spec import ClaimSpec, Request, Taken, key_columns
from .strategy import Locked, check_transaction, kept

_WHAT = "rate= and rate_by="

#: The bucket of a queue without `rate_by`.
WHOLE = "-"

#: By how much a claim may see the clock of another claim ahead, that was made meanwhile.
LATE = timedelta(seconds=1)

#: No bucket has this key. Beside it InnoDB leaves no lock on a row that fails the other criteria.
_NOBODY = "."

_KEYS, _PASSED, _THEN = "sa_jobqueue_buckets", "sa_jobqueue_passed", "sa_jobqueue_then"


def checked_rate(
    mapping: QueueMapping, rate: Any, rate_by: Any, ready: str
) -> tuple[Rate, tuple[Any, ...]]:
    """Read the arguments of a queue: its rate, with a name, and the attributes of its keys.

    Args:
        ready: the status that the queue claims from, in the table's words.

    Raises:
        ArgumentError: an argument is wrong.
    """
    if not isinstance(rate, Rate):
        raise ArgumentError(
            f"rate= takes a Rate, as in Rate(10, per=timedelta(seconds=1)), not {rate!r}"
        )
    rate_table_of(mapping)
    table = mapping.table.fullname
    usual = table if ready == mapping.word(UNCLAIMED) else f"{table}/{ready}"
    by = () if rate_by is None else key_columns(mapping, "rate_by", rate_by)
    return replace(rate, name=rate.name or usual), by


@dataclass
class Bucket:
    """A bucket, as a claim has locked it.

    Attributes:
        full_at: when it will be full without this claim.
        tokens: how many it had; 0: it is empty, or somebody else has locked it.
        is_late: its row tells a later time, which this rate does not lead to.
        left: how many of these are left.
    """

    full_at: datetime
    tokens: int
    is_late: bool = False

    def __post_init__(self) -> None:
        self.left = self.tokens


class Buckets:
    """The buckets of one queue on one database."""

    def __init__(self, spec: ClaimSpec, database: Database) -> None:
        assert spec.rate is not None
        self.rate = rate = spec.rate
        self.database = database
        self.table = table = rate_table_of(spec.mapping)
        ours, is_named = table.c.rate == rate.name, bindparam(_KEYS, type_=String, expanding=True)
        microsecond, now = timedelta(microseconds=1), utc_now().label("now")
        # Another rate has written a time that is further away, or the clock was set back.
        is_ours = table.c.full_at <= utc_now((rate.cost(rate.burst) + LATE) // microsecond)
        is_empty = and_(table.c.full_at > utc_now(rate.room // microsecond), is_ours)
        #: Selects the keys of buckets without tokens.
        self.empty = select(table.c.bucket).where(ours, is_empty)
        self._known = select(table.c.bucket).where(ours, table.c.bucket.in_(is_named))
        self.lock_next = self._known.add_columns(table.c.full_at, now).where(~is_empty)
        self.lock_next = self.lock_next.with_for_update(
            skip_locked=database.skip_locked, key_share=database.no_key_update
        )
        self._insert = database.insert_new(table)
        self._identity = select(database.table_identity(table))  # the server's locks know no schema
        key = bindparam("sa_jobqueue_bucket", type_=String)
        full_at = bindparam("sa_jobqueue_full_at", type_=table.c.full_at.type)
        self.write = update(table).where(ours, table.c.bucket == key).values(full_at=full_at)
        first = func.min(table.c.full_at).label("full_at")
        was_empty = table.c.full_at > utc_now(bindparam(_THEN, type_=BigInteger))
        self._first_to_refill = select(first, now).where(ours, was_empty, is_ours)
        # The locks of keys have numbers as names, or texts.
        is_number = isinstance(database.serial_key(table, [table.c.rate]).type, Integer)
        self._name_type: type[Any] = int if is_number else str

    def lock(self, writer: Writer, keys: set[str]) -> dict[str, Bucket]:
        """Lock those buckets that have tokens and that nobody has locked; return all."""
        found = self._locked(writer, keys)
        if others := keys - found.keys():
            found.update(self._locked(writer, self._new(writer, others)))
        return {key: found.get(key) or Bucket(EPOCH, 0) for key in keys}

    def charge(self, writer: Writer, buckets: dict[str, Bucket]) -> None:
        """Write when the buckets will be full again, and so take the tokens."""
        rows = [
            {
                "sa_jobqueue_bucket": key,
                "sa_jobqueue_full_at": bucket.full_at + self.rate.cost(bucket.tokens - bucket.left),
            }
            for key, bucket in buckets.items()
            if bucket.left < bucket.tokens or bucket.is_late
        ]
        if rows:
            writer.core(self.write, rows)

    def refills_in(
        self, writer: Writer, buckets: dict[str, Bucket], began: float
    ) -> timedelta | None:
        """Return when a bucket without tokens has one again; None: there is none.

        Args:
            buckets: those of this claim: others may have locked them.
            began: when the claim began, by time.monotonic(); a bucket may have got a token since
                the claim passed over its jobs.
        """
        then = self.rate.room - timedelta(seconds=time.monotonic() - began)
        first: Any = writer.core(
            self._first_to_refill, {_THEN: then // timedelta(microseconds=1)}
        ).one()
        waits = [self.rate.cost(1)] if any(not bucket.left for bucket in buckets.values()) else []
        if first.full_at is not None:
            wait = as_utc(first.full_at) - as_utc(first.now) - self.rate.room
            waits.append(max(wait, timedelta(0)))
        return min(waits, default=None)

    def _locked(self, writer: Writer, keys: set[str]) -> dict[str, Bucket]:
        if not keys:
            return {}
        rows: Any = writer.core(self.lock_next, {_KEYS: sorted((*keys, _NOBODY))}).all()
        times = {row.bucket: (as_utc(row.full_at), as_utc(row.now)) for row in rows}
        buckets, filling = {}, self.rate.cost(self.rate.burst)
        for key, (full_at, now) in times.items():
            is_late = full_at - now > filling + LATE
            full_at = now + filling if is_late else max(full_at, now)
            buckets[key] = Bucket(full_at, self.rate.tokens(full_at - now), is_late)
        return buckets

    def _new(self, writer: Writer, keys: set[str]) -> set[str]:
        """Insert the rows of buckets that have none; return their keys."""
        absent = self._without_row(writer, keys)
        if not absent:
            return absent
        # Of two claims that insert the same row one would wait, so it is for who has its lock.
        within = writer.core(self._identity).scalar()
        names = {self._lock_name(f"{within}/{self.rate.name}/{key}"): key for key in absent}
        ours = {names[name] for name in self.database.lock_serial_keys(writer.connection, names)}
        new = self._without_row(writer, ours) if ours else ours  # others may have inserted it
        if new:
            row = {"rate": self.rate.name, "full_at": EPOCH}
            writer.core(self._insert, [{**row, "bucket": key} for key in sorted(new)])
        return new

    def _without_row(self, writer: Writer, keys: set[str]) -> set[str]:
        return keys - set(writer.core(self._known, {_KEYS: list(keys)}).scalars())

    def _lock_name(self, text: str) -> Any:
        hashed = hashlib.sha256(text.encode()).digest()
        return self._name_type(int.from_bytes(hashed[:8], "big", signed=True))


class Rated(ByCandidates):
    """Read candidates whose buckets have tokens, lock buckets, lock and mark rows."""

    # A job whose key changes between the look and the lock takes a token of the key that it had.

    name = "rated"

    by_index = True

    @classmethod
    def check_database(cls, database: Database) -> None:
        check_key_locks(database, _WHAT)

    def __init__(self, spec: ClaimSpec, database: Database, *, indexed: bool = True) -> None:
        super().__init__(spec, database, indexed=indexed)
        self._buckets = Buckets(spec, database)

    def take(self, writer: Writer, request: Request) -> Taken:
        check_transaction(writer, LOCKS_KEYS.format(_WHAT))
        writer.lock_writes(self.mapping.table)
        buckets: dict[str, Bucket] = {}
        most, began = request.limit, time.monotonic()
        with missing_tables_named(lambda: [self._buckets.table]):
            if not self.spec.rate_by:
                buckets = self._buckets.lock(writer, {WHOLE})
                most = min(most, buckets[WHOLE].tokens)
            locked = self._lock_next(writer, request, most, buckets) if most else []
            self._buckets.charge(writer, buckets)
            short = len(locked) < request.limit
            waits = self._buckets.refills_in(writer, buckets, began) if short else None
        taken = self.mark(writer, request, locked)
        taken.refills_in = waits
        return taken

    def statements(self, *, from_head: bool = False) -> list[Executable]:
        levels = self.ready.level_statements
        marks = [self.lock_by_keys(), self._buckets.write, self.mark_by_keys()]
        return [*levels, self.look_with_tokens(), self._buckets.lock_next, *marks]

    def _lock_next(
        self, writer: Writer, request: Request, most: int, buckets: dict[str, Bucket]
    ) -> list[Locked]:
        """Lock the next jobs whose buckets have tokens; lock no more buckets than these may need.

        Args:
            buckets: those that are locked already; more are added.
        """
        look, locked = self.look_with_tokens(), list[Locked]()

        def draw(size: int) -> list[Any]:
            passed: dict[str, Any] = {
                _PASSED: [key for key, bucket in buckets.items() if not bucket.left]
            }
            return self.draw(writer, size, look, **passed)

        for drawn, _ in self.draws(max(WINDOW, most * OVERDRAW), draw):
            waiting = deque((tuple(row[:-1]), row[-1]) for row in drawn)
            while waiting and (wanted := most - len(locked)):
                some = [waiting.popleft() for _ in range(min(wanted, len(waiting)))]
                new = {key for _, key in some if key is not None} - buckets.keys()
                buckets.update(self._buckets.lock(writer, new))
                ours, untried = self._lock(writer, request, some, buckets)
                locked += ours
                waiting.extendleft(reversed(untried))
            if len(locked) == most:
                break
        return locked

    def _lock(
        self,
        writer: Writer,
        request: Request,
        jobs: Sequence[tuple[Identity, str | None]],
        buckets: dict[str, Bucket],
    ) -> tuple[list[Locked], list[tuple[Identity, str | None]]]:
        """Lock the jobs whose buckets have tokens, and take a token for each that is ours.

        Returns:
            What was locked; and the jobs for which tokens are left after all, since others have
            locked jobs before them.
        """
        without_rate = Bucket(EPOCH, len(jobs))
        picked: dict[Identity, Bucket] = {}
        for identity, key in jobs:
            bucket = without_rate if key is None else buckets[key]
            if bucket.left:
                bucket.left -= 1
                picked[identity] = bucket
        locked = self.lock_keys(writer, request, [*picked]) if picked else []
        for identity in picked.keys() - set(self.keys_locked(request, locked)):
            picked[identity].left += 1
        untried = [job for job in jobs if job[0] not in picked]  # each has a key
        return locked, [job for job in untried if buckets[job[1] or WHOLE].left]

    # -- candidates -----------------------------------------------------

    def candidate_columns(self) -> list[Any]:
        """What is read of a candidate: its primary key, and its bucket or NULL."""
        return [*self.mapping.key_attributes, self._bucket.label("sa_jobqueue_bucket")]

    @property
    def _bucket(self) -> ColumnElement[Any]:
        """The text that stands for a job's key; NULL where one of its columns is NULL."""
        if not self.spec.rate_by:
            return literal(WHOLE, String)
        token = self.database.serial_key(self.mapping.table, self.spec.rate_by)
        return cast(token, String) if isinstance(token.type, Integer) else token

    @kept
    def look_with_tokens(self) -> Any:
        """Read the next candidates, without those whose buckets are empty, or passed over."""
        if not self.spec.rate_by:
            return self.look()
        passed = bindparam(_PASSED, type_=String, expanding=True)
        bucket = self._bucket
        # Not EXISTS: the list of all empty buckets is read once, and not for each job.
        has_tokens = and_(bucket.not_in(self._buckets.empty), bucket.not_in(passed))
        return self.look().where(or_(bucket.is_(None), has_tokens))
