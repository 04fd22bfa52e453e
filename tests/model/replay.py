"""Run a trace of the model by the verbs, and compare the table with the model after each step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import pytest
from sqlalchemy import Engine, select
from sqlalchemy.orm import Session

from sa_jobqueue import ClaimLost, Fence, JobQueue, Owner, cancel, claimed_by, reap, retry
from tests.contract.round_models import Subscriber as Job
from tests.model.traces import Row, Step, Trace

#: As in model/configurations.qnt.
KEYS = {1: 1, 2: 1, 3: 2}
MAX_ATTEMPTS = 3
OWNERS, PLAIN = ("a~", "b~"), {"c": "c", "d": "c"}

AT_ONCE, NEVER = timedelta(microseconds=1), timedelta(days=1)


#: A queue for each row, so that the model says which row is claimed; their keys are shared.
QUEUES = {row: JobQueue(Job, Job.id == row, serial_by=Job.kind) for row in KEYS}


class Worker:
    """A session with a name, and the fences of what it has claimed."""

    def __init__(self, engine: Engine, name: str, owner: Owner | None) -> None:
        self.engine = engine
        self.owner = owner
        self.name = name if owner is None else owner.name
        self.session = Session(engine)
        self.held: dict[int, Fence] = {}
        self._before = dict(self.held)
        self._maybe: set[datetime] = set()

    def claim(self, step: Step) -> None:
        """Claim one row."""
        owner = self.owner or self.name
        claimed = QUEUES[step.row].claim(self.session, owner=owner, limit=1)
        assert len(claimed) == 1
        self.held[step.row] = claimed.fences[0]

    def renew(self, step: Step) -> None:
        """Renew a claim."""
        QUEUES[step.row].renew(self.session, self.held[step.row])

    def finish(self, step: Step) -> None:
        """End a claim in the way that the model chose."""
        queue, fence = QUEUES[step.row], self.held.pop(step.row)
        verbs: dict[str, Callable[[Session, Fence], None]] = {
            "done": queue.complete,
            "failed": partial(queue.fail, retry_in=timedelta(0)),
            "released": queue.release,
            "cancelled": queue.cancel_claimed,
        }
        verbs[step.how](self.session, fence)

    def findLost(self, step: Step) -> None:  # noqa: N802 - the action's name in the model
        """Finish a claim that is somebody else's by now."""
        with pytest.raises(ClaimLost):
            QUEUES[step.row].complete(self.session, self.held.pop(step.row))

    def commit(self, step: Step) -> None:
        """Commit what this worker did."""
        self.session.commit()
        self._before = dict(self.held)

    def rollback(self, step: Step) -> None:
        """Take back what this worker did."""
        self.session.rollback()
        self.held = dict(self._before)

    def loseAnswer(self, step: Step) -> None:  # noqa: N802 - the action's name in the model
        """Lose the answer of a COMMIT: it happened, or not; the session is gone."""
        if step.flag:
            self.session.commit()
        self.session.close()
        self.session = Session(self.engine)
        fences = [*self._before.values(), *self.held.values()]
        self._maybe = {date for fence in fences for date in fence.token.dates}

    def look(self, step: Step) -> None:
        """Look for the rows that bear this worker's name, and a date of its own claims."""
        with Session(self.engine) as session:
            claimed = claimed_by(session, Job, self.name)
            found = zip(claimed, claimed.fences, strict=True)
            self.held = {job.id: fence for job, fence in found if fence.owner_date in self._maybe}
        self._before = dict(self.held)

    def die(self, step: Step) -> None:
        """Do nothing any more."""

    def loseLock(self, step: Step) -> None:  # noqa: N802 - the action's name in the model
        """Lose the lock of the name."""
        assert self.owner is not None
        self.owner.close()

    def cutOff(self, step: Step) -> None:  # noqa: N802 - the action's name in the model
        """End the connection of a dead worker."""
        self.end()

    def end(self) -> None:
        """Close the session."""
        self.session.close()


class Replay:
    """The workers of a trace, and the dates of the model in the table's own."""

    def __init__(self, engine: Engine, workers: dict[str, Worker]) -> None:
        self.engine = engine
        self.workers = workers
        self._dates: dict[tuple[int, int], datetime] = {}

    def run(self, trace: Trace) -> None:
        """Take each step, and compare."""
        for number, step in enumerate(trace):
            self.take(step)
            found = self.rows()
            assert found.keys() == step.rows.keys()
            for key, row in step.rows.items():
                self.compare(key, row, found[key], f"step {number}, {step.action}: row {key}")

    def take(self, step: Step) -> None:
        """Take a step by a verb."""
        if step.action not in ("reap", "cancel", "retry"):
            getattr(self.workers[step.worker], step.action)(step)
            return
        with Session(self.engine) as session, session.begin():
            if step.action == "reap":
                reap(session, Job, lease=AT_ONCE if step.flag else NEVER)
            else:
                verb = cancel if step.action == "cancel" else retry
                assert verb(session, session.get_one(Job, step.row))

    def rows(self) -> dict[int, Any]:
        """Read what is committed."""
        columns = (Job.id, Job.status, Job.owner, Job.owner_date, Job.attempts)
        with Session(self.engine) as session:
            return {row.id: row for row in session.execute(select(*columns))}

    def compare(self, key: int, expected: Row, found: Any, where: str) -> None:
        """Compare a row with the model's; equal dates of a row are equal dates in the table."""
        assert (found.status, found.attempts) == (expected.status, expected.attempts), where
        if expected.status != "claimed":
            return
        assert found.owner == self.workers[expected.owner].name, where
        known = self._dates.setdefault((key, expected.date), found.owner_date)
        assert known == found.owner_date, where
        assert list(self._dates.values()).count(known) == 1, where


@contextmanager
def replaying(engine: Engine) -> Iterator[Replay]:
    """Give a replay on fresh rows."""
    with Session(engine) as session:
        for row, key in KEYS.items():
            session.add(Job(id=row, kind=key, max_attempts=MAX_ATTEMPTS))
        session.commit()
    with ExitStack() as stack:
        owners = {name: stack.enter_context(Owner(engine, name[:-1])) for name in OWNERS}
        workers = {name: Worker(engine, name, owner) for name, owner in owners.items()}
        workers |= {worker: Worker(engine, name, None) for worker, name in PLAIN.items()}
        for worker in workers.values():
            stack.callback(worker.end)
        yield Replay(engine, workers)
