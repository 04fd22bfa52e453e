"""Chores: what a worker does at intervals, beside its jobs.

The supervisor reaps the claims of dead owners, and expired claims. If the metadata has tables of
control, of groups or of schedules, it looks what others want of the worker, tells that it is there,
corrects the counts of groups, and inserts the jobs of schedules that are due. A chore may fail:
that is logged, and never ends the worker.

The job of a long handler, and a job that waits behind others, keep their claims beyond the lease.
Three times in a lease, a thread renews the claims in hand: the heartbeat. It opens a new connection
for each renewal, and renews by fences: the entities belong to the handlers. An AsyncWorker's
heartbeat is a task.

A renewal does not wait for locked rows: it would hold up all other claims. A transactional handler
or the application may lock a row for long. Nobody reaps a claim whose row is locked: the lock
replaces the lease. The claim is renewed when the row is free again.
"""

from __future__ import annotations

import logging
import math
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from datetime import timedelta
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar

from sqlalchemy import ColumnElement, Connection, MetaData, not_, or_, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from ..ages import duration_text
from ..databases import is_refusal, is_transient
from ..databases.clock import utc_now
from ..errors import MissingTable
from ..events.event import called_on
from ..fence.claim import jobs_by_token
from ..fence.token import Change, Fence, LetGo
from ..fence.write import note_lost
from ..model.keys import CONTROL, SCHEDULES
from ..model.mapping import GROUPS, QueueMapping
from ..model.status import CANCELLED, DONE, JobStatus
from ..process import Flag
from ..sessions.transactions import connected, connected_outside_pool, run_in_transaction
from ..sessions.writer import writing
from ..verbs.manage import PRUNE_LIMIT, cancel_expired, prune_jobs
from ..verbs.reap import REAP_LIMIT, ReapReason
from .crew import Crew, Loop
from .in_hand import Ended, InHand, lock_free_rows, log_lost, several
from .lanes import NOT_YET, Lane, claims_lost_by
from .passed_over import MOST, Key, is_one_of
from .transactions import cause_of

if TYPE_CHECKING:
    from ..control import ControlTables
    from ..queue import JobQueue
    from ..schedules import Schedules

log = logging.getLogger("sa_jobqueue.worker")

#: The pause between two reaps of a worker, give or take a fifth.
REAP_EVERY = timedelta(seconds=10)

#: The pause between two prunes of a worker, give or take a fifth.
PRUNE_EVERY = timedelta(minutes=1)

#: For how long a worker leaves rows alone that the database has refused to delete.
PRUNE_ALL_EVERY = timedelta(hours=1)

#: Renewals in one lease: two of them may fail.
BEATS_PER_LEASE = 3

#: How long a finish waits for a renewal that is under way, in seconds: a renewal that hangs must
#: not block the finish for ever.
LONGEST_RENEWAL = 30.0

#: The pause before a chore that has failed is tried again, in seconds.
SOON = 1.0

#: The pauses between two looks at pauses and stop requests, and for due schedules.
LOOK_AT_CONTROL_EVERY = timedelta(milliseconds=800)
LOOK_AT_SCHEDULES_EVERY = timedelta(seconds=10)

#: The pause between two counts of groups.
COUNT_GROUPS_EVERY = timedelta(minutes=5)

#: The pause between two looks while the tables of control are not there yet.
LOOK_AGAIN = timedelta(seconds=10)

#: The shortest pause between two writes of the worker's row, while its number of jobs changes; else
#: it is written once in a minute.
TELL_EVERY = timedelta(seconds=10)
TELL_AT_LEAST = timedelta(minutes=1)

#: Workers look for a tick at random within this time: the first runs it, the others find it done.
SPREAD = timedelta(milliseconds=50)


def chores_beside(crew: Crew, loop: Loop) -> Iterator[Chore]:
    """Make the chores of a loop's queues: some need tables in their metadata."""
    if any(lane.queue.mapping.args.keep_for is not None for lane in loop.turns.lanes):
        yield Pruner(crew, loop, loop.turns.lanes)
    by_metadata: dict[MetaData, list[Lane[Any]]] = {}
    for lane in loop.turns.lanes:
        by_metadata.setdefault(lane.queue.mapping.table.metadata, []).append(lane)
    # Loaded by the first call of every(): without it nobody declares schedules.
    declared = sys.modules.get("sa_jobqueue.schedules.declared")
    for metadata, lanes in by_metadata.items():
        if (tables := metadata.info.get(CONTROL)) is not None:
            yield Control(crew, loop, lanes, tables)
        if GROUPS in metadata.info:
            yield Recounter(crew, loop, lanes)
        if (schedules := metadata.info.get(SCHEDULES)) is not None:
            yield Scheduler(crew, loop, lanes, schedules)
            continue
        for lane in lanes:
            if declared and declared.declared_for([lane.queue]):
                log.warning(
                    "%r declares schedules, but no worker runs them: make Schedules(metadata) with "
                    "the metadata of its table",
                    lane.queue,
                )


