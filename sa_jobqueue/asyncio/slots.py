"""The slots of an AsyncWorker: tasks that await handlers, and do turns in greenlets.

A handler is awaited outside of the worker's greenlets. To switch from a greenlet to a handler and
back took 5 % of the instructions of a job that does nothing, in batches of a hundred.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import cached_property
from typing import Any, TypeVar

from sqlalchemy.orm.attributes import instance_state
from sqlalchemy.util import greenlet_spawn

from ..process.runtime import Background
from ..worker.attempts import Attempts
from ..worker.crew import Crew
from ..worker.detached import log_changes
from ..worker.in_hand import Batch, InHand
from .calls import AwaitedCalls
from .tasks import Background as Task

T = TypeVar("T")


class AwaitedAttempts(Attempts[T]):
    """The attempts of an AsyncWorker."""

    @cached_property
    def _awaited(self) -> Callable[..., Awaitable[Any]]:
        assert isinstance(self.calls, AwaitedCalls)
        return self.calls.awaited

    async def make_awaited(self, in_hand: InHand[T]) -> None:
        """Await the handler of a job, and note the outcome; as :meth:`make` does."""
        lane, job = in_hand.lane, in_hand.job
        try:
            try:
                returned = await self._awaited(lane, self.begin(in_hand), job)
            finally:
                if instance_state(job).modified:
                    log_changes(in_hand)
            outcome = None if returned is None else lane.outcome_of(returned)
        except BaseException as raised:
            self.note_error(in_hand, raised)
        else:
            self.note_outcome(in_hand, outcome)


class AwaitedCrew(Crew[T]):
    """The tasks of one run. No other task runs while one does not wait, so none takes a lock."""

    def _start_slot(self, name: str) -> Background:
        return Task(self._await_in_slot(), name)

    async def _await_in_slot(self) -> None:
        """Do turns, and await handlers, until the run ends."""
        hands, attempts, handled = self.hands, self.attempts, None
        assert isinstance(attempts, AwaitedAttempts)
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
                await attempts.make_awaited(step)
            except BaseException as error:
                handled = self._end_by(error, step)
