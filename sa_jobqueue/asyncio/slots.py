"""The slots of an AsyncWorker: tasks that await handlers, and do turns in greenlets.

A handler is awaited outside of the worker's greenlets. To switch from a greenlet to a handler and
back took 5 % of the instructions of a job that does nothing, in batches of a hundred.
"""

from __future__ import annotations

from typing import TypeVar

from sqlalchemy.orm.attributes import instance_state
from sqlalchemy.util import greenlet_spawn

from ..process import Background
from ..worker.attempts import log_changes
from ..worker.crew import Crew
from ..worker.in_hand import Batch, InHand
from .calls import AwaitedCalls
from .tasks import Background as BackgroundTask

T = TypeVar("T")


class AwaitedCrew(Crew[T]):
    """The tasks of one run. A task runs alone until it waits, so it needs no lock."""

    def _start_slot(self, name: str) -> Background:
        return BackgroundTask(self._await_in_slot(), name)

    async def _await_in_slot(self) -> None:
        """Do turns, and await handlers, until the run ends; as a slot in a thread does."""
        hands, handled = self.hands, None
        while True:
            if handled is not None:
                hands.put_handled(handled)
            while (step := hands.next_step()) is None:
                if hands.ended:
                    return
                await greenlet_spawn(hands.wait_in_slot)
            if isinstance(step, Batch) or step.lost or step.lane.transactional:
                handled = await greenlet_spawn(self._do, step)
                continue
            handled = step
            try:
                await self._attempt(step)
            except BaseException as error:
                handled = self._end_by(error, step)

    async def _attempt(self, in_hand: InHand[T]) -> None:
        """Await the handler of a job, and note the outcome; as Attempts.make() does."""
        attempts, lane, job = self.attempts, in_hand.lane, in_hand.job
        assert isinstance(attempts.calls, AwaitedCalls)
        try:
            try:
                returned = await attempts.calls.awaited(lane, attempts.begin(in_hand), job)
            finally:
                if instance_state(job).modified:
                    log_changes(in_hand)
            outcome = None if returned is None else lane.outcome_of(returned)
        except BaseException as raised:
            attempts.note_error(in_hand, raised)
        else:
            attempts.note_outcome(in_hand, outcome)
