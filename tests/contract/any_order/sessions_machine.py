"""Several sessions with open transactions, and a model of what is committed.

::

    class QueueMachine(SessionsMachine[Job, InHand]):
        tables = (Task,)

Each worker has a session and may leave its transaction open while others go on. What it
did so far is its own until it commits; what it rolls back has never been. A ledger records each
run, and the checker judges it at the end.

Hypothesis leaves half of the rules out of a run, at random. So each run begins with some
jobs, and a worker that is to finish one claims first if it has none: else hardly a run
would get as far as a finish.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar, Generic, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from sa_jobqueue import Owner
from tests.evidence.checker import check_files
from tests.evidence.ledger import Ledger
from tests.support import with_empty_tables

WORKERS = 3

places = st.integers(0, 30)
workers = st.integers(0, WORKERS - 1)

J = TypeVar("J")
H = TypeVar("H")


@dataclass
class Worker(Generic[J, H]):
    """One session, with what it has claimed and what it has not committed."""

    owner: Owner | str
    session: Session
    hand: dict[int, H] = field(default_factory=dict)
    hand_before: dict[int, H] | None = None
    uncommitted: dict[int, J | None] = field(default_factory=dict)
    locked: set[int] = field(default_factory=set)
    has_claimed: bool = False

    def __post_init__(self) -> None:
        self.name = self.owner if isinstance(self.owner, str) else self.owner.name

    def leave(self) -> None:
        """Close the session; a worker's Owner is dead from now on."""
        self.session.close()
        if isinstance(self.owner, Owner):
            self.owner.close()

    def change(self, jobs: dict[int, J | None]) -> None:
        """Record changes that only this worker sees."""
        if self.hand_before is None:
            self.hand_before = dict(self.hand)
        self.uncommitted.update(jobs)


