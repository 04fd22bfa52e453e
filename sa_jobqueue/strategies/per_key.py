"""per_key: at most so many claimed jobs of each serial key, enforced by the database.

::

    JobQueue(Email, serial_by=Email.account_id)

A claim has five steps: it looks which jobs are next and which of them their keys allow;
it locks those keys, waiting for none; it looks again, in a newer snapshot; it locks the
rows; it marks them. Nobody else can claim a job of a locked key until this transaction
has ended, and whoever locks the key after us sees what we have claimed.

Without the second look, two claimers that found two different heads of one key (since
a sooner job came in between) would claim both. Without the locks, two claimers that
look at the same time would both claim.

The index of a serial key holds status, key, attempts, and the claim order. So among the
ready jobs of a key those that were tried stand last, and the key's next job is its last
entry if that job was tried, else its first entry: two entries are read, however many
jobs wait. A job in its retry delay is looked at too: it is the next of its key, and
keeps the others waiting.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from itertools import chain, count, repeat
from typing import Any, TypeAlias

from sqlalchemy import (
    ColumnElement,
    Executable,
    Select,
    and_,
    case,
    exists,
    false,
    func,
    literal_column,
    or_,
    select,
)
from sqlalchemy.orm import InstrumentedAttribute, aliased
from sqlalchemy.sql import operators

from ..databases import Database
from ..errors import UnsupportedDatabase
from ..model.keys import columns_are_in, key_batches, key_values
from ..model.status import status_is
from ..sessions.writer import Writer
from .candidates import OVERDRAW
from .key_walk import BEFORE, NUMBER_1, KeyWalk, column_of
from .place import Placed, Start
from .ready_rows import LIMIT, adapted
from .spec import ClaimSpec, Request, Taken
from .strategy import check_sees_commits, check_transaction, kept

#: How many candidates a claim reads at first, at least.
WINDOW = 16

#: A claim walks from key to key, not from job to job, where a key has this many jobs.
JOBS_OF_A_KEY = 4

#: How often a claim looks again: after a job was no longer its key's next, or after others
#: were claiming from all keys that allow several jobs.
TRIES = 8
PAUSE = timedelta(milliseconds=10)

_WHAT = "serial_by= and limit_by="

LOCKS_KEYS = "{} lock keys until the claim's transaction ends"


class PerKey(Placed, KeyWalk):
    """Lock keys, look again, lock and mark rows."""

    name = "per_key"

    by_index = True  # MySQL walked over done rows without its claim index

    def __init__(self, spec: ClaimSpec, database: Database, *, indexed: bool = True) -> None:
        super().__init__(spec, database, indexed=indexed)
        assert spec.key_limit is not None
        self.limit = spec.key_limit

    @property
    def key(self) -> tuple[InstrumentedAttribute[Any], ...]:
        return self.limit.columns

    @classmethod
    def check_database(cls, database: Database) -> None:
        check_key_locks(database, _WHAT)

    def take(self, writer: Writer, request: Request) -> Taken:
        check_transaction(writer, LOCKS_KEYS.format(_WHAT))
        check_sees_commits(
            writer.sees_commits,
            f"{_WHAT} must see what was committed while they waited for a key",
        )
        writer.lock_writes(self.mapping.table)
        return super().take(writer, request)

    def take_from(self, writer: Writer, request: Request, start: Start) -> Taken:
        picker = CandidatePicker(self.limit.most, request.limit)
        lock = partial(self.database.lock_serial_keys, writer.connection)
        taken, tries = Taken([]), 0
        while tries < TRIES:
            picker.start()
            for found in self._found(writer, picker, start):
                if picker.take(found, lock):  # as many keys as jobs are wanted, in claim order
                    break
            fitting = picker.still_fitting(self._allowed(writer, picker.taken))
            rest = replace(request, limit=picker.limit)
            locked, held = self.lock_candidates(writer, rest, fitting)
            if locked:
                part = self.mark(writer, request, locked)
                taken.jobs = [*taken.jobs, *part.jobs]
                taken.dates = [*taken.dates, *part.dates]
                picker.limit -= len(locked)
            if held:
                # Others have locked these rows, for whatever reason: go on behind them.
                picker.skipped.update(fitting)
            elif locked or start or not (picker.taken or picker.may_soon_allow):
                break
            else:
                tries += 1
                if not picker.taken:  # others are claiming from these keys
                    writer.database.pause(writer.connection, PAUSE * random.random())
            if not picker.limit:
                break
        taken.candidates, taken.first = picker.tried, picker.first
        taken.lost = max(0, picker.tried - len(taken.jobs))
        return taken

    def statements(self, *, from_head: bool = False) -> list[Executable]:
        lock, allowed = self.database.serial_key_statement(), self.allowed()
        locks = [] if lock is None else [lock, allowed]
        levels = self.ready.level_statements
        return [*levels, self.look(), allowed, *locks, self.lock_by_keys(), self.mark_by_keys()]

    # -- which jobs are next --------------------------------------------

    def _found(
        self, writer: Writer, picker: CandidatePicker, start: Start
    ) -> Iterator[list[Candidate]]:
        """Yield jobs that their keys allow, in claim order, until all are looked at.

        It begins with the jobs at the head of the queue; from a place, it looks at no others.
        Where a few keys have most of them, it goes on from key to key: then a taken key is
        passed over with all its jobs. Else the database passes over the jobs whose keys are
        taken: an idle claim that read the jobs of 300,000 taken keys took 5 seconds and 200 MB.
        """
        looks = chain([self.look(from_place=bool(start))], repeat(self._look_for_free_keys()))

        def draw(size: int) -> list[Any]:
            return self.draw(writer, size, next(looks), start)

        seen: Counter[Any] = Counter()
        for drawn, more in self.draws(max(WINDOW, picker.limit * OVERDRAW), draw):
            jobs = self._candidates(drawn)
            if picker.first is None and jobs:
                picker.first = jobs[0].order
            yield self._allowed(writer, self._first_of_keys(jobs, seen))
            if start or not more:
                return
            few_keys = len(seen) * JOBS_OF_A_KEY <= seen.total()
            # Hooks add criteria to jobs alone, and the walk reads keys.
            if few_keys and self.walks_keys and not writer.hooked:
                yield from self._from_key_to_key(writer, picker)
                return

    @kept
    def _look_for_free_keys(self) -> Any:
        """Read the next candidates, without those whose keys are taken."""
        return self.look().where(self._is_free(self.mapping.entity))

    def _from_key_to_key(
        self, writer: Writer, picker: CandidatePicker
    ) -> Iterator[list[Candidate]]:
        """Yield the first job of each key, then the second, while keys allow one more."""
        for before in count():
            jobs = self._allowed(writer, self._of_each_key(writer, picker.limit, before))
            yield jobs
            if self.limit.most == 1 or not any(map(picker.has_room, jobs)):
                return

    def _of_each_key(self, writer: Writer, limit: int, before: int) -> list[Candidate]:
        """Walk from key to key by the index; read one job of each, in claim order.

        Args:
            before: how many jobs of its key come before that job.
        """
        heads = [tuple(head) for head in writer.rows(self.heads_of_keys(), {BEFORE: before})]
        if not before and self.nullable:
            unkeyed = writer.rows(self.unkeyed(), {"sa_jobqueue_limit": limit})
            heads += [tuple(key) for key in unkeyed]
        ranked: list[Candidate] = []
        for batch in key_batches([head for head in heads if head[0] is not None]):
            keys = {"sa_jobqueue_keys": key_values(batch)}
            ranked += self._candidates(writer.rows(self.rank(), keys))
        return ranked

    def _candidates(self, rows: Iterable[Any]) -> list[Candidate]:
        width = len(self.mapping.keys)
        found = []
        for row in rows:
            key, (lock, tried, *order) = tuple(row[:width]), row[width:]
            found.append(Candidate(key, lock, bool(tried), (*order, *key)))
        return found

    def _first_of_keys(self, drawn: Sequence[Candidate], seen: Counter[Any]) -> list[Candidate]:
        """Leave out jobs behind as many others of their key as it allows."""
        first = []
        for job in drawn:
            # A job that was tried may be its key's next all the same.
            if job.lock is None or job.tried or seen[job.lock] < self.limit.most:
                first.append(job)
            if job.lock is not None:
                seen[job.lock] += 1
        return first

    def _allowed(self, writer: Writer, candidates: Sequence[Candidate]) -> list[Candidate]:
        """Return the candidates that are ready, and allowed by their keys, as committed now."""
        width = len(self.mapping.keys)
        claimed: dict[Key, int] = {}
        for batch in key_batches([job.key for job in candidates]):
            for row in writer.rows(self.allowed(), {"sa_jobqueue_keys": key_values(batch)}):
                claimed[tuple(row[:width])] = row[width]
        return [replace(job, claimed=claimed[job.key]) for job in candidates if job.key in claimed]

    # -- statements: candidates -----------------------------------------

    def candidate_columns(self) -> list[Any]:
        """What is read of a candidate: primary key, lock, whether it was tried, its order."""
        name = self.database.serial_key(self.mapping.table, self.key).label("sa_jobqueue_token")
        tried = self.mapping.attribute("attempts") > 0 if self.mapping.has("attempts") else false()
        order = map(self.mapping.attribute, self.mapping.order_roles)
        return [*self.mapping.key_attributes, name, tried.label("sa_jobqueue_tried"), *order]

    @kept
    def rank(self) -> Any:
        """Read some candidates by primary key, in claim order."""
        by_key = select(*self.candidate_columns()).where(self.ready.key_is_in("sa_jobqueue_keys"))
        return by_key.order_by(*self.spec.order)

    # -- what keys allow ------------------------------------------------

    @kept
    def allowed(self) -> Any:
        """Select the jobs, of those given, that are ready and that all their keys allow.

        With them comes the number of claimed jobs of each key, where it may be more than
        one. The jobs in question are an alias, so that the sub-selects are of the class
        itself: criteria of the session's hooks join the sub-selects.
        """
        job: Any = aliased(self.mapping.entity, name="sa_jobqueue_job")
        keys = [getattr(job, key.key) for key in self.mapping.key_attributes]
        same = [mine == key for mine, key in zip(self.mapping.key_attributes, keys, strict=True)]
        # Counted, and so looked up by the key: of EXISTS planners may make a join that reads all
        # ready jobs.
        ready = select(func.count()).where(*same, *self.ready.criteria).correlate(job)
        heads = [self._is_head(job, keys)] if self.limit.serial else []
        return select(*keys, self._count(job)).where(
            columns_are_in(keys, "sa_jobqueue_keys", self.database),
            ready.scalar_subquery() > 0,
            self._is_free(job),
            *heads,
        )

    def _count(self, job: Any) -> ColumnElement[int]:
        return literal_column("0") if self.limit.most == 1 else self._claimed(job).scalar_subquery()

    def _is_free(self, job: Any) -> ColumnElement[bool]:
        if self.limit.most == 1:
            return ~exists(self._claimed(job).with_only_columns(NUMBER_1))
        return self._count(job) < self.limit.most

    def _claimed(self, job: Any) -> Select[Any]:
        """Select the claimed jobs of a job's key.

        Without the queue's criteria: a row may not fulfil them any more since it was claimed.
        Only criteria of columns that lead the claim index are kept: these tell the queues
        of one table apart.
        """
        table = self.mapping.table.alias("sa_jobqueue_claimed")
        equalities = [adapted(criterion, table) for criterion in self.spec.equalities]
        same = [
            table.c[column_of(attribute).key] == getattr(job, attribute.key)
            for attribute in self.key
        ]
        status = table.c[self.mapping.column("status").key]
        found = select(func.count()).select_from(table)
        return found.where(status_is(status, *self.spec.in_progress), *equalities, *same).correlate(
            job
        )

    # -- the head of a key ----------------------------------------------

    def _is_head(self, job: Any, keys: Sequence[Any]) -> ColumnElement[bool]:
        """Compare a job with the next job of its key, if it has a key."""
        same = [mine == getattr(job, mine.key) for mine in self.key]
        heads = [self._head(mine, same, job) for mine in self.mapping.key_attributes]
        no_key = [getattr(job, attribute.key).is_(None) for attribute in self.nullable]
        return or_(*no_key, and_(*(head == key for head, key in zip(heads, keys, strict=True))))

    def _head(self, key: Any, same: Sequence[Any], of: Any) -> ColumnElement[Any]:
        """Select a column of the primary key of a serial key's next job."""
        first: ColumnElement[Any]
        found = self.in_key([key], same, behind=self.limit.most > 1).limit(NUMBER_1)
        first = found.correlate(of).scalar_subquery()
        if not self.limit.serial or not self.mapping.has("attempts"):
            return first
        tried = self._tried(key, same).correlate(of).scalar_subquery()
        either: ColumnElement[Any] = func.coalesce(tried, first)
        return either

    def _tried(self, key: Any, same: Sequence[Any]) -> Any:
        """Select the last job of a key, if it was tried; only one entry of the index is read."""
        found = (
            select(case((self.mapping.attribute("attempts") > 0, key)))
            .where(self.ready.has_status, *self.spec.where, *same)
            .order_by(*map(_reversed, self.order_in_key))
            .limit(NUMBER_1)
        )
        return self.by_key_index(found)

    # -- from key to key ------------------------------------------------

    @property
    def walks_keys(self) -> bool:
        """Whether an index can walk over the keys that have ready jobs."""
        served = not self.spec.order_by and len(self.spec.equalities) == len(self.mapping.equality)
        return served and self.index is not None

    @kept
    def heads_of_keys(self) -> Any:
        """Select the primary key of the next job of every serial key that has ready jobs.

        Where a key allows several jobs, that of the one behind so many others of its key.
        """
        keys = self.each_key()
        own = [keys.c[column_of(mine).key] for mine in self.key]
        same = [mine == key for mine, key in zip(self.key, own, strict=True)]
        heads = [self._head(mine, same, keys) for mine in self.mapping.key_attributes]
        return select(*heads).select_from(keys).where(own[0].is_not(None))

    @kept
    def unkeyed(self) -> Any:
        """Select the primary keys of ready jobs without a serial key."""
        keys = self.mapping.key_attributes
        return self.in_key(keys, [self.has_no_key], behind=False).limit(LIMIT)