class Chore:
    """Work that is due now and then, in the supervisor's thread.

    Its parts are tried again and again: an error is logged when it comes, not always.

    Attributes:
        lanes: for whose queues it is done.
        tables: those that it needs.
        without: what the worker goes on without while they are missing, for the log.
        due_at: when it is due, by time.monotonic(); infinity: never.
    """

    without: ClassVar[str]
    due_at = 0.0

    def __init__(
        self, crew: Crew, loop: Loop, lanes: Sequence[Lane[Any]], tables: Any = None
    ) -> None:
        self.crew, self.loop, self.lanes, self.tables = crew, loop, lanes, tables
        self.queues = [lane.queue for lane in lanes]
        self.transactions = loop.turns.transactions
        self.engine = self.transactions.engine
        self._logged: dict[str, type[Exception]] = {}  # the error of each part

    def begin(self, stack: ExitStack) -> None:
        """Do what comes before the first claim; the stack ends with the run."""

    def run(self) -> None:
        """Do the chore, and set when it is due again."""
        raise NotImplementedError

    def due_in(self, pause: timedelta) -> None:
        """Have it done again after a pause, give or take a fifth."""
        self.due_at = time.monotonic() + pause.total_seconds() * random.uniform(0.8, 1.2)

    def attempt(self, part: str, work: Callable[[], object]) -> bool:
        """Call `work`, which is named `part` in the log; tell whether it succeeded."""
        try:
            work()
        except MissingTable as error:  # it says the way out; a traceback adds nothing
            if MissingTable not in self._logged.values():
                log.warning("the worker goes on without %s: %s", self.without, error)
            self._logged[part] = MissingTable
        except Exception as error:
            text = "%s failed; the worker tries again: %s"
            if self.transactions.is_temporary(error):
                log.info(text, part, cause_of(error))
            elif self._logged.get(part) is not type(error):
                self._logged[part] = type(error)
                log.error(text, part, cause_of(error), exc_info=error)
        else:
            self._logged.pop(part, None)
            return True
        return False


class Reaper(Chore):
    """Reap in transactions of its own; each job gets the `ready` status of its queue."""

    without = "reaps"

    def begin(self, stack: ExitStack) -> None:
        """Reap once before the first claim."""
        self.run()

    def run(self) -> None:
        """Reap claims, unless the worker never does."""
        self.due_at, every = math.inf, self.crew.worker.reap_every
        if every is not None:
            self.due_in(every)
            self.attempt("a reap", lambda: self.transactions.run_once(self._reap))
            if any(queue.mapping.has("expires_at") for queue in self.queues):
                self.attempt("an expiry", lambda: self.transactions.run_once(self._expire))
            for queue in self.queues:
                if queue.plan.spec.rate is not None:
                    from ..rates import prune_rates

                    prune = partial(prune_rates, queue=queue)
                    self.attempt("a pruning of rates", partial(self.transactions.run_once, prune))

    def _reap(self, session: Session) -> None:
        longest = self.crew.worker.max_runtime
        parts = [queue.reap(session, max_runtime=longest) for queue in self.queues]
        reaped = [job for part in parts for job in part.jobs]
        dead = {job.owner for job in reaped if job.reason is ReapReason.DEAD_OWNER}
        if any(
            str(job.fence.owner) in dead for job in self.crew.claimed(self.loop)
        ):  # our lock was cut
            session.rollback()
            self.due_at = time.monotonic() + SOON
            return
        if not reaped:  # nothing was written, so there is nothing to commit
            session.rollback()
        if any(part.more for part in parts):
            self.due_at = time.monotonic()

    def _expire(self, session: Session) -> None:
        for queue in self.queues:
            if queue.mapping.has("expires_at"):
                with called_on(queue):
                    count = cancel_expired(session, queue.mapping, queue.ready, REAP_LIMIT)
                if count:
                    log.info("%d of %s have expired", count, queue.mapping)
                if count == REAP_LIMIT:
                    self.due_at = time.monotonic()


