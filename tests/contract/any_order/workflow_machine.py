"""A model of a workflow, and the rules by which several sessions change both it and the real one.

After every step the table must show exactly what has been committed: so no job is lost,
none has two owners, and the attempts of each step are counted right. The log must have
exactly the transitions that were committed, each of them legal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule
from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from sa_jobqueue import ClaimLost
from sa_jobqueue.workflow import InvalidTransition, NotWaiting, Step
from tests.contract.any_order.sessions_machine import (
    SessionsMachine,
    Worker,
    one_of,
    places,
    workers,
)
from tests.videos import S, Video, VideoLog, videos

MAX_ATTEMPTS = 2

WORKFLOW = videos()
STEPS = WORKFLOW.steps
SIGNALS = (S.RENDERED, S.REJECTED)
FINAL = (S.PUBLISHED, S.REJECTED, "failed", "cancelled")
CANCELLABLE = (*(step.ready for step in STEPS), S.AT_FARM)

steps = st.sampled_from(STEPS)
beginnings = st.tuples(st.sampled_from(CANCELLABLE), st.integers(-1, 1))


class Move(NamedTuple):
    """One row of the log."""

    before: str
    after: str
    verb: str
    owner: str | None


@dataclass(frozen=True)
class Job:
    """What is expected of one row, and of its log.

    Attributes:
        claim: which claim of all it was, while somebody has the job.
        failures: how many there were at its latest: it is due from then on.
        deleted: the log stays.
    """

    status: str
    priority: int = 0
    owner: str | None = None
    attempts: int = 0
    claim: int | None = None
    deleted: bool = False
    failures: int = 0
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

    def freed(self, step: Step[Video], verb: str) -> Job:
        """Return the job after an attempt that was not the step's last, or after its last."""
        if self.attempts < MAX_ATTEMPTS:
            return self.waiting(step.ready, verb, by=self.owner)
        return self.moved("failed", verb, by=self.owner)


@dataclass(frozen=True)
class InHand:
    """A claimed job as its worker knows it, and the number of its claim."""

    video: Video
    claim: int
    step: Step[Video]

    @property
    def targets(self) -> tuple[str, ...]:
        """Return the status to which the step leads."""
        return (self.step.then, *self.step.branches)


VideoWorker: TypeAlias = Worker[Job, InHand]