def check_key_locks(database: Database, what: str) -> None:
    """Refuse a database that does not lock keys.

    Args:
        what: the options of a queue that need it, for the message.

    Raises:
        UnsupportedDatabase: it cannot keep limits of keys.
    """
    if not database.locks_keys or not (database.skip_locked or database.one_writer):
        raise UnsupportedDatabase(
            f"{database} cannot keep {what}: it cannot lock keys, or has no "
            "SELECT .. FOR UPDATE SKIP LOCKED (MySQL 8.0.1, MariaDB 10.6). Upgrade the server, "
            f"or leave {what} out"
        )


def _reversed(element: Any) -> Any:
    """Return an ORDER BY element in the opposite direction."""
    clause = element.__clause_element__() if hasattr(element, "__clause_element__") else element
    if getattr(clause, "modifier", None) is operators.desc_op:
        return clause.element.asc()
    return clause.desc()


# -- which candidates a claim takes, so that no serial key gets more jobs than it allows
#
# The bookkeeping, without a database.

Key: TypeAlias = "tuple[Any, ...]"


@dataclass(frozen=True)
class Candidate:
    """A job that may be the next of its serial key.

    Attributes:
        key: its primary key.
        lock: the name of the lock of its serial key; None: it has no key.
        tried: whether it was claimed before.
        order: its place in the claim order.
        claimed: how many jobs of the serial key are claimed.
    """

    key: Key
    lock: Any
    tried: bool
    order: tuple[Any, ...]
    claimed: int = 0


