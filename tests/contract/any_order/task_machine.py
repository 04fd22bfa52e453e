"""The machine of a table of tasks with groups and a rate.

After each step the counts of every group are those of its rows, and what waits for a group has gone
on if, and only if, the group is over. Claims take no task that is not declared, and a claim of the
queue with the rate takes no more jobs than its bucket has tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Literal

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule
from sqlalchemy import insert, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from sa_jobqueue import utc_now
from sa_jobqueue.errors import ArgumentError
from sa_jobqueue.groups import Group, GroupMixin, WaitingMixin, add_to_group, after, group_table
from sa_jobqueue.rates import Rate, rate_table
from sa_jobqueue.tasks import TaskMixin, TaskQueue
from tests.contract.any_order.queue_machine import (
    MAX_ATTEMPTS,
    Claimer,
    InHand,
    Job,
    QueueMachine,
    Step,
)
from tests.contract.any_order.sessions_machine import WORKERS, Worker, places, workers

#: A token comes back in half an hour of the clock, which no run lasts without a jump.
RATE = Rate(2, per=timedelta(hours=1), burst=3, name="any order")
TICKS_IN_AN_HOUR = 2

#: A task that only a newer version of the application has.
NEWER = "newer"

failures = st.sampled_from(["wait", "run", "cancel"])
numbers_of_members = st.integers(0, 3)


class Base(DeclarativeBase):
    pass


GROUPS = group_table(Base.metadata, "any_order_groups")
RATES = rate_table(Base.metadata, name="any_order_rates")


class Call(WaitingMixin, GroupMixin, TaskMixin, Base):
    """A task: it may be a member, and it may wait."""

    __tablename__ = "any_order_call"
    __table_args__ = {"sqlite_autoincrement": True}  # noqa: RUF012 - the model keeps deleted rows
    id: Mapped[int] = mapped_column(primary_key=True)


tasks, rated = TaskQueue(Call), TaskQueue(Call, rate=RATE)


@tasks.task
def draw() -> None: ...


PLAIN, RATED = Step(tasks.queue), Step(rated.queue)


@dataclass(frozen=True)
class Expected(Job):
    """What is expected of a task.

    Attributes:
        group: the number of the group that it is a member of.
        waits_for: the number of the group that it waits for, or waited for.
        on_failure: as that group has it.
        members: how many the group has had.
        settled: that group is over.
    """

    name: str = "draw"
    group: int | None = None
    waits_for: int | None = None
    on_failure: str = ""
    members: int = 0
    settled: bool = False


class TaskMachine(QueueMachine):
    """The verbs of tasks and groups."""

    tables = (Call,)
    steps = (PLAIN, RATED)
    on_hold = ("waiting",)

    def __init__(self) -> None:
        super().__init__()
        self.jobs: dict[int, Any] = {}
        self.full_at = 0  # of the bucket, in ticks
        self.charged: dict[str, int] = {}  # by workers who have locked the bucket

    def _fill(self) -> None:
        bucket = insert(RATES).values(rate=RATE.name, bucket="-", full_at=utc_now())
        with self.engine.begin() as connection:
            connection.execute(bucket)
        super()._fill()
        for number, on_failure in enumerate(("wait", "run", "cancel", "wait")):
            # Of two new tasks, and of one that there was.
            self.group(number % WORKERS, number * 3, 2, on_failure, True)
            self.commit(number % WORKERS)

    def _new(self, **columns: Any) -> Any:
        name = NEWER if columns["priority"] == 1 else "draw"
        return Call(name=name, arguments={}, max_attempts=MAX_ATTEMPTS, **columns)

    def _expected(self, job: Any, due: tuple[int, int]) -> Job:
        return Expected(job.status, job.priority, due=due, name=job.name, group=job.group_id)

    def _waiting(self, jobs: Mapping[int, Any], step: Any) -> list[int]:
        known = {number: job for number, job in jobs.items() if job.name != NEWER}
        return super()._waiting(known, step)

    # -- groups ---------------------------------------------------------

    @rule(
        worker=workers,
        place=places,
        members=numbers_of_members,
        on_failure=failures,
        known=st.booleans(),
    )
    def group(
        self,
        worker: int,
        place: int,
        members: int,
        on_failure: Literal["wait", "run", "cancel"],
        known: bool,
    ) -> None:
        """Make a group of new tasks, and of one that is there, which may have ended or may wait."""
        maker = self._turn_of(worker)
        self._let_write_without_wait(maker)
        due, parts = self._now(0), [self._new(priority=0) for _ in range(members)]
        then = self._new(priority=-1)
        number = self._not_in_a_group(place) if known else None
        if number is not None:
            parts.append(maker.session.get_one(Call, number))

        made = after(maker.session, parts, then=then, on_failure=on_failure)

        self._join(maker, made, parts, due)
        waits = Expected("waiting", -1, due=due, waits_for=made.id, on_failure=on_failure)
        maker.change({then.id: replace(waits, members=len(parts))})
        self._settle(maker)

    @rule(worker=workers, place=places, members=numbers_of_members)
    def add_members(self, worker: int, place: int, members: int) -> None:
        adder = self._turn_of(worker)
        self._let_write_without_wait(adder)
        thens = {number for number, job in self.jobs.items() if job.waits_for is not None}
        number = self._free_one_of(thens, place)
        if number is None:
            return
        then, due = self.jobs[number], self._now(0)
        group, parts = Group(Call, then.waits_for), [self._new(priority=0) for _ in range(members)]
        if then.settled:
            with pytest.raises(ArgumentError, match="roll back"):
                add_to_group(adder.session, group, parts)
            self._roll_back(adder)
            return
        add_to_group(adder.session, group, parts)
        self._join(adder, group, parts, due)
        adder.change({number: replace(then, members=then.members + members)})

    def _join(self, worker: Claimer, group: Group, parts: list[Any], due: tuple[int, int]) -> None:
        seen: Any = self._seen_by(worker)
        joined = {part.id: seen.get(part.id) or self._expected(part, due) for part in parts}
        worker.change({n: replace(job, group=group.id) for n, job in joined.items()})

    def _not_in_a_group(self, place: int) -> int | None:
        jobs = self._there(self.jobs)
        return self._free_one_of((n for n, job in jobs.items() if job.group is None), place)

    @rule(worker=workers, place=places)
    def delete(self, worker: int, place: int) -> None:
        def verb(session: Session, job: Any) -> list[Any]:
            if job.status == "claimed":
                return []
            session.delete(session.merge(job, load=False))
            session.flush()
            return [job]

        leaving = (*self.waiting, *self.on_hold, *self.final)
        self._change(worker, place, verb, leaving, lambda job: replace(job, deleted=True))

    def _settle(self, worker: Claimer) -> None:
        seen: Any = self._seen_by(worker)
        for number, then in seen.items():
            if then.waits_for is None or then.settled:
                continue
            unfinished, failed, _ = counts(seen, then)
            cancels = failed and then.on_failure == "cancel"
            if not cancels and (unfinished or (failed and then.on_failure == "wait")):
                continue
            if then.status == "waiting" and not then.deleted:
                after = "cancelled" if cancels else "unclaimed"
                then = then.moved(after, "signal")
            worker.change({number: replace(then, settled=True)})
            self._settle(worker)  # it may be a member
            return

    def _let_write_without_wait(self, writer: Claimer | None = None) -> None:
        """Commit also who has written to a group or to what waits: a finish may write to it."""
        super()._let_write_without_wait(writer)
        for other in self.workers:
            if other is not writer and any(map(in_group, other.uncommitted.values())):
                self._commit(other)
        if any(self.jobs[number].waits_for for number in self.stranger.locked):
            self._roll_back(self.stranger)

    @invariant()
    def groups_count_their_rows(self) -> None:
        if not self.workers:
            return
        rows = self.observer.execute(select(GROUPS)).all()
        self.observer.rollback()
        found = {
            row.id: ((row.unfinished, row.failed, row.done), row.settled_at is not None)
            for row in rows
        }
        thens = [job for job in self.jobs.values() if job.waits_for is not None]
        assert found == {then.waits_for: (counts(self.jobs, then), then.settled) for then in thens}

    # -- the rate -------------------------------------------------------

    def _granted(self, claimer: Claimer, step: Any, limit: int) -> int:
        return limit if step is PLAIN else min(limit, self._tokens(claimer))

    def _tokens(self, claimer: Claimer) -> int:
        if self.charged.keys() - {claimer.name}:
            return 0  # somebody has locked the bucket
        full_at = self.charged.get(claimer.name, self.full_at)
        return RATE.burst - max(0, full_at - self.hour * TICKS_IN_AN_HOUR)

    def _claim(self, claimer: Claimer, step: Any, limit: int) -> None:
        super()._claim(claimer, step, limit)
        if step is RATED and self._tokens(claimer):
            taken = sum(hand.claim == self.claims for hand in claimer.hand.values())
            full_at = self.charged.get(claimer.name, self.full_at)
            full_at = max(full_at, self.hour * TICKS_IN_AN_HOUR)
            self.charged[claimer.name] = full_at + taken

    def _has_committed(self, worker: Claimer) -> None:
        self.full_at = self.charged.pop(worker.name, self.full_at)
        super()._has_committed(worker)

    def _has_rolled_back(self, worker: Claimer) -> None:
        self.charged.pop(worker.name, None)
        super()._has_rolled_back(worker)

    def _hire(self, number: int) -> Worker[Job, InHand]:
        if number < len(self.workers):  # in the place of one that was killed
            killed = self.charged.pop(self.workers[number].name, None)
            if killed is not None:  # wait for the server's rollback
                self.observer.execute(select(RATES).with_for_update()).all()
                self.observer.rollback()
        return super()._hire(number)


def counts(jobs: Mapping[int, Any], then: Any) -> tuple[int, int, int]:
    """Count the members of the group that a job waits for: unfinished, failed, done."""
    members = [j for j in jobs.values() if j.group == then.waits_for and not j.deleted]
    failed = sum(job.status in ("failed", "cancelled") for job in members)
    unfinished = sum(job.status not in QueueMachine.final for job in members)
    return unfinished, failed, then.members - unfinished - failed


def in_group(job: Any) -> bool:
    """Tell whether a change to a job may have locked the row of a group, or what waits for it."""
    return job.waits_for is not None or (job.group is not None and job.claim is None)
