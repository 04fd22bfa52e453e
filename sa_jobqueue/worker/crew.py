"""The threads of a worker: slots, where handlers run, and the supervisor, who called run().

A slot handles one job after the other. If it has no job, it does a turn. The supervisor does what
no slot does: it claims while the worker is idle, finishes what waits for long while all
handlers run, does the chores, notices timeouts, and ends the run. On a database in memory, which
only one thread may use, the supervisor is the only slot, too. In an AsyncWorker all are tasks.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Generic, TypeAlias, TypeVar

from ..ages import duration_text
from ..errors import HandlerTimeout
from ..process import Background, Flag, Runtime, function_name
from .chores import Chore
from .handlers import Attempts, tell_lock_lost
from .hands import Hands, Loop
from .in_hand import InHand, log_overdue
from .transactions import PATIENCE, Stopped, cause_of
from .turns import Batch, TurnResult

log = logging.getLogger("sa_jobqueue.worker")

T = TypeVar("T")

Turn: TypeAlias = tuple[Loop[T], Batch[T]]

#: How long to wait for handlers that were interrupted.
INTERRUPTION = timedelta(seconds=5)


@dataclass
class Crew(Generic[T]):
    """The threads of one run.

    Attributes:
        hands: the jobs in hand.
        chores: what the supervisor does at intervals, such as reaping.
        tell: called with what each turn has finished and claimed, after its commit.
        drains: the run ends when no job is left.
        alone: the supervisor is the only slot.
        grace: how long running handlers may go on when the run is to end.
    """

    runtime: Runtime
    hands: Hands[T]
    attempts: Attempts[T]
    chores: Sequence[Chore]
    tell: Callable[[TurnResult[T]], None]
    drains: bool
    stopping: Flag
    grace: timedelta
    alone: bool = False
    _slots: list[Background] = field(default_factory=list)

    def work(self) -> None:
        """Work until the run is to end, and end it.

        Raises:
            BaseException: what has ended the run.
        """
        hands, patience = self.hands, 0.0
        try:
            for number in () if self.alone else range(1, hands.slots + 1):
                self._slots.append(self._start_slot(f"sa_jobqueue handler {number}"))
            try:
                self._supervise()
            except BaseException as error:  # such as KeyboardInterrupt
                with hands:
                    hands.undo_own_turn()
                self._fail(error)
            self._end()
            if not (hands.running or hands.abandoned):
                patience = INTERRUPTION.total_seconds()
        finally:
            with hands:
                hands.end()
            for slot in self._slots:
                slot.join(patience)
        if hands.error is not None:
            raise hands.error

    # -- slots ----------------------------------------------------------

    def _start_slot(self, name: str) -> Background:
        return self.runtime.start(self._work_in_slot, name=name)

    def _work_in_slot(self) -> None:
        """Do turns, and handle jobs, until the run ends."""
        hands, handled = self.hands, None
        while True:
            with hands.lock:
                if handled is not None:
                    hands.put_handled(handled)
                while (step := hands.next_step()) is None:
                    if hands.ended:
                        return
                    hands.wait_in_slot()
            handled = self._do(step)

    def _do(self, step: InHand[T] | Turn[T]) -> InHand[T] | None:
        """Do a turn, or handle a job; return the job if it is to be finished."""
        if isinstance(step, tuple):
            self._do_turn(*step)
            return None
        if step.lost:
            with self.hands:
                self.hands.drop(step)
            return None
        try:
            self.attempts.make(step)
        except BaseException as error:
            return self._end_by(error, step)
        return step

    def _end_by(self, error: BaseException, in_hand: InHand[T]) -> InHand[T] | None:
        """Have the run end with what a handler raised, unless the worker has interrupted it."""
        with self.hands:
            if self.attempts.calls.was_interrupted(error):
                self.hands.put_back(in_hand)
                return None
            self.hands.fail(error)
        return in_hand

    # -- turns ----------------------------------------------------------

    def _do_turn(self, loop: Loop[T], batch: Batch[T]) -> None:
        """Do a turn, and report what it has done; any error ends the run."""
        hands, wanted = self.hands, batch.wanted
        came: list[InHand[T]] = []
        try:
            if wanted:
                batch = self._with_lock_checked(loop, batch)
            result = loop.turns.turn(batch)
        except BaseException as error:
            with hands:
                hands.undo_turn(loop, batch)
            self._fail(error)
            return
        try:
            came = result.in_hand
            self.tell(result)
            if batch.wanted and not came and not result.refused and not result.claim_is_due:
                self._note_nothing()
            put_off = result.claim_is_due or batch.wanted < wanted
            loop.note_claim(result, claimed=bool(batch.wanted), at_once=put_off)
        except BaseException as error:
            self._fail(error)
        finally:
            with hands:
                hands.end_turn(loop, came)

    def _with_lock_checked(self, loop: Loop[T], batch: Batch[T]) -> Batch[T]:
        """Check the lock before a claim; if handled jobs would wait for that, put the claim off.

        A new lock may take minutes, and others reap the jobs of an owner without one.
        """
        name = loop.owner_name
        if not name.is_sure:
            if batch.handled:
                return replace(batch, wanted=0)
            name.check_lock()
        self._tell_loss(loop)
        return batch

    def _tell_loss(self, loop: Loop[T]) -> None:
        """Report that an Owner has lost its lock."""
        if loop.owner_name.was_lost():
            tell_lock_lost(lane.queue for lane in loop.turns.lanes)

    def _note_nothing(self) -> None:
        with self.hands as hands:
            in_hand = not hands.is_empty
        if self.drains and not in_hand and all(loop.turns.is_drained() for loop in hands.loops):
            with hands:
                hands.drained = hands.ending = True
                hands.notice()

    def _fail(self, error: BaseException) -> None:
        """Have the run end with an error."""
        if self.attempts.calls.ends_at_once(error):
            raise error
        if not isinstance(error, Stopped):  # then the run ends anyway
            with self.hands:
                self.hands.fail(error)

    # -- the supervisor -------------------------------------------------

    def _supervise(self) -> None:
        """Do what no slot does, until the run is to end."""
        hands, handled = self.hands, None
        while True:
            with hands:
                if handled is not None:
                    hands.put_handled(handled)
                step = None
                while not self._is_over and step is None:
                    step = hands.next_step() if self.alone else hands.begin_turn(in_slot=False)
                    if step is None:
                        if self._next_chore_at <= time.monotonic():
                            break
                        hands.wait_for_notice(self._next_chore_at)
                if step is None and self._is_over:
                    return
            handled = None
            if step is None:
                self._do_chores()
            else:
                handled = self._do(step)

    @property
    def _is_over(self) -> bool:
        hands = self.hands
        return hands.drained or hands.error is not None or self.stopping.is_set()

    @property
    def _next_chore_at(self) -> float:
        deadlines = [in_hand.deadline or 0.0 for in_hand in self._with_timeout()]
        return min((*deadlines, *(chore.due_at for chore in self.chores)), default=math.inf)

    def _with_timeout(self) -> list[InHand[T]]:
        """Return the running jobs with a timeout that the supervisor must notice."""
        if self.attempts.calls.keeps_timeouts:
            return []
        running = self.hands.running
        return [job for job in running if job.lane.timeout is not None and job.given_up is None]

    def _do_chores(self) -> None:
        now = time.monotonic()
        with self.hands:
            overdue = [job for job in self._with_timeout() if (job.deadline or 0.0) <= now]
        for in_hand in overdue:
            self._give_up(in_hand)
        due = [chore for chore in self.chores if chore.due_at <= now]
        for loop in self.hands.loops if due and not self.stopping.is_set() else ():
            loop.owner_name.check_lock()
            self._tell_loss(loop)
        for chore in due:
            chore.run()

    def _give_up(self, in_hand: InHand[T]) -> None:
        """Fail the attempt of a handler that goes on beyond its timeout, and end the run.

        A transactional handler has locked its row: its transaction is rolled back when it returns.
        """
        lane, hands = in_hand.lane, self.hands
        assert lane.timeout is not None
        error = HandlerTimeout(
            f"{function_name(lane.handler)} still runs after its timeout of "
            f"{duration_text(lane.timeout)}; a thread cannot be stopped, so this worker ends: "
            "replace its process"
        )
        with hands:
            if in_hand not in hands.running:
                return
            if lane.transactional:
                in_hand.given_up = error
            else:
                given_up = copy(in_hand)
                in_hand.given_up = Stopped()  # the attempt is over
                self.attempts.fail(given_up, error)
                hands.running ^= {in_hand, given_up}
                hands.abandoned += 1
                hands.put_handled(given_up)
            hands.fail(error)
        self.stopping.set()

    # -- the end --------------------------------------------------------

    def _end(self) -> None:
        """Give running handlers their grace; finish what was handled, and release the rest."""
        hands, until = self.hands, time.monotonic() + self.grace.total_seconds()
        with hands:
            hands.ending = True
        self._wait_for_handlers(until)
        overdue = tuple(hands.running)
        if overdue and self.attempts.calls.interrupt():
            for in_hand in overdue:
                fate = f"its handler is cancelled, and {_fate_of(in_hand)}"
                log_overdue(in_hand, self.grace, fate)
            self._wait_for_handlers(time.monotonic() + INTERRUPTION.total_seconds())
        with hands:
            while any(loop.in_turn for loop in hands.loops):
                hands.wait_for_notice(math.inf)
            self._give_back_running()
        for loop in hands.loops:
            self._end_loop(loop, until)

    def _end_loop(self, loop: Loop[T], until: float) -> None:
        """Finish and release the last jobs of a database."""
        hands = self.hands
        with hands:
            unstarted = [in_hand for in_hand in hands.unstarted if in_hand.loop is loop]
            if loop.turns.hopeless:
                left = len(unstarted) + len(loop.handled)
                log.error(
                    "%d claimed jobs are not released; a reap returns them to the queue", left
                )
                return
            batch = loop.take(0, unstarted)
        try:
            left_of_grace = timedelta(seconds=max(until - time.monotonic(), 0.0))
            result = loop.turns.end(batch, left_of_grace if self.stopping.is_set() else PATIENCE)
        except Exception as error:
            if hands.error is None:
                raise
            log.error(
                "some claimed jobs are not released; a reap returns them to the queue: %s",
                cause_of(error),
            )
        else:
            self.tell(result)

    def _wait_for_handlers(self, until: float) -> None:
        """Wait until no handler runs; meanwhile finish handled jobs and release unstarted jobs."""
        hands, turn = self.hands, None
        while True:
            with hands:
                while (
                    hands.running
                    and not any(loop.turns.hopeless for loop in hands.loops)
                    and time.monotonic() < until
                    and (turn := hands.begin_ending_turn()) is None
                ):
                    hands.wait_for_notice(until)
            if turn is None:
                return
            self._do_turn(*turn)
            turn = None

    def _give_back_running(self) -> None:
        """Give up the handlers that still run: their jobs are released, or rolled back."""
        for in_hand in tuple(self.hands.running):
            if in_hand.given_up is None:
                in_hand.given_up = Stopped()
            fate = _fate_of(in_hand)
            log_overdue(
                in_hand, self.grace, f"{fate}, and its handler goes on until its process ends"
            )
            if not in_hand.lane.transactional:
                self.hands.put_back(in_hand)
                self.hands.abandoned += 1


def _fate_of(in_hand: InHand[T]) -> str:
    return "its writes are rolled back" if in_hand.lane.transactional else "its job is released"