class SessionsMachine(RuleBasedStateMachine, Generic[J, H]):
    """Workers, each in its own session, and the model that changes along with the table."""

    engine: Engine
    tables: ClassVar[tuple[type[Any], ...]]

    def __init__(self) -> None:
        super().__init__()
        self.jobs: dict[int, J] = {}
        self.workers: list[Worker[J, H]] = []
        self.claims = 0
        self.numbers = count()

    @initialize()
    def begin(self) -> None:
        with_empty_tables(self.engine, self.tables[0].metadata)
        self.one_writer = self.engine.dialect.name == "sqlite"
        # A claim may skip a row that InnoDB has locked beside another.
        self.locks_neighbours = self.engine.dialect.name in ("mysql", "mariadb")
        self.folder = TemporaryDirectory()
        self.history = Path(self.folder.name, "history.jsonl")
        self.ledger = Ledger(self.history).listen(self.tables[0])
        self.observer = Session(self.engine)
        self.stranger = Worker[J, H]("stranger", Session(self.engine))
        self.workers = [self._hire(number) for number in range(WORKERS)]
        self._fill()

    def _hire(self, number: int) -> Worker[J, H]:
        """Open the session of a worker: every second one is an Owner, the others have names."""
        name = f"worker-{number}-{next(self.numbers)}"
        owner = Owner(self.engine, name) if number % 2 else name
        if isinstance(owner, Owner):
            owner.open()
        return Worker(owner, Session(self.engine, expire_on_commit=False))

    def _fill(self) -> None:
        """Add the jobs that a run begins with."""
        raise NotImplementedError

    def teardown(self) -> None:
        for worker in self.workers:
            worker.leave()
        if self.workers:
            self.stranger.leave()
            self.observer.close()
            self.ledger.close()
            with self.folder:
                faults = check_files(self.history, skew=timedelta(0))
            assert not faults, "\n".join(line for fault in faults for line in fault.story())

    # -- the ends of transactions ---------------------------------------

    @rule(worker=workers)
    def commit(self, worker: int) -> None:
        self._commit(self.workers[worker])

    @rule(worker=workers)
    def roll_back(self, worker: int) -> None:
        self._roll_back(self.workers[worker])

    def _commit(self, worker: Worker[J, H]) -> None:
        worker.session.commit()
        self._has_committed(worker)

    def _has_committed(self, worker: Worker[J, H]) -> None:
        for number, job in worker.uncommitted.items():
            if job is None:
                del self.jobs[number]
            else:
                self.jobs[number] = job
        worker.uncommitted, worker.hand_before, worker.locked = {}, None, set()
        worker.has_claimed = False

    def _roll_back(self, worker: Worker[J, H]) -> None:
        worker.session.rollback()
        self._has_rolled_back(worker)

    def _has_rolled_back(self, worker: Worker[J, H]) -> None:
        if worker.hand_before is not None:
            worker.hand = worker.hand_before
        worker.uncommitted, worker.hand_before, worker.locked = {}, None, set()
        worker.has_claimed = False

    def _turn_of(self, number: int) -> Worker[J, H]:
        worker = self.workers[number]
        self._let_write(worker)
        return worker

    def _let_write(self, worker: Worker[J, H] | None) -> None:
        """Commit the other workers where the database has a single writer."""
        for other in self.workers if self.one_writer else ():
            if other is not worker:
                self._commit(other)

    # -- what a worker has ----------------------------------------------

    def _in_hand(self, worker: Worker[J, H], place: int) -> int | None:
        """Pick a job that a worker has claimed; None where it can have none."""
        if not worker.hand:
            self._claim_for(worker, place)
        return one_of(worker.hand, place)

    def _claim_for(self, worker: Worker[J, H], place: int) -> None:
        """Have a worker claim some jobs; the subclass chooses which."""
        raise NotImplementedError

    # -- what a session sees --------------------------------------------

    @staticmethod
    def _there(jobs: Any) -> dict[int, Any]:
        """Leave out the jobs whose rows are deleted."""
        return {number: job for number, job in jobs.items() if not job.deleted}

    def _seen_by(self, worker: Worker[J, H]) -> dict[int, J | None]:
        return {**self.jobs, **worker.uncommitted}

    def _is_locked(self, number: int, by_others_than: Worker[J, H] | None = None) -> bool:
        """Tell whether a transaction that is open has changed a job, or may have locked it."""
        return any(
            number in worker.uncommitted or number in worker.locked
            for worker in (*self.workers, self.stranger)
            if worker is not by_others_than
        )

    def _free_one_of(
        self, jobs: Iterable[int], place: int, worker: Worker[J, H] | None = None
    ) -> int | None:
        number = one_of(jobs, place)
        return None if number is None or self._is_locked(number, worker) else number

    def _is_changed(self, number: int, by_others_than: Worker[J, H] | None = None) -> bool:
        """Tell whether a transaction of others has changed a job and is open."""
        return any(
            number in worker.uncommitted for worker in self.workers if worker is not by_others_than
        )

    def _check_claimed(
        self, numbers: list[int], waiting: list[int], worker: Worker[J, H], limit: int
    ) -> None:
        """Compare what was claimed with what waits, in claim order."""
        assert not self.stranger.locked.intersection(numbers)
        if not self.locks_neighbours:
            free = [number for number in waiting if not self._is_locked(number, worker)]
            assert numbers == free[:limit]
            return
        unchanged = [number for number in waiting if not self._is_changed(number, worker)]
        assert numbers == [number for number in unchanged if number in numbers]
        assert len(numbers) <= limit
        worker.has_claimed = True

    def _let_write_without_wait(self, writer: Worker[J, H] | None = None) -> None:
        """Commit the workers for whom a write could wait.

        A claim on InnoDB may keep locks of index entries that it has passed over: of rows that
        others had locked, of entries that are deleted and not purged, and of the first one
        behind those that it looked for.
        """
        for other in self.workers:
            if other is not writer and other.has_claimed:
                self._commit(other)


def one_of(jobs: Iterable[int], place: int) -> int | None:
    """Pick a job; None where there is none."""
    numbers = sorted(jobs)
    return numbers[place % len(numbers)] if numbers else None
