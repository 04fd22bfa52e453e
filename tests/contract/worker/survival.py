"""Jobs that a worker handles while its database fails again and again."""

from __future__ import annotations

from collections import Counter
from typing import Protocol

from sqlalchemy import URL, Engine, select
from sqlalchemy.orm import Session

from tests.contract.worker.fault_injection import REFUSED, FaultInjection
from tests.models import Task

SEED = 20261122

#: How many faults a worker survives: in CI, and with --full.
FEW, MANY = 25, 500


class Stoppable(Protocol):
    """A Worker or an AsyncWorker."""

    def stop(self) -> None: ...


class Survival:
    """A worker's run that goes on until all faults have happened and all jobs were handled.

    Args:
        engine: the worker's own, of any driver.
        url: the same database by a synchronous driver.
        faults: how many.

    Attributes:
        worker: is told to stop in the end.
        handled: how often each job was handled.
    """

    worker: Stoppable

    def __init__(self, engine: Engine, url: URL, *, faults: int) -> None:
        self.faults = FaultInjection(
            engine, url, seed=SEED, wanted=faults, when_over=self._stop_when_handled
        )
        self.handled: Counter[str] = Counter()
        self._names = [f"job {number}" for number in range(faults)]
        self._told = False

    def add_jobs(self, session: Session) -> None:
        """Commit as many jobs as there will be faults, each to be tried once."""
        session.add_all(Task(name=name, max_attempts=1) for name in self._names)
        session.commit()

    def handle(self, task: Task) -> None:
        """Note that a job was handled; from the first one on, things go wrong."""
        self.handled[task.name] += 1
        self.faults.begin()

    def _stop_when_handled(self) -> None:
        if len(self.handled) == len(self._names):
            self._told = True
            self.worker.stop()

    def check(self, session: Session, *, every_kind: bool) -> None:
        """Expect that the worker ended when told, and each job was handled and finished once."""
        assert self._told
        assert self.handled == Counter(self._names)
        ended = {task.name: task for task in session.scalars(select(Task))}
        assert Counter(task.status for task in ended.values()).keys() <= {"done", "failed"}
        failed = [task for task in ended.values() if task.status == "failed"]
        assert all("the finish was refused" in str(task.last_error) for task in failed)
        refused = sum(count for (what, _), count in self.faults.seen.items() if what == REFUSED)
        assert 2 * len(failed) <= refused  # together with others, and again alone
        if every_kind:
            assert set(self.faults.seen) == set(self.faults.kinds)
