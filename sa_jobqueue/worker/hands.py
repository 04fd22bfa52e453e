"""The jobs in hand: which are to be started, which run, which are to be finished.

Handlers run in slots, each a thread (in an event loop a task). A slot takes the next job that was
claimed; when there is none, it does the next turn itself, unless a turn is under way: it finishes
all jobs that were handled meanwhile, and claims for all free slots. So one slot alone never
waits for another thread, and several share their transactions. The supervisor does a turn when no
slot is free to do it: when a claim of an idle worker is due, or a handled job waits for long.

All methods are called within ``with hands:``, or within that of its lock, which keeps other threads
out.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterable
from typing import Generic, TypeVar

from ..process.runtime import Flag, Runtime
from .in_hand import Batch, InHand
from .lanes import Lane

T = TypeVar("T")

#: Jobs are claimed ahead that begin within so many seconds, unless there is a limit.
AHEAD = 0.1

#: What a handler's time counts in the mean of all before.
WEIGHT = 0.1

#: How long a handled job waits for others to be finished with, at most, in seconds.
LONGEST_WAIT = 0.05

#: How long the supervisor sleeps at most, in seconds.
LONGEST_SLEEP = 1.0


class Hands(Generic[T]):
    """The jobs in hand of a worker.

    Args:
        stopping: set when the worker is to stop.
        limit: the most jobs in hand; None: one for each slot, and of several slots as many more
            as are about to begin within AHEAD.
        slots: how many handlers run at once.
        claims_with_finishes: whether a turn that finishes jobs claims, too; False where there is
            a pause between the two.

    Attributes:
        unstarted: claimed jobs whose handler was not called yet, in their order.
        running: jobs whose handler runs.
        handled: jobs that are to be finished.
        unwanted: claimed jobs of lanes at rest, which are to be released.
        at_rest: lanes whose jobs are neither claimed nor started.
        claim_at: when the next claim is due, by time.monotonic().
        woken: something has happened since the last claim began, and another claim is due.
        ending: no handler is called any more, and nothing is claimed. Also while `stopping`.
        ended: the run is over, and the slots end.
        drained: nothing is left that the run should wait for.
        error: what ends the run.
        hopeless: no further turn is worth a try.
        abandoned: how many handlers go on although nobody waits for them any more.
    """

    def __init__(
        self,
        runtime: Runtime,
        stopping: Flag,
        *,
        limit: int | None,
        slots: int,
        claims_with_finishes: bool = True,
    ) -> None:
        self._stopping = stopping
        self._limit = limit
        self._mean = 0.0  # how long handlers run, in seconds, the latest ones above all
        self.slots = slots
        self.claims_with_finishes = claims_with_finishes
        self.unstarted: deque[InHand[T]] = deque()
        self.running: set[InHand[T]] = set()
        self.handled: list[InHand[T]] = []
        self.unwanted: list[InHand[T]] = []
        self.at_rest: frozenset[Lane[T]] = frozenset()
        self.claim_at = 0.0
        self.woken = False
        self.ending = self.ended = self.drained = self.hopeless = False
        self.error: BaseException | None = None
        self._in_turn = False
        self.abandoned = 0
        self._own_turn: Batch[T] | None = None  # of the supervisor
        self._oldest = math.inf  # since when a handled job waits to be finished
        self._watched = False  # the supervisor looks again before a job has waited for long
        self._resting = 0  # slots that wait for something to do
        self.lock = runtime.lock()
        self._slot_is_needed = runtime.condition(self.lock)
        self._noticed = runtime.condition(self.lock)

    def __enter__(self) -> Hands[T]:
        self.lock.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.lock.__exit__(None, None, None)

    # -- slots ----------------------------------------------------------

    def next_step(self) -> InHand[T] | Batch[T] | None:
        """Take the job that a free slot is to handle, or the turn that it is to do."""
        if self.ending or self._stopping.is_set():
            return None
        if not self.unstarted:
            return self.begin_turn(in_slot=True)
        in_hand = self.unstarted.popleft()
        in_hand.began = time.monotonic()
        self.running.add(in_hand)
        unwatched = self._oldest < math.inf and not self._watched
        if unwatched or in_hand.lane.timeout is not None or (self.slots > 1 and self._is_low):
            self.notice()
        return in_hand

    def put_handled(self, in_hand: InHand[T]) -> None:
        """Note that a handler has ended, unless it was given up before."""
        if in_hand not in self.running:
            return
        self.running.remove(in_hand)
        self.handled.append(in_hand)
        self._mean += (in_hand.duration - self._mean) * WEIGHT
        if in_hand.ended is None and self._oldest == math.inf:
            self._oldest = time.monotonic()
        if self.ending:
            self.notice()

    def abandon(self, in_hand: InHand[T], given_up: InHand[T]) -> None:
        """Note that a job is to be finished although its handler goes on."""
        self.running.discard(in_hand)
        self.running.add(given_up)
        self.abandoned += 1
        self.put_handled(given_up)

    def put_back(self, in_hand: InHand[T]) -> None:
        """Note that a job was not handled after all."""
        if in_hand in self.running:
            self.running.remove(in_hand)
            self.unstarted.appendleft(in_hand)
            self.notice()

    def drop(self, in_hand: InHand[T]) -> None:
        """Forget a job: there is nothing to do for it any more."""
        self.running.discard(in_hand)
        self.notice()

    def wait_in_slot(self) -> None:
        """Wait for a job, or for a turn to do."""
        self._resting += 1
        try:
            self._slot_is_needed.wait()
        finally:
            self._resting -= 1

    # -- turns ----------------------------------------------------------

    def begin_turn(self, *, in_slot: bool) -> Batch[T] | None:
        """Begin the next turn, if one is due and none is under way.

        Args:
            in_slot: it is done in a slot that is free; else by the supervisor.
        """
        if self._in_turn or self.ending or self._stopping.is_set():
            return None
        now = time.monotonic()
        if not (in_slot and self.handled) and now < self._due_at:
            return None
        claims = now >= self.claim_at or (bool(self.handled) and self.claims_with_finishes)
        if claims:
            self.woken = False
        free = self._free if claims else 0
        batch = Batch(self._take_handled(), self._take_unwanted(), free)
        return self._begin(batch, in_slot=in_slot)

    def begin_ending_turn(self) -> Batch[T] | None:
        """Begin a turn that finishes and releases, if there is anything to write."""
        if self._in_turn or not (self.handled or self.unstarted or self.unwanted):
            return None
        unhandled = (*self._take_unwanted(), *self.unstarted)
        self.unstarted.clear()
        return self._begin(Batch(self._take_handled(), unhandled), in_slot=False)

    def end_turn(self, came: Iterable[InHand[T]] = ()) -> None:
        """Note that the turn is over, and what it has claimed."""
        self._in_turn, self._own_turn = False, None
        self.unstarted.extend(came)
        self._put_aside()
        if self.unstarted and len(self.running) < self.slots:
            self._slot_is_needed.notify(len(self.unstarted))
        elif self.handled:
            self._slot_is_needed.notify(1)  # nobody is due to finish them yet
        if self.ending or not self._watched:
            self.notice()

    def undo_turn(self, batch: Batch[T]) -> None:
        """Note that a turn was interrupted: its jobs are still in hand."""
        self._oldest = time.monotonic()
        self.handled[:0] = batch.handled
        self.end_turn(batch.unhandled)

    def undo_own_turn(self) -> None:
        """Note that the supervisor was interrupted, in whatever moment of a turn."""
        if self._own_turn is not None:
            self.undo_turn(self._own_turn)

    @property
    def in_turn(self) -> bool:
        """Whether a turn is under way."""
        return self._in_turn

    @property
    def is_empty(self) -> bool:
        """Whether no job is in hand; a turn's own are not counted."""
        return not (self.unstarted or self.running or self.handled or self.unwanted)

    @property
    def all(self) -> list[InHand[T]]:
        """All jobs in hand, without those of a turn that is under way."""
        return [*self.unstarted, *self.running, *self.handled, *self.unwanted]

    def _begin(self, batch: Batch[T], *, in_slot: bool) -> Batch[T]:
        self._own_turn = None if in_slot else batch
        self._in_turn = True
        return batch

    def _take_handled(self) -> list[InHand[T]]:
        handled, self.handled = self.handled, []
        self._oldest = math.inf
        return handled

    def _take_unwanted(self) -> tuple[InHand[T], ...]:
        unwanted, self.unwanted = self.unwanted, []
        return tuple(unwanted)

    def _put_aside(self) -> None:
        """Have jobs of lanes at rest released that were not started."""
        if not self.at_rest:
            return
        self.unwanted += (job for job in self.unstarted if job.lane in self.at_rest)
        self.unstarted = deque(job for job in self.unstarted if job.lane not in self.at_rest)

    @property
    def _free(self) -> int:
        """How many more jobs may be in hand."""
        return max(self.slots + self._ahead - len(self.unstarted) - len(self.running), 0)

    @property
    def _ahead(self) -> int:
        """How many jobs may wait for a slot."""
        if self._limit is not None:
            return self._limit - self.slots
        if self.slots == 1 or not self._mean:
            return 0
        return min(self.slots, int(self.slots * AHEAD / self._mean))

    @property
    def _is_low(self) -> bool:
        """Whether so few jobs wait for a slot that others should be claimed before it is idle.

        One slot alone claims when it has done its jobs: so its transactions are as large as can be.
        """
        return self._free > 0 and len(self.unstarted) <= self._ahead // 2

    @property
    def _claim_due_at(self) -> float:
        """When a claim is due for the sake of a slot that is idle, or soon will be."""
        idle = len(self.running) + len(self.unstarted) < self.slots and self._free > 0
        return self.claim_at if idle or (self.slots > 1 and self._is_low) else math.inf

    @property
    def _due_at(self) -> float:
        """When a turn is due, also if no slot is free to do it."""
        return 0.0 if self.unwanted else min(self._claim_due_at, self._oldest + LONGEST_WAIT)

    # -- the supervisor -------------------------------------------------

    def wake(self) -> None:
        """Have a claim be due now; alone of all methods it needs no lock, but a notice after it."""
        self.woken = True
        self.claim_at = 0.0

    def next_claim(self, at: float) -> None:
        """Have the next claim be due then, or now if something has happened during the last."""
        self.claim_at = at
        if self.woken:
            self.claim_at = 0.0

    def call_slot(self) -> None:
        """Have a slot that waits do the turn that is due, or the supervisor if none does."""
        if self._resting:
            self._slot_is_needed.notify()
        else:
            self.notice()

    def notice(self) -> None:
        """Have the supervisor look."""
        self._noticed.notify_all()

    def wait_for_notice(self, until: float) -> None:
        """Wait until something is to be noticed, or a turn is due.

        Args:
            until: wait no longer, by time.monotonic().
        """
        now = time.monotonic()
        due_at = math.inf if self._in_turn or self.ending else self._due_at
        self._watched = self._in_turn or self._oldest < math.inf
        if self._watched:
            due_at = min(due_at, now + LONGEST_WAIT)
        # A signal handler may give its notice between our look and our wait, which misses it.
        pause = min(until - now, due_at - now, LONGEST_SLEEP)
        if pause > 0:
            self._noticed.wait(pause)
        self._watched = False

    def let_rest(self, lanes: Iterable[Lane[T]], at_rest: Iterable[Lane[T]]) -> None:
        """Let some of these lanes rest, and the others go on; what they claim comes at once.

        The jobs that run are finished; those that were claimed and not started are released.
        """
        before = self.at_rest
        self.at_rest = (before - frozenset(lanes)) | frozenset(at_rest)
        if before - self.at_rest:
            self.wake()
        self._put_aside()
        self.notice()

    def fail(self, error: BaseException) -> None:
        """Have the run end with an error; the first one counts."""
        self.error = self.error or error
        self.ending = True
        self.notice()

    def note_drained(self) -> None:
        """Have the run end: nothing is left to do."""
        self.drained = self.ending = True
        self.notice()

    def end(self) -> None:
        """Let the slots end."""
        self.ending = self.ended = True
        self._slot_is_needed.notify_all()
        self.notice()