@dataclass
class CandidatePicker:
    """Picks candidates as long as their keys allow, and remembers which keys it got.

    Attributes:
        most: how many jobs of a key may be claimed.
        limit: how many jobs are wanted.
        taken: the candidates whose keys are locked for us.
        busy: the keys that others have locked.
        skipped: the primary keys of jobs that are not tried again.
        tried: for how many candidates keys were asked for.
        first: the place of the first candidate of all, whether its key allows it or not.
    """

    most: int
    limit: int
    taken: list[Candidate] = field(default_factory=list)
    busy: set[Any] = field(default_factory=set)
    skipped: set[Key] = field(default_factory=set)
    tried: int = 0
    first: tuple[Any, ...] | None = None
    _counted: Counter[Any] = field(default_factory=Counter)

    def start(self) -> None:
        """Begin another try: forget what is taken and busy."""
        self.taken, self.busy, self._counted = [], set(), Counter()

    @property
    def may_soon_allow(self) -> bool:
        """Whether a busy key allows several jobs: those who claim from it may leave some."""
        return self.most > 1 and bool(self.busy)

    def take(self, found: Sequence[Candidate], lock: Callable[[set[Any]], set[Any]]) -> bool:
        """Take candidates whose keys can be locked; tell whether as many are taken as are wanted.

        Args:
            lock: locks keys by their names, and returns those that it got.
        """
        waiting = deque(found)
        while picked := self._pick(waiting):
            names = {job.lock for job in picked} - {None}
            refused = names - lock(names) if names else names
            self.busy |= refused
            self.taken += [job for job in picked if job.lock not in refused]
        return len(self.taken) >= self.limit

    def _pick(self, waiting: deque[Candidate]) -> list[Candidate]:
        """Pick as many candidates as are still wanted, from the left of `waiting`."""
        taken = {job.key for job in self.taken}  # the first job of a key may come twice
        picked: list[Candidate] = []
        while waiting and len(self.taken) + len(picked) < self.limit:
            job = waiting.popleft()
            if job.key not in taken:
                picked += self._fitting([job])
        self.tried += len(picked)
        return picked

    def still_fitting(self, allowed: Sequence[Candidate]) -> list[Key]:
        """Return the primary keys of those candidates that fit what is claimed now.

        Their keys are locked for us, so the numbers of claimed jobs cannot change any more.
        """
        self._counted = Counter()
        return [job.key for job in self._fitting(allowed)]

    def _fitting(self, jobs: Sequence[Candidate]) -> list[Candidate]:
        fitting = []
        for job in jobs:
            if job.key not in self.skipped and self.has_room(job):
                self._counted[job.lock] += 1
                fitting.append(job)
        return fitting

    def has_room(self, job: Candidate) -> bool:
        """Tell whether the key of a job allows one more."""
        return job.lock is None or (
            job.lock not in self.busy and job.claimed + self._counted[job.lock] < self.most
        )