class Pruner(Chore):
    """Delete rows that are done or cancelled for as long as their class keeps them.

    A row that the database does not delete, since others refer to it, holds up nothing.
    """

    without = "prunes"
    _refused: dict[QueueMapping, list[Key]]
    _tries_all_at = -math.inf  # also the refused

    def run(self) -> None:
        """Delete a bounded batch of each class; soon the next one, if there may be more."""
        self.due_in(PRUNE_EVERY)
        if self._tries_all_at <= time.monotonic():
            self._tries_all_at = time.monotonic() + PRUNE_ALL_EVERY.total_seconds()
            self._refused = {}
        for mapping in {queue.mapping for queue in self.queues}:
            if mapping.args.keep_for is not None:
                prune = partial(self._prune, mapping=mapping, age=mapping.args.keep_for)
                self.attempt(f"a prune of {mapping}", partial(self.transactions.run_once, prune))

    def _prune(self, session: Session, mapping: QueueMapping, age: timedelta) -> None:
        refused, words = self._refused.setdefault(mapping, []), (DONE, CANCELLED)
        others = [not_(is_one_of(mapping, refused))] if refused else []

        def delete(where: Sequence[ColumnElement[bool]]) -> int:
            with session.begin_nested():
                return prune_jobs(session, mapping, age, words, PRUNE_LIMIT, where)

        def delete_each(keys: Sequence[Key]) -> int:
            try:
                return delete([is_one_of(mapping, keys)])
            except DBAPIError as error:
                if not is_refusal(error):
                    raise
                if len(keys) == 1:
                    refused.extend(keys)
                    return 0
                half = len(keys) // 2
                return delete_each(keys[:half]) + delete_each(keys[half:])

        try:
            count = delete(others)
        except DBAPIError as error:
            if not is_refusal(error) or len(refused) >= MOST:
                raise
            known, keys = len(refused), self._old(session, mapping, age, words, others)
            count = delete_each(keys)
            text = "%s %s cannot be pruned; the worker tries again in %s: %s"
            names = several([" ".join(map(str, key)) for key in refused[known:]])
            log.warning(text, mapping, names, duration_text(PRUNE_ALL_EVERY), cause_of(error))
            self.due_at = time.monotonic()
        if count:
            log.info("pruned %d of %s", count, mapping)
        else:  # nothing was written, so there is nothing to commit
            session.rollback()
        if count == PRUNE_LIMIT:
            self.due_at = time.monotonic()

    def _old(
        self,
        session: Session,
        mapping: QueueMapping,
        age: timedelta,
        words: Sequence[JobStatus],
        where: Sequence[ColumnElement[bool]],
    ) -> list[Key]:
        """Return the keys of rows that a prune deletes."""
        longest = utc_now(-(age // timedelta(microseconds=1)))
        old = (
            select(*mapping.key_attributes)
            .where(or_(*(mapping.has_status(mapping.word(word)) for word in words)))
            .where(mapping.attribute("owner_date") < longest, *where)
            .limit(PRUNE_LIMIT)
        )
        with writing(session, mapping, reads=True) as writer:
            return [tuple(key) for key in writer.rows(old)]


class Control(Chore):
    """A worker's part in control: it looks what others want of it, and tells that it is there.

    It uses the worker's engine, not the application's sessions: they may be unable to tell where
    these tables are.
    """

    tables: ControlTables
    without = "control"
    _paused = frozenset[str]()  # as it was last logged
    _row: tuple[Any, ...] = ()  # as it was last written: the name, jobs, stuck
    _told_at = -math.inf

    def begin(self, stack: ExitStack) -> None:
        """Register the worker; look at pauses before the first claim."""
        stack.callback(self._end)
        self._do(lambda: self.transactions.patiently(self._look))

    def _end(self) -> None:
        if self._row:
            remove = partial(run_in_transaction, self.engine, self._remove_row)
            self.attempt("the worker's row", remove)

    def run(self) -> None:
        """Look, and tell; the last look counts until the next one succeeds."""
        self._do(self._look)

    def _do(self, look: Callable[[], None]) -> None:
        self.attempt("the worker's row", self._tell)
        looked = self.attempt("a look at pauses and stop requests", look)
        self.due_in(LOOK_AT_CONTROL_EVERY if looked else LOOK_AGAIN)

    def _look(self) -> None:
        from ..control import read_control

        name = self.loop.turns.owner_name.current
        owners = {name, *(str(job.fence.owner) for job in self.crew.claimed(self.loop))}
        # A plain read: a transaction of a writer would take SQLite's only lock each time.
        with connected(self.engine) as connection:
            state = read_control(connection, self.queues, owner=owners, tables=self.tables)
        for name in sorted(state.paused - self._paused):
            log.info("%s is paused: this worker claims none of its jobs until it is resumed", name)
        for name in sorted(self._paused - state.paused):
            log.info("%s is resumed", name)
        self._paused = state.paused
        paused = [lane for lane in self.lanes if state.is_paused(lane.queue)]
        self.crew.pause(self.loop, self.lanes, paused)
        for job in self.crew.claimed(self.loop):
            job.asked_to_stop |= state.asks_to_stop(job.fence)

    def _tell(self) -> None:
        """Write the row, if there is something new to tell, or it was not written for long."""
        jobs = sum(job.lane.whole in self.lanes for job in self.crew.claimed(self.loop))
        row = (self.loop.turns.owner_name.current, jobs, self.crew.worker.stuck)
        pause, now = TELL_AT_LEAST if row == self._row else TELL_EVERY, time.monotonic()
        if now >= self._told_at + pause.total_seconds():
            self._told_at = now  # also if it fails: it is tried again after the same pause
            run_in_transaction(self.engine, partial(self._write_row, row))
            self._row = row

    def _write_row(self, row: tuple[str, int, str | None], session: Session) -> None:
        from ..control import register_worker

        name, jobs, stuck = row
        with writing(session, self.queues[0].mapping):  # no gap locks on InnoDB
            if self._row and self._row[0] != name:  # our Owner has lost its lock
                self._remove_row(session)
            register_worker(session, name, self.queues, jobs=jobs, stuck=stuck, tables=self.tables)

    def _remove_row(self, session: Session) -> None:
        from ..control import unregister_worker

        unregister_worker(session, self._row[0], tables=self.tables)


class Scheduler(Chore):
    """Run schedules in transactions of its own, on the worker's engine.

    What the queues of `lanes` declare is written to the table first.
    """

    tables: Schedules
    without = "schedules"
    _is_declared = False

    def run(self) -> None:
        """Insert the jobs of the schedules that are due."""
        self.due_at = time.monotonic() + SOON  # after an error, or while another worker does it
        if not self._is_declared:
            self._is_declared = self.attempt("the declaration of schedules", self._declare)
        self.attempt("a run of schedules", self._run)

    def _declare(self) -> None:
        from ..schedules.declared import declared_for

        if declared_for(self.queues):
            declare = partial(self.tables.declare, queues=self.queues, database=self.loop.site.name)
            run_in_transaction(self.engine, declare)

    def _run(self) -> None:
        """Look by a plain read whether a schedule is due, before any lock is taken."""
        with connected(self.engine) as connection:
            wait = self.tables.due_in(connection, self.queues)
        if wait is None or wait > timedelta(0):
            self.due_in(LOOK_AT_SCHEDULES_EVERY)
            if wait is not None:
                next_tick = time.monotonic() + (wait + SPREAD * random.random()).total_seconds()
                self.due_at = min(self.due_at, next_tick)
            return
        ran = run_in_transaction(self.engine, partial(self.tables.run_due, queues=self.queues))
        if ran:
            self.due_at = time.monotonic()  # there may be more
        if any(each.ticks for each in ran):
            self.loop.wake()  # the supervisor claims next, in this thread


class Recounter(Chore):
    """Correct the counts of groups whose members plain SQL has changed."""

    without = "groups"

    def run(self) -> None:
        """Count, in a transaction of its own."""
        from ..groups import recount

        self.due_in(COUNT_GROUPS_EVERY)
        correct = partial(recount, entity=self.queues[0].entity)
        self.attempt("a count of groups", lambda: self.transactions.run_once(correct))


class Heartbeat:
    """Renew the claims in hand, three times in the shortest lease of the queues of a loop.

    After the worker's `max_runtime`, the claim of a job is not renewed. If all slots have such a
    job, no claim is renewed.
    """

    def __init__(self, crew: Crew, loop: Loop) -> None:
        self._crew, self._loop, self._engine = crew, loop, loop.turns.transactions.engine
        self._queues = [lane.queue for lane in loop.turns.lanes]
        self._longest = crew.worker.max_runtime or timedelta.max
        self._ended = crew.runtime.flag()
        self._renewal: Flag | None = None  # the end of that which is under way
        self._refused: set[Fence] = set()  # each is logged once

    def begin(self, stack: ExitStack) -> None:
        """Renew claims at intervals, until the stack ends."""
        thread = self._crew.runtime.start(self._run, name="sa_jobqueue heartbeat")
        stack.callback(thread.join, LONGEST_RENEWAL)
        stack.callback(self._ended.set)

    def wait_for_renewal(self) -> None:
        """Wait until no renewal is under way: a finish and a renewal must not lock the same row.

        Before you call this, remove the jobs from those to be renewed.
        """
        if (renewal := self._renewal) is not None:
            renewal.wait(LONGEST_RENEWAL)

    def _run(self) -> None:
        shortest = min(self._longest, *(queue.lease for queue in self._queues))
        pause = every = shortest.total_seconds() / BEATS_PER_LEASE
        while not self._ended.wait(pause):
            pause = every
            # Before we read: who takes a job after this, waits.
            self._renewal = renewal = self._crew.runtime.flag()
            jobs = self._within_their_time()
            try:
                if jobs:
                    with connected_outside_pool(self._engine) as connection:
                        self._renew_all(connection, jobs)
            except Exception as error:  # an application's handle_error listener raises its own
                pause = min(every / 10, SOON)
                _log_failure(len(jobs), error)
            finally:
                self._renewal = None
                renewal.set()

    def _within_their_time(self) -> list[InHand]:
        """Return the jobs whose claims are to be renewed.

        If the handler in every slot runs for too long, the unstarted jobs are left to others.
        """
        latest = time.monotonic() - self._longest.total_seconds()
        jobs = [job for job in self._crew.claimed(self._loop) if _is_free(job)]
        with self._crew.lock:
            calls = [*self._crew.running]
        late = {
            job
            for job in chain(jobs, *calls)
            if _is_free(job) and job.outcome is NOT_YET and 0 < job.began <= latest
        }
        slots = [call for call in calls if not late.isdisjoint(call)]
        if len(slots) < self._crew.slots:
            return [job for job in jobs if job not in late]
        return [job for job in jobs if job.outcome is not NOT_YET]

    def _renew_all(self, connection: Connection, jobs: Sequence[InHand]) -> None:
        """Renew claims together; if refused, one by one: a refused row costs no other claim."""
        fences = [job.fence for job in jobs]
        try:
            lost = set(run_in_transaction(connection, partial(self._renew, jobs=jobs)))
        except Exception as error:
            if not is_refusal(error):
                raise
            if len(jobs) > 1:
                for job in jobs:
                    self._renew_all(connection, [job])
            elif fences[0] not in self._refused:
                self._refused.add(fences[0])
                _log_failure(1, error)
            return
        gone = [job for job, fence in zip(jobs, fences, strict=True) if fence in lost]
        for job in gone:
            job.ended = Ended.LOST
        log_lost(gone)

    def _renew(self, session: Session, jobs: Sequence[InHand]) -> list[Fence]:
        """Renew claims, but wait for no lock where the database can skip rows; return the lost."""
        fences: dict[JobQueue[Any], list[Fence]] = {}
        for job in jobs:
            fences.setdefault(job.lane.queue, []).append(job.fence)
        all_lost: list[Fence] = []
        for queue, of_queue in fences.items():
            unlocked, lost = lock_free_rows(session, of_queue)
            with called_on(queue):
                note_lost(session, _LOST, jobs_by_token(lost))
            all_lost += lost + claims_lost_by(partial(queue.renew, session, unlocked))
        return all_lost


def _is_free(job: InHand) -> bool:
    """Tell whether no transaction has locked or ended a job."""
    return not job.locked and job.ended is None


#: What is told of a claim that a renewal finds lost.
_LOST = Change("renew", None, let_go=LetGo.NEVER)


def _log_failure(count: int, error: Exception) -> None:
    write = log.info if is_transient(error) else log.warning
    write("the renewal of %d claims failed, and is tried again: %s", count, cause_of(error))
