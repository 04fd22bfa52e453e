"""Runs of any kind: whatever handlers do, and whenever the worker is stopped, no job is lost.

The seed of a run is in its failure: ``FUZZ_SEED=7 pytest tests/contract/worker/test_fuzz.py``.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, delete, event, select
from sqlalchemy.orm import Session

from sa_jobqueue import JobQueue
from sa_jobqueue.worker import Cancel, Retry, Worker
from tests.contract.worker.faults import deadlock
from tests.models import Task

SOON = timedelta(milliseconds=10)

#: Runs in CI, and with --full.
FEW, MANY = 2, 40

#: A run that takes longer hangs.
LONGEST = 60


class Run:
    """Workers one after the other: each is stopped at some moment, and the last one drains.

    Attributes:
        begun: how often the handler of each job began, without attempts that are given back.
        ended: how often a handler has ended each job for good.
    """

    def __init__(self, engine: Engine, seed: int, alias: str) -> None:
        self.random = random.Random(seed)
        self.begun: Counter[str] = Counter()
        self.ended: Counter[str] = Counter()
        self._engine = engine
        self._alias = alias
        self._one_of = self.random.choice([0, 0, 15, 60])
        self._lock = threading.Lock()
        self.jobs = [f"job {number}" for number in range(self.random.randint(1, 80))]

    def handle(self, task: Task) -> Retry | Cancel | None:
        with self._lock:
            self.begun[task.name] += 1
            kind, seconds = self.random.random(), self.random.choice([0, 0, 0, 0.001, 0.02])
            last = self.begun[task.name] == 4
            self.ended[task.name] += last or kind >= 0.4
        time.sleep(seconds)
        if kind < 0.2 and not last:
            return Retry(timedelta(0))
        if kind < 0.4:
            raise ValueError("of the handler")
        return Cancel("enough") if kind < 0.5 else None

    def before(self, connection: Any, *_: Any) -> None:
        """Let some statements fail, with an error that passes."""
        if self._one_of and self.random.randrange(self._one_of) == 0:
            raise deadlock(self._alias)

    def work(self) -> None:
        for _ in range(self.random.randint(0, 3)):
            worker = self._worker()
            stop = threading.Timer(self.random.random() / 10, worker.stop)
            stop.start()
            self._end_of(worker)
            stop.join()
        self._end_of(self._worker(drain=True))

    def _worker(self, **options: Any) -> Worker[Task]:
        concurrency = self.random.choice([1, 2, 3, 8])
        even, odd = (JobQueue(Task, Task.priority == number) for number in (0, 1))
        for queue in (even, odd):
            queue.handler(self.handle)
        return Worker(
            self._engine,
            [even, odd],
            concurrency=concurrency,
            limit=concurrency + self.random.choice([0, 0, 1, 10]),
            interval=timedelta(seconds=self.random.choice([0, 0, 0, 0.01])),
            poll=SOON,
            backoff=lambda attempts: SOON,
            reap_every=None,
            **options,
        )

    def _end_of(self, worker: Worker[Task]) -> None:
        errors: list[BaseException] = []

        def run() -> None:
            try:
                worker.run()
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        thread.join(LONGEST)
        assert not thread.is_alive()
        assert not errors, errors


@pytest.mark.timeout(1200)
def test_each_job_is_handled_as_often_as_its_attempts_say(
    engine: Engine,
    session: Session,
    db_alias: str,
    full: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sa_jobqueue.worker.transactions.SHORTEST_PAUSE", timedelta(milliseconds=2))
    first = int(os.environ.get("FUZZ_SEED", random.randrange(10**6)))
    for seed in range(first, first + (MANY if full else FEW)):
        run = Run(engine, seed, db_alias)
        session.execute(delete(Task))
        session.add_all(
            Task(name=name, priority=run.random.randint(0, 1), max_attempts=4) for name in run.jobs
        )
        session.commit()
        event.listen(engine, "before_cursor_execute", run.before)
        try:
            run.work()
        finally:
            event.remove(engine, "before_cursor_execute", run.before)

        session.rollback()
        found = {task.name: task for task in session.scalars(select(Task))}
        told = f"FUZZ_SEED={seed}"
        statuses = Counter(task.status for task in found.values())
        assert statuses.keys() <= {"done", "failed", "cancelled"}, told
        assert {name: task.attempts for name, task in found.items()} == run.begun, told
        assert run.ended == Counter(run.jobs), told
