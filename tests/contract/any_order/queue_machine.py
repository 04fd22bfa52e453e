"""A model of a queue, and the rules by which several sessions change both it and the real queue.

After every step the table must show exactly what has been committed: so no job is lost,
none has two owners, and attempts are counted right.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from typing import Any, TypeAlias

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule
from sqlalchemy import select
from sqlalchemy.orm import Session

from sa_jobqueue import (
    ClaimLost,
    JobStatus,
    cancel,
    cancel_claimed,
    claim,
    complete,
    enqueue,
    fail,
    position,
    reap,
    release,
    renew,
    reprioritize,
    retry,
)
from tests.contract.any_order.sessions_machine import (
    SessionsMachine,
    Worker,
    one_of,
    places,
    workers,
)
from tests.models import Task

MAX_ATTEMPTS = 2

priorities = st.integers(-1, 1)


@dataclass(frozen=True)
class Job:
    """The expected state of one row."""

    status: str = JobStatus.UNCLAIMED
    owner: str | None = None
    attempts: int = 0
    priority: int = 0
    due: int = field(default=0, compare=False)  # of its `run_at`: a later one has a larger number

    def freed(self) -> Job:
        """Return the job after an attempt that was not the last, or after its last."""
        if self.attempts < MAX_ATTEMPTS:
            return replace(self, status=JobStatus.UNCLAIMED, owner=None)
        return replace(self, status=JobStatus.FAILED)


@dataclass(frozen=True)
class InHand:
    """A claimed job as its worker knows it, and the number of its claim."""

    task: Task
    claim: int


Claimer: TypeAlias = Worker[Job, InHand]


class QueueMachine(SessionsMachine[Job, InHand]):
    """The verbs of a plain queue."""

    tables = (Task,)

    def __init__(self) -> None:
        self.times = 0
        super().__init__()
        self.lost_claims: set[int] = set()

    def _end(self, worker: Claimer) -> None:
        """Commit where the database has a single writer; else leave the transaction open."""
        if self.one_writer:
            self._commit(worker)

    # -- verbs of one worker --------------------------------------------

    def _fill(self) -> None:
        self._enqueue([0, 1, -1, 0, 0, 1])

    @rule(priorities=st.lists(priorities, min_size=1, max_size=4))
    def enqueue(self, priorities: list[int]) -> None:
        self._enqueue(priorities)

    def _enqueue(self, priorities: list[int]) -> None:
        known, now = set(self.jobs), self._now()
        with Session(self.engine) as session:
            for priority in priorities:
                row = {"name": "job", "max_attempts": MAX_ATTEMPTS}
                enqueue(session, Task, [row], priority=priority)
            session.commit()
            added = session.scalars(select(Task).where(Task.id.not_in(known)).order_by(Task.id))
            for task, priority in zip(added, priorities, strict=True):
                self.jobs[task.id] = Job(priority=priority, due=now)

    @rule(worker=workers, limit=st.integers(1, 3))
    def claim(self, worker: int, limit: int) -> None:
        self._claim(self.workers[worker], limit)

    def _claim_for(self, worker: Claimer, place: int) -> None:
        self._claim(worker, limit=1 + place % 2)

    def _claim(self, claimer: Claimer, limit: int) -> None:
        seen = self._seen_by(claimer)
        waiting = [
            (job.priority, job.due, number)
            for number, job in seen.items()
            if job is not None and job.status == JobStatus.UNCLAIMED
        ]

        claimed = claim(claimer.session, Task, owner=claimer.name, limit=limit)

        numbers = [task.id for task in claimed]
        self._check_claimed(numbers, [number for *_, number in sorted(waiting)], claimer, limit)
        claimer.change({number: self._claimed(seen[number], claimer) for number in numbers})
        self.claims += 1
        claimer.hand.update({task.id: InHand(task, self.claims) for task in claimed})
        self._end(claimer)

    @staticmethod
    def _claimed(job: Job | None, claimer: Claimer) -> Job:
        assert job is not None
        return replace(job, status=JobStatus.CLAIMED, owner=claimer.name, attempts=job.attempts + 1)

    @rule(worker=workers, place=places, delete=st.booleans())
    def complete(self, worker: int, place: int, delete: bool) -> None:
        def done(job: Job) -> Job | None:
            return None if delete else replace(job, status=JobStatus.DONE)

        self._finish(
            worker, place, lambda session, job: complete(session, job, delete=delete), done
        )

    @rule(worker=workers, place=places)
    def fail(self, worker: int, place: int) -> None:
        self._finish(worker, place, partial(fail, retry_in=timedelta(0)), self._failed)

    def _failed(self, job: Job) -> Job:
        return replace(job.freed(), due=self._now())

    def _now(self) -> int:
        """Return the number of a new `run_at`, which differs from those before also on SQLite."""
        time.sleep(0.002)
        self.times += 1
        return self.times

    @rule(worker=workers, place=places)
    def release(self, worker: int, place: int) -> None:
        def released(job: Job) -> Job:
            attempts = job.attempts - 1
            return replace(job, status=JobStatus.UNCLAIMED, owner=None, attempts=attempts)

        self._finish(worker, place, release, released)

    @rule(worker=workers, place=places)
    def cancel_claimed(self, worker: int, place: int) -> None:
        self._finish(
            worker, place, cancel_claimed, lambda job: replace(job, status=JobStatus.CANCELLED)
        )

    @rule(worker=workers, place=places)
    def renew(self, worker: int, place: int) -> None:
        self._finish(worker, place, renew, lambda job: job)

    def _finish(
        self,
        worker: int,
        place: int,
        verb: Callable[[Session, Task], None],
        outcome: Callable[[Job], Job | None],
    ) -> None:
        finisher = self.workers[worker]
        self._let_write_without_wait(finisher)
        number = self._in_hand(finisher, place)
        if number is None or self._is_locked(number, finisher):
            return
        seen = self._seen_by(finisher).get(number)
        ours = seen is not None and (seen.status, seen.owner) == ("claimed", finisher.name)
        ours = ours and finisher.hand[number].claim not in self.lost_claims
        task = finisher.hand[number].task

        if not ours:
            with pytest.raises(ClaimLost) as lost:
                verb(finisher.session, task)
            assert list(lost.value.lost) == [task]
            finisher.change({})
            del finisher.hand[number]
            if self.locks_neighbours:  # InnoDB keeps the lock of a row that it was asked for
                finisher.locked.add(number)
        else:
            assert seen is not None
            verb(finisher.session, task)
            left = outcome(seen)
            finisher.change({number: left})
            if left is None or left.status != JobStatus.CLAIMED:
                del finisher.hand[number]
        self._end(finisher)

    # -- verbs that need no claim ---------------------------------------

    @rule(place=places)
    def cancel(self, place: int) -> None:
        self._change(
            place, cancel, {JobStatus.UNCLAIMED}, lambda job: replace(job, status="cancelled")
        )

    @rule(place=places)
    def retry(self, place: int) -> None:
        self._change(
            place,
            retry,
            {JobStatus.DONE, JobStatus.FAILED, JobStatus.CANCELLED},
            lambda job: Job(priority=job.priority, due=job.due),
        )

    @rule(place=places, priority=priorities)
    def reprioritize(self, place: int, priority: int) -> None:
        self._change(
            place,
            lambda session, task: reprioritize(session, task, priority),
            {JobStatus.UNCLAIMED},
            lambda job: replace(job, priority=priority),
        )

    def _change(
        self,
        place: int,
        verb: Callable[[Session, Task], list[Any]],
        leaving: Iterable[str],
        outcome: Callable[[Job], Job],
    ) -> None:
        self._let_write_without_wait()
        number = one_of(self.jobs, place)
        if number is None or self._is_locked(number):
            return
        with Session(self.engine) as session:
            task = session.get_one(Task, number)
            changed = verb(session, task)
            session.commit()

        before = self.jobs[number]
        assert bool(changed) is (before.status in set(leaving))
        if changed:
            self.jobs[number] = outcome(before)

    @precondition(lambda self: self.jobs)
    @rule()
    def reap(self) -> None:
        self._let_write_without_wait()
        with Session(self.engine) as session:
            reaped = reap(session, Task, lease=timedelta(microseconds=1))
            session.commit()

        for one in reaped.jobs:
            (number,) = one.identity
            assert not self._is_changed(number)
            job = self.jobs[number]
            assert job.status == JobStatus.CLAIMED
            left = job.freed()
            assert one.failed is (left.status == JobStatus.FAILED)
            self.jobs[number] = left
            self.lost_claims.update(
                worker.hand[number].claim for worker in self.workers if number in worker.hand
            )

    # -- what holds after every step ------------------------------------

    @invariant()
    def the_table_shows_what_was_committed(self) -> None:
        if not self.workers:
            return
        columns = (Task.id, Task.status, Task.owner, Task.attempts, Task.priority)
        found = {row.id: Job(*row[1:]) for row in self.observer.execute(select(*columns))}
        self.observer.rollback()
        assert found == self.jobs

    @invariant()
    def places_are_a_permutation_in_claim_order(self) -> None:
        if not self.workers:
            return
        tasks = self.observer.scalars(select(Task)).all()
        found = {task.id: position(self.observer, task) for task in tasks}
        self.observer.rollback()
        waiting = [
            (job.priority, job.due, number)
            for number, job in self.jobs.items()
            if job.status == JobStatus.UNCLAIMED
        ]
        places = {number: place for place, (*_, number) in enumerate(sorted(waiting), start=1)}
        assert found == {number: places.get(number) for number in self.jobs}
