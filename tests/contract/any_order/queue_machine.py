"""A model of a queue, and the rules by which several sessions change both it and the real queue.

After every step the table must show exactly what has been committed: so no job is lost,
none has two owners, and attempts are counted right. A workflow has several such steps, each of
which is a queue; see :mod:`tests.contract.any_order.workflow_machine`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import Any, ClassVar, NamedTuple, TypeAlias

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule
from sqlalchemy import select
from sqlalchemy.orm import Session

from sa_jobqueue import ClaimLost, JobQueue, cancel, reap, retry, utc_now
from tests.contract.any_order.faults_machine import FaultsMachine
from tests.contract.any_order.sessions_machine import Worker, places, workers
from tests.models import Task

MAX_ATTEMPTS = 2

#: How long a claim of a plain name is left alone: until the clock jumps.
LEASE = timedelta(minutes=30)

priorities = st.integers(-1, 1)

#: In how many hours a job is due.
hours = st.sampled_from([0, 0, 1])


class Step(NamedTuple):
    """A plain queue, in the words of a step of a workflow."""

    queue: JobQueue[Any]
    ready: str = "unclaimed"
    during: str = "claimed"
    then: str = "done"
    branches: Sequence[str] = ()


class Move(NamedTuple):
    """A transition of a job; one row of a workflow's log."""

    before: str
    after: str
    verb: str
    owner: str | None


@dataclass(frozen=True)
class Job:
    """What is expected of one row, and of its log.

    Attributes:
        claim: which claim of all it was, while somebody has the job.
        since: the hour of the claim, or of its renewal.
        due: of its `run_at`: its hour, and a number that is larger for a later one.
        deleted: the log stays.
    """

    status: str
    priority: int = 0
    owner: str | None = None
    attempts: int = 0
    claim: int | None = None
    since: int = 0
    deleted: bool = False
    due: tuple[int, int] = (0, 0)
    log: tuple[Move, ...] = ()

    @property
    def row(self) -> tuple[Any, ...]:
        """Return what the table must show."""
        return (self.status, self.owner, self.attempts, self.priority)

    def moved(self, after: str, verb: str, *, by: str | None = None, **new: Any) -> Job:
        """Return the job after a transition; nobody has claimed it unless told otherwise."""
        log = (*self.log, Move(self.status, str(after), verb, by))
        return replace(self, status=str(after), log=log, **{"claim": None, **new})

    def waiting(self, after: str, verb: str, **new: Any) -> Job:
        """Return the job as it becomes claimable again, in this step or in another."""
        return self.moved(after, verb, owner=None, **new)

    def freed(self, step: Any, verb: str) -> Job:
        """Return the job after an attempt that was not the step's last, or after its last."""
        if self.attempts < MAX_ATTEMPTS:
            return self.waiting(step.ready, verb, by=self.owner)
        return self.moved("failed", verb, by=self.owner)


@dataclass(frozen=True)
class InHand:
    """A claimed job as its worker knows it, and the number of its claim."""

    job: Any
    claim: int
    step: Any


Claimer: TypeAlias = Worker[Job, InHand]