class WorkflowMachine(SessionsMachine[Job, InHand]):
    """The verbs of a workflow and of its steps."""

    tables = (Video, VideoLog)

    # -- verbs of one worker --------------------------------------------

    def _fill(self) -> None:
        self._add([(status, 0) for status in (*CANCELLABLE, *CANCELLABLE, *FINAL)])

    @rule(beginnings=st.lists(beginnings, min_size=1, max_size=4))
    def add(self, beginnings: list[tuple[str, int]]) -> None:
        self._add(beginnings)

    def _add(self, beginnings: list[tuple[str, int]]) -> None:
        self._let_write(None)
        with Session(self.engine) as session:
            added = [
                Video(title="video", status=status, priority=priority, max_attempts=MAX_ATTEMPTS)
                for status, priority in beginnings
            ]
            session.add_all(added)
            session.flush()
            numbers = [video.id for video in added]
            if self.one_writer:  # SQLite reuses the number of a deleted row
                session.execute(delete(VideoLog).where(VideoLog.video_id.in_(numbers)))
            session.commit()
        assert not any(number in self._there(self.jobs) for number in numbers)
        for number, (status, priority) in zip(numbers, beginnings, strict=True):
            self.jobs[number] = Job(status, priority)

    @rule(worker=workers, step=steps, limit=st.integers(1, 3))
    def claim(self, worker: int, step: Step[Video], limit: int) -> None:
        self._claim(self._turn_of(worker), step, limit)

    def _claim_for(self, worker: VideoWorker, place: int) -> None:
        seen = self._there(self._seen_by(worker))
        waited_for = [step for step in STEPS if _waiting(seen, step)]
        if waited_for:
            self._claim(worker, waited_for[place % len(waited_for)], limit=1 + place % 2)

    def _claim(self, claimer: VideoWorker, step: Step[Video], limit: int) -> None:
        seen = self._there(self._seen_by(claimer))
        waiting = _waiting(seen, step)

        claimed = step.queue.claim(claimer.session, owner=claimer.name, limit=limit)

        numbers = [video.id for video in claimed]
        self._check_claimed(numbers, waiting, claimer, limit)
        self.claims += 1
        claimer.change({n: self._claimed(seen[n], step, claimer) for n in numbers})
        claimer.hand |= {video.id: InHand(video, self.claims, step) for video in claimed}
        self._check_shown(claimer, claimed)

    def _claimed(self, job: Job, step: Step[Video], claimer: VideoWorker) -> Job:
        name, attempts = claimer.name, job.attempts + 1
        return job.moved(
            step.during, "claim", by=name, owner=name, attempts=attempts, claim=self.claims
        )

    @rule(worker=workers, place=places, way=st.integers(0, 1), delete=st.booleans())
    def complete(self, worker: int, place: int, way: int, delete: bool) -> None:
        def target(step: Step[Video]) -> str:
            ways = (step.then, *step.branches)
            return ways[way % len(ways)]

        def verb(session: Session, hand: InHand) -> None:
            then = target(hand.step) if way else None
            hand.step.queue.complete(session, hand.video, delete=delete, then=then)

        def outcome(job: Job, step: Step[Video]) -> Job:
            after = target(step)
            if after not in FINAL:
                return job.waiting(after, "complete", by=job.owner, attempts=0)
            deleted = delete and after == S.PUBLISHED
            return job.moved(after, "complete", by=job.owner, deleted=deleted)

        self._finish(worker, place, verb, outcome)

    @rule(worker=workers, place=places, after=st.sampled_from([*S, "failed", "nonsense"]))
    def complete_as_undeclared(self, worker: int, place: int, after: str) -> None:
        finisher = self._turn_of(worker)
        self._let_write_without_wait(finisher)
        number = self._in_hand(finisher, place)
        if number is None or str(after) in (hand := finisher.hand[number]).targets:
            return

        with pytest.raises(InvalidTransition) as refused:
            hand.step.queue.complete(finisher.session, hand.video, then=after)

        assert refused.value.declared == hand.targets

    @rule(worker=workers, place=places)
    def fail(self, worker: int, place: int) -> None:
        def verb(session: Session, hand: InHand) -> None:
            hand.step.queue.fail(session, hand.video, error="no", retry_in=timedelta(0))

        def failed(job: Job, step: Step[Video]) -> Job:
            latest = max(other.failures for other in self.jobs.values())
            return replace(job.freed(step, "fail"), failures=latest + 1)

        self._finish(worker, place, verb, failed)

    @rule(worker=workers, place=places)
    def release(self, worker: int, place: int) -> None:
        def verb(session: Session, hand: InHand) -> None:
            hand.step.queue.release(session, hand.video)

        def released(job: Job, step: Step[Video]) -> Job:
            return job.waiting(step.ready, "release", by=job.owner, attempts=job.attempts - 1)

        self._finish(worker, place, verb, released)

    @rule(worker=workers, place=places)
    def cancel_claimed(self, worker: int, place: int) -> None:
        def verb(session: Session, hand: InHand) -> None:
            hand.step.queue.cancel_claimed(session, hand.video)

        self._finish(
            worker,
            place,
            verb,
            lambda job, _: job.moved("cancelled", "cancel_claimed", by=job.owner),
        )

    @rule(worker=workers, place=places)
    def renew(self, worker: int, place: int) -> None:
        def verb(session: Session, hand: InHand) -> None:
            hand.step.queue.renew(session, hand.video)

        self._finish(worker, place, verb, lambda job, _: job)

    def _finish(
        self,
        worker: int,
        place: int,
        verb: Callable[[Session, InHand], None],
        outcome: Callable[[Job, Step[Video]], Job],
    ) -> None:
        finisher = self._turn_of(worker)
        self._let_write_without_wait(finisher)
        number = self._in_hand(finisher, place)
        if number is None or self._is_locked(number, finisher):
            return
        hand = finisher.hand[number]
        seen = self._there(self._seen_by(finisher)).get(number)

        if seen is None or seen.claim != hand.claim:
            with pytest.raises(ClaimLost) as lost:
                verb(finisher.session, hand)
            assert list(lost.value.lost) == [hand.video]
            finisher.change({})
            del finisher.hand[number]
            self._has_looked_at(finisher, number)
            return
        verb(finisher.session, hand)
        left = outcome(seen, hand.step)
        finisher.change({number: left})
        if left.claim is None:
            del finisher.hand[number]
        if not left.deleted:
            self._check_shown(finisher, [hand.video])

    # -- verbs that need no claim ---------------------------------------

    @rule(worker=workers, place=places, after=st.sampled_from(SIGNALS), waiting=st.booleans())
    def signal(self, worker: int, place: int, after: str, waiting: bool) -> None:
        hearer = self._turn_of(worker)
        self._let_write_without_wait(hearer)
        seen = self._there(self._seen_by(hearer))
        likely = [n for n, job in seen.items() if job.status == S.AT_FARM or not waiting]
        number = self._free_one_of(likely, place, hearer)
        if number is None:
            return

        if (job := seen[number]).status == S.AT_FARM:
            WORKFLOW.signal(hearer.session, number, after)
            left = job.waiting(after, "signal", attempts=0 if after == S.RENDERED else job.attempts)
            hearer.change({number: left})
            return
        with pytest.raises(NotWaiting) as refused:
            WORKFLOW.signal(hearer.session, number, after)
        assert refused.value.status == job.status
        self._has_looked_at(hearer, number)

    @rule(worker=workers, place=places, after=st.sampled_from([S.CHECKED, S.AT_FARM, "nonsense"]))
    def signal_as_undeclared(self, worker: int, place: int, after: str) -> None:
        number = one_of(self._there(self.jobs), place)
        if number is not None:
            with pytest.raises(InvalidTransition):
                WORKFLOW.signal(self._turn_of(worker).session, number, after)

    @rule(worker=workers, place=places)
    def cancel(self, worker: int, place: int) -> None:
        self._change(
            worker,
            place,
            WORKFLOW.cancel,
            CANCELLABLE,
            lambda job: job.moved("cancelled", "cancel"),
        )

    @rule(worker=workers, place=places, step=steps)
    def retry(self, worker: int, place: int, step: Step[Video]) -> None:
        self._change(
            worker,
            place,
            lambda session, video: WORKFLOW.retry(session, video, step.ready),
            FINAL,
            lambda job: job.waiting(step.ready, "retry", attempts=0),
        )

    def _change(
        self,
        worker: int,
        place: int,
        verb: Callable[[Session, Video], list[Any]],
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
            video = session.get_one(Video, number)
        before = self.jobs[number]

        changed = verb(changer.session, video)

        assert bool(changed) is (before.status in leaving)
        if changed:
            changer.change({number: outcome(before)})
        self._has_looked_at(changer, number)

    @rule(worker=workers, place=places)
    def reap(self, worker: int, place: int) -> None:
        reaper = self._turn_of(worker)
        self._let_write_without_wait(reaper)
        self._in_hand(reaper, place)  # there is something to take back
        seen = self._there(self._seen_by(reaper))

        claimed = {n for n, job in seen.items() if job.claim and not self._is_locked(n, reaper)}

        reaped = WORKFLOW.reap(reaper.session, lease=timedelta(microseconds=1))

        # SQLite's clock counts milliseconds: a claim may be no older than nothing.
        if not (self.one_writer or self.locks_neighbours):
            assert {number for one in reaped.jobs for number in one.identity} == claimed
        for one in reaped.jobs:
            (number,) = one.identity
            assert not self._is_changed(number, reaper)
            job = seen[number]
            (step,) = [step for step in STEPS if step.during == job.status]
            left = job.freed(step, "reap")
            assert (one.failed, one.owner) == (left.status == "failed", job.owner)
            reaper.change({number: left})
        if self.locks_neighbours:  # it may have locked more rows than it took
            self._commit(reaper)

    # -- what holds after every step ------------------------------------

    @invariant()
    def the_table_shows_what_was_committed(self) -> None:
        if not self.workers:
            return
        columns = (Video.id, Video.status, Video.owner, Video.attempts, Video.priority)
        found = {row.id: tuple(row[1:]) for row in self.observer.execute(select(*columns))}
        self.observer.rollback()
        assert found == {number: job.row for number, job in self._there(self.jobs).items()}

    @invariant()
    def the_log_is_a_legal_chain_of_what_was_committed(self) -> None:
        if not self.workers:
            return
        logs: dict[int, list[Move]] = {}
        for row in self.observer.scalars(select(VideoLog).order_by(VideoLog.id)):
            move = Move(row.before, row.after, row.verb, row.owner)
            logs.setdefault(row.video_id, []).append(move)
        self.observer.rollback()
        for number, log in logs.items():
            assert {move[:3] for move in log} <= WORKFLOW.arrows
            assert all(one.after == then.before for one, then in pairwise(log))
            assert log[-1].after == self.jobs[number].status
        assert logs == {number: list(job.log) for number, job in self.jobs.items() if job.log}

    @invariant()
    def places_are_a_permutation_in_the_claim_order_of_each_step(self) -> None:
        if not self.workers:
            return
        jobs = self._there(self.jobs)
        there = self.observer.scalars(select(Video)).all()
        for step in STEPS:
            found = {video.id: step.queue.position(self.observer, video) for video in there}
            places = {n: place for place, n in enumerate(_waiting(jobs, step), start=1)}
            assert found == {number: places.get(number) for number in jobs}
        self.observer.rollback()

    # -- helpers --------------------------------------------------------

    def _turn_of(self, number: int) -> VideoWorker:
        worker = self.workers[number]
        self._let_write(worker)
        return worker

    def _let_write(self, worker: VideoWorker | None) -> None:
        """Commit the other workers where the database has a single writer."""
        for other in self.workers if self.one_writer else ():
            if other is not worker:
                self._commit(other)

    @staticmethod
    def _there(jobs: Any) -> dict[int, Job]:
        return {number: job for number, job in jobs.items() if not job.deleted}

    def _free_one_of(
        self, jobs: Iterable[int], place: int, worker: VideoWorker | None = None
    ) -> int | None:
        number = one_of(jobs, place)
        return None if number is None or self._is_locked(number, worker) else number

    def _has_looked_at(self, worker: VideoWorker, number: int) -> None:
        """Record a row that was looked at; InnoDB keeps its lock, changed or not."""
        if self.locks_neighbours:
            worker.locked.add(number)

    def _check_shown(self, worker: VideoWorker, videos: Iterable[Video]) -> None:
        """Compare what entities show with what their worker has done."""
        seen = self._there(self._seen_by(worker))
        for video in videos:
            shown = (video.status, video.owner, video.attempts, video.priority)
            assert shown == seen[video.id].row


def _waiting(jobs: dict[int, Job], step: Step[Video]) -> list[int]:
    """List the jobs that wait for a step, in claim order."""
    waiting = [
        (job.priority, job.failures, n) for n, job in jobs.items() if job.status == step.ready
    ]
    return [number for *_, number in sorted(waiting)]
