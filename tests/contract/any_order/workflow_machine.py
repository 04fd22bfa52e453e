"""The machine of a queue with the steps of a workflow, which waits for signals and keeps a log.

The log must have exactly the transitions that were committed, each of them legal.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule
from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from sa_jobqueue.workflow import NotWaiting
from tests.contract.any_order.queue_machine import LEASE, MAX_ATTEMPTS, Move, QueueMachine
from tests.contract.any_order.sessions_machine import places, workers
from tests.videos import S, Video, VideoLog, videos

WORKFLOW = videos()


class WorkflowMachine(QueueMachine):
    """The verbs of a workflow and of its steps."""

    tables = (Video, VideoLog)
    steps = WORKFLOW.steps
    waiting = (*(step.ready for step in WORKFLOW.steps), S.AT_FARM)
    final = (S.PUBLISHED, S.REJECTED, "failed", "cancelled")

    def _new(self, **columns: Any) -> Any:
        return Video(title="video", max_attempts=MAX_ATTEMPTS, **columns)

    def _forget(self, session: Session, numbers: list[int]) -> None:
        if self.one_writer:
            session.execute(delete(VideoLog).where(VideoLog.video_id.in_(numbers)))

    def _cancel(self, session: Session, job: Any) -> list[Any]:
        return WORKFLOW.cancel(session, job)

    def _retry(self, session: Session, job: Any, step: Any) -> list[Any]:
        return WORKFLOW.retry(session, job, step.ready)

    def _reap(self, session: Session) -> Any:
        return WORKFLOW.reap(session, lease=LEASE)

    @rule(
        worker=workers,
        place=places,
        after=st.sampled_from([S.RENDERED, S.REJECTED]),
        waiting=st.booleans(),
    )
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