class QueueMachine(FaultsMachine[Job, InHand]):
    """The verbs of a plain queue."""

    tables: ClassVar[tuple[type[Any], ...]] = (Task,)
    steps: ClassVar[Sequence[Any]] = (Step(JobQueue(Task)),)
    waiting: ClassVar[Sequence[str]] = ("unclaimed",)
    on_hold: ClassVar[Sequence[str]] = ()
    final: ClassVar[Sequence[str]] = ("done", "failed", "cancelled")

    times = 0

    # -- what a workflow does otherwise ---------------------------------

    def _new(self, **columns: Any) -> Any:
        return Task(name="job", max_attempts=MAX_ATTEMPTS, **columns)

    def _cancel(self, session: Session, job: Any) -> list[Any]:
        return cancel(session, job)

    def _retry(self, session: Session, job: Any, step: Any) -> list[Any]:
        return retry(session, job)

    def _reap(self, session: Session) -> Any:
        return reap(session, self.tables[0], lease=LEASE)

    # -- verbs of one worker --------------------------------------------

    def _fill(self) -> None:
        super()._fill()
        for status in (*self.waiting, *self.waiting, *self.waiting, *self.final):
            self._add(status, [0, 1])

    @rule(place=places, priorities=st.lists(priorities, min_size=1, max_size=4), hours=hours)
    def add(self, place: int, priorities: list[int], hours: int) -> None:
        self._add(self.waiting[place % len(self.waiting)], priorities, hours)

    def _add(self, status: str, priorities: list[int], hours: int = 0) -> None:
        self._let_write(None)
        due = self._now(hours)
        run_at = utc_now(hours * timedelta(hours=1) // timedelta(microseconds=1))
        with Session(self.engine) as session:
            added = [self._new(status=status, priority=n, run_at=run_at) for n in priorities]
            session.add_all(added)
            session.flush()
            expected = {job.id: self._expected(job, due) for job in added}
            self._forget(session, list(expected))
            session.commit()
        assert not any(number in self._there(self.jobs) for number in expected)
        self.jobs |= expected

    def _expected(self, job: Any, due: tuple[int, int]) -> Job:
        """Return what is expected of a new row."""
        return Job(job.status, job.priority, due=due)

    def _now(self, hours: int) -> tuple[int, int]:
        """Return a new `run_at` for the model, which differs from those before also on SQLite."""
        time.sleep(0.002)
        self.times += 1
        return self.hour + hours, self.times

    def _forget(self, session: Session, numbers: list[int]) -> None:
        """Forget what deleted rows of these numbers have left; SQLite uses a number again."""

    @rule(worker=workers, place=places, limit=st.integers(1, 3))
    def claim(self, worker: int, place: int, limit: int) -> None:
        self._claim(self._turn_of(worker), self.steps[place % len(self.steps)], limit)

    def _claim_for(self, worker: Claimer, place: int) -> None:
        seen = self._there(self._seen_by(worker))
        waited_for = [step for step in self.steps if self._waiting(seen, step)]
        if waited_for:
            self._claim(worker, waited_for[place % len(waited_for)], limit=1 + place % 2)

    def _claim(self, claimer: Claimer, step: Any, limit: int) -> None:
        seen = self._there(self._seen_by(claimer))
        waiting = self._waiting(seen, step)
        # The model knows no place where a claim goes on: have it begin at the head of the queue.
        step.queue.mapping.head.changes += 1

        claimed = step.queue.claim(claimer.session, owner=claimer.owner, limit=limit)

        numbers = [job.id for job in claimed]
        self._check_claimed(numbers, waiting, claimer, self._granted(claimer, step, limit))
        self.claims += 1
        claimer.change({n: self._claimed(seen[n], step, claimer) for n in numbers})
        claimer.hand |= {job.id: InHand(job, self.claims, step) for job in claimed}
        self._check_shown(claimer, claimed)

    def _granted(self, claimer: Claimer, step: Any, limit: int) -> int:
        """Return how many jobs a claim may take."""
        return limit

    def _claimed(self, job: Job, step: Any, claimer: Claimer) -> Job:
        name = claimer.name
        marks = {"owner": name, "claim": self.claims, "since": self.hour}
        return job.moved(step.during, "claim", by=name, attempts=job.attempts + 1, **marks)

    @rule(worker=workers, place=places, way=st.integers(0, 1), delete=st.booleans())
    def complete(self, worker: int, place: int, way: int, delete: bool) -> None:
        def target(step: Any) -> str:
            ways = (step.then, *step.branches)
            return str(ways[way % len(ways)])

        def verb(session: Session, hand: InHand) -> None:
            then = {"then": target(hand.step)} if way and hand.step.branches else {}
            hand.step.queue.complete(session, hand.job, delete=delete, **then)

        def outcome(job: Job, step: Any) -> Job:
            after = target(step)
            if after not in self.final:
                return job.waiting(after, "complete", by=job.owner, attempts=0)
            deleted = delete and after == self.final[0]
            return job.moved(after, "complete", by=job.owner, deleted=deleted)

        self._finish(worker, place, verb, outcome)

    @rule(worker=workers, place=places, hours=hours)
    def fail(self, worker: int, place: int, hours: int) -> None:
        due = self._now(hours)

        def verb(session: Session, hand: InHand) -> None:
            pause = timedelta(hours=hours)
            hand.step.queue.fail(session, hand.job, error="no", retry_in=pause)

        def failed(job: Job, step: Any) -> Job:
            return replace(job.freed(step, "fail"), due=due)

        self._finish(worker, place, verb, failed)

    @rule(worker=workers, place=places)
    def release(self, worker: int, place: int) -> None:
        def verb(session: Session, hand: InHand) -> None:
            hand.step.queue.release(session, hand.job)

        def released(job: Job, step: Any) -> Job:
            return job.waiting(step.ready, "release", by=job.owner, attempts=job.attempts - 1)

        self._finish(worker, place, verb, released)

    @rule(worker=workers, place=places)
    def cancel_claimed(self, worker: int, place: int) -> None:
        def verb(session: Session, hand: InHand) -> None:
            hand.step.queue.cancel_claimed(session, hand.job)

        def cancelled(job: Job, step: Any) -> Job:
            return job.moved("cancelled", "cancel_claimed", by=job.owner)

        self._finish(worker, place, verb, cancelled)

    @rule(worker=workers, place=places)
    def renew(self, worker: int, place: int) -> None:
        def verb(session: Session, hand: InHand) -> None:
            hand.step.queue.renew(session, hand.job)

        self._finish(worker, place, verb, lambda job, _: replace(job, since=self.hour))

    def _finish(
        self,
        worker: int,
        place: int,
        verb: Callable[[Session, InHand], None],
        outcome: Callable[[Job, Any], Job],
    ) -> None:
        finisher = self._turn_of(worker)
        self._let_write_without_wait(finisher)
        number = self._in_hand(finisher, place)
        if number is None:
            return
        hand = finisher.hand[number]
        seen = self._there(self._seen_by(finisher)).get(number)
        if number in self.stranger.locked and seen is not None and seen.claim == hand.claim:
            self._is_refused(finisher, partial(verb, finisher.session, hand))
            return
        if self._is_locked(number, finisher):
            return

        if seen is None or seen.claim != hand.claim:
            with pytest.raises(ClaimLost) as lost:
                verb(finisher.session, hand)
            assert list(lost.value.lost) == [hand.job]
            finisher.change({})
            del finisher.hand[number]
            self._has_looked_at(finisher, number)
            return
        verb(finisher.session, hand)
        left = outcome(seen, hand.step)
        finisher.change({number: left})
        self._settle(finisher)
        if left.claim is None:
            del finisher.hand[number]
        if not left.deleted:
            self._check_shown(finisher, [hand.job])

    # -- verbs that need no claim ---------------------------------------

    @rule(worker=workers, place=places)
    def cancel(self, worker: int, place: int) -> None:
        leaving = (*self.waiting, *self.on_hold)
        self._change(
            worker, place, self._cancel, leaving, lambda job: job.moved("cancelled", "cancel")
        )

    @rule(worker=workers, place=places)
    def retry(self, worker: int, place: int) -> None:
        step = self.steps[place % len(self.steps)]
        self._change(
            worker,
            place,
            lambda session, job: self._retry(session, job, step),
            self.final,
            lambda job: job.waiting(step.ready, "retry", attempts=0),
        )

    @rule(worker=workers, place=places, priority=priorities)
    def reprioritize(self, worker: int, place: int, priority: int) -> None:
        step = self.steps[place % len(self.steps)]
        self._change(
            worker,
            place,
            lambda session, job: step.queue.reprioritize(session, job, priority),
            {step.ready, *self.on_hold},
            lambda job: replace(job, priority=priority),
        )

    def _change(
        self,
        worker: int,
        place: int,
        verb: Callable[[Session, Any], list[Any]],
        leaving: Iterable[str],
        outcome: Callable[[Job], Job],
    ) -> None:
        changer = self._turn_of(worker)
        self._let_write_without_wait(changer)
        # Of the jobs that a session of its own finds.
        number = self._free_one_of(self._there(self.jobs), place)
        if number is None:
            return
        with Session(self.engine) as session:
            job = session.get_one(self.tables[0], number)
        before = self.jobs[number]

        changed = verb(changer.session, job)

        assert bool(changed) is (before.status in leaving)
        if changed:
            changer.change({number: outcome(before)})
            self._settle(changer)
        self._has_looked_at(changer, number)

    @rule(worker=workers, place=places, late=st.booleans())
    def reap(self, worker: int, place: int, late: bool) -> None:
        reaper = self._turn_of(worker)
        self._in_hand(reaper, place)  # there is something to take back
        self.hour += late
        self._reap_all(reaper)

    def _reap_all(self, reaper: Claimer) -> None:
        self._let_write_without_wait(reaper)
        seen = self._there(self._seen_by(reaper))
        over = {n for n, job in seen.items() if job.claim and self._is_over(job)}
        free = {number for number in over if not self._is_locked(number, reaper)}

        reaped = self._reap(reaper.session)

        numbers = {number for one in reaped.jobs for number in one.identity}
        assert numbers <= free if self.locks_neighbours else numbers == free
        for one in reaped.jobs:
            (number,) = one.identity
            job = seen[number]
            step = next(step for step in self.steps if step.during == job.status)
            left = job.freed(step, "reap")
            assert (one.failed, one.owner) == (left.status == "failed", job.owner)
            reaper.change({number: left})
        self._settle(reaper)
        if self.locks_neighbours:  # it may have locked more rows than it took
            self._commit(reaper)

    def _is_over(self, job: Job) -> bool:
        """Tell whether a claim is reaped: its Owner is dead, or the lease of a plain name over."""
        if "~" in str(job.owner):
            return job.owner not in {worker.name for worker in self.workers}
        return job.since < self.hour

    # -- after a lost answer --------------------------------------------

    def _claims_of(self, asker: Claimer) -> dict[int, InHand]:
        """Ask for the claims of a worker; they are those that were committed."""
        claimed = [
            (job, step)
            for step in self.steps
            for job in step.queue.claimed_by(asker.session, asker.owner)
        ]
        there = self._there(self.jobs).items()
        assert {job.id for job, _ in claimed} == {
            number for number, job in there if job.claim and job.owner == asker.name
        }
        return {job.id: InHand(job, self.jobs[job.id].claim or 0, step) for job, step in claimed}

    # -- what holds after every step ------------------------------------

    @invariant()
    def the_table_shows_what_was_committed(self) -> None:
        if not self.workers:
            return
        cls = self.tables[0]
        columns = (cls.id, cls.status, cls.owner, cls.attempts, cls.priority)
        found = {row.id: tuple(row[1:]) for row in self.observer.execute(select(*columns))}
        self.observer.rollback()
        assert found == {number: job.row for number, job in self._there(self.jobs).items()}

    @invariant()
    def places_are_a_permutation_in_the_claim_order_of_each_step(self) -> None:
        if not self.workers:
            return
        jobs = self._there(self.jobs)
        there = self.observer.scalars(select(self.tables[0])).all()
        for step in {step.ready: step for step in self.steps}.values():
            found = {job.id: step.queue.position(self.observer, job) for job in there}
            places = {n: place for place, n in enumerate(self._waiting(jobs, step), start=1)}
            assert found == {number: places.get(number) for number in jobs}
        self.observer.rollback()

    # -- helpers --------------------------------------------------------

    def _settle(self, worker: Claimer) -> None:
        """Change what follows from the last change of a worker."""

    def _waiting(self, jobs: dict[int, Job], step: Any) -> list[int]:
        """List the jobs that wait for a step and are due, in claim order."""
        ready = {n: job for n, job in jobs.items() if job.status == step.ready}
        due = [(job.priority, job.due, n) for n, job in ready.items() if job.due[0] <= self.hour]
        return [number for *_, number in sorted(due)]

    def _has_looked_at(self, worker: Claimer, number: int) -> None:
        """Record a row that was looked at; InnoDB keeps its lock, changed or not."""
        if self.locks_neighbours:
            worker.locked.add(number)

    def _check_shown(self, worker: Claimer, jobs: Iterable[Any]) -> None:
        """Compare what entities show with what their worker has done."""
        seen = self._there(self._seen_by(worker))
        for job in jobs:
            assert (job.status, job.owner, job.attempts, job.priority) == seen[job.id].row
