"""The jobs in hand: those to be started, those that run, and those to be finished.

Handlers run in slots; each slot is a thread (in an event loop a task). A slot takes the next
claimed job. If there is none, and no turn is under way, the slot does the next turn: it finishes
all jobs that were handled meanwhile, and claims for all free slots. A single slot therefore never
waits for another thread, and several slots share their transactions. The supervisor does a turn
when no slot is free: when a claim of an idle worker is due, or a handled job has waited for long.

Call all methods within ``with hands:``, or while you hold its lock, which keeps other threads out.

A worker claims again at once while it finds jobs, else after a growing pause.
"""

from __future__ import annotations

import math
import random
import time
from collections import deque
from collections.abc import Iterable
from datetime import timedelta
from math import inf
from typing import Generic, TypeVar

from ..process import Flag, Runtime
from ..wakeups import Wakeups
from .in_hand import Batch, InHand
from .lanes import Lane

T = TypeVar("T")


#: Without a limit, jobs are claimed ahead that will begin within so many seconds.
AHEAD = 0.1

#: The weight of a handler's time in the mean of all times.
WEIGHT = 0.1

#: The longest time that a handled job waits to be finished with others, in seconds.
LONGEST_WAIT = 0.05

#: How long the supervisor sleeps at most, in seconds.
LONGEST_SLEEP = 1.0


class Hands(Generic[T]):
    """The jobs in hand of a worker.

    Args:
        stopping: set when the worker is to stop.
        limit: the most jobs in hand; None: one for each slot, and with several slots also those
            that will begin within AHEAD.
        slots: how many handlers run at once.
        has_interval: whether there is a pause before each claim: a turn that finishes jobs does not
            claim, and a wake-up makes no claim due.

    Attributes:
        unstarted: claimed jobs whose handler was not called yet, in their order.
        running: jobs whose handler runs.
        handled: jobs that are to be finished.
        unwanted: claimed jobs of lanes at rest, which are to be released.
        at_rest: lanes whose jobs are neither claimed nor started.
        claim_at: when the next claim is due, by time.monotonic().
        woken: a wake-up came after the last claim began, so another claim is due.
        ending: no handler is called any more, and nothing is claimed; true while `stopping`, too.
        ended: the run is over, and the slots end.
        drained: nothing is left that the run should wait for.
        error: what ends the run.
        hopeless: no further turn can succeed.
        abandoned: how many handlers still run although the worker no longer waits for them.
    """

    def __init__(
        self,
        runtime: Runtime,
        stopping: Flag,
        *,
        limit: int | None,
        slots: int,
        has_interval: bool = False,
    ) -> None:
        self._stopping = stopping
        self._limit = limit
        # How long handlers run, in seconds; the latest weigh most. Kept only without a limit.
        self._mean = 0.0
        self.slots = slots
        self.has_interval = has_interval
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
        self._oldest = inf  # since when a handled job waits to be finished
        self._watched = False  # the supervisor looks again before a job has waited for long
        self._unseen = False  # a handled job waits, and the supervisor may sleep for long
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
        if self._unseen or in_hand.lane.timeout is not None or (self.slots > 1 and self._is_low):
            self.notice()
        return in_hand

    def put_handled(self, in_hand: InHand[T]) -> None:
        """Note that a handler has ended, unless it was given up before."""
        try:
            self.running.remove(in_hand)
        except KeyError:
            return
        self.handled.append(in_hand)
        if self._limit is None:
            self._mean += (in_hand.duration - self._mean) * WEIGHT
        if self._oldest == inf and in_hand.ended is None:
            self._oldest = time.monotonic()
            self._unseen = not self._watched
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
        """Forget a job: it needs nothing more."""
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
            in_slot: a free slot does the turn; False: the supervisor does.
        """
        if self._in_turn or self.ending or self._stopping.is_set():
            return None
        now = time.monotonic()
        if not (in_slot and self.handled) and now < self._due_at:
            return None
        claims = now >= self.claim_at or (bool(self.handled) and not self.has_interval)
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
        """Note that the supervisor was interrupted at any moment of a turn."""
        if self._own_turn is not None:
            self.undo_turn(self._own_turn)

    @property
    def in_turn(self) -> bool:
        """Whether a turn is under way."""
        return self._in_turn

    @property
    def is_empty(self) -> bool:
        """Whether no job is in hand; jobs in a turn are not counted."""
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
        self._oldest, self._unseen = inf, False
        return handled

    def _take_unwanted(self) -> tuple[InHand[T], ...]:
        unwanted, self.unwanted = self.unwanted, []
        return tuple(unwanted)

    def _put_aside(self) -> None:
        """Let the next turn release the unstarted jobs of lanes at rest."""
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
        """Whether so few jobs wait that more should be claimed before a slot is idle.

        A single slot claims when it has done all its jobs: its transactions are then largest.
        """
        return self._free > 0 and len(self.unstarted) <= self._ahead // 2

    @property
    def _claim_due_at(self) -> float:
        """When a claim is due because a slot is idle, or soon will be."""
        idle = len(self.running) + len(self.unstarted) < self.slots and self._free > 0
        return self.claim_at if idle or (self.slots > 1 and self._is_low) else inf

    @property
    def _due_at(self) -> float:
        """When a turn is due, also if no slot is free to do it."""
        return 0.0 if self.unwanted else min(self._claim_due_at, self._oldest + LONGEST_WAIT)

    # -- the supervisor -------------------------------------------------

    def wake(self) -> None:
        """Make a claim due now, unless there is an interval.

        It needs no lock, unlike other methods, but a notice() after it.
        """
        if not self.has_interval:
            self.woken = True
            self.claim_at = 0.0

    def next_claim(self, at: float) -> None:
        """Make the next claim due then, or now if a wake-up came during the last claim."""
        self.claim_at = at
        if self.woken:
            self.claim_at = 0.0

    def call_slot(self) -> None:
        """Let a waiting slot do the turn that is due, or the supervisor if no slot waits."""
        if self._resting:
            self._slot_is_needed.notify()
        else:
            self.notice()

    def notice(self) -> None:
        """Wake the supervisor."""
        self._unseen = False
        self._noticed.notify_all()

    def wait_for_notice(self, until: float) -> None:
        """Wait until something is to be noticed, or a turn is due.

        Args:
            until: wait no longer, by time.monotonic().
        """
        now = time.monotonic()
        due_at = inf if self._in_turn or self.ending else self._due_at
        self._watched = self._in_turn or self._oldest < inf
        if self._watched:
            due_at = min(due_at, now + LONGEST_WAIT)
        # A signal handler may give its notice between our look and our wait, which misses it.
        pause = min(until - now, due_at - now, LONGEST_SLEEP)
        if pause > 0:
            self._noticed.wait(pause)
        self._watched = False

    def let_rest(self, lanes: Iterable[Lane[T]], at_rest: Iterable[Lane[T]]) -> None:
        """Let some lanes rest and the others go on; a lane that goes on wakes the worker.

        Running jobs are finished. Jobs that were claimed and not started are released.
        """
        before = self.at_rest
        self.at_rest = (before - frozenset(lanes)) | frozenset(at_rest)
        if before - self.at_rest:
            self.wake()
        self._put_aside()
        self.notice()

    def fail(self, error: BaseException) -> None:
        """End the run with an error; the first error counts."""
        self.error = self.error or error
        self.ending = True
        self.notice()

    def note_drained(self) -> None:
        """End the run: nothing is left to do."""
        self.drained = self.ending = True
        self.notice()

    def end(self) -> None:
        """Let the slots end."""
        self.ending = self.ended = True
        self._slot_is_needed.notify_all()
        self.notice()


SHORTEST_POLL = timedelta(milliseconds=100)
LONGEST_POLL = timedelta(seconds=2)

#: The longest pause, if `poll` is shorter, while a watcher looks for due jobs in each `poll`.
POLL_BESIDE_LOOKS = timedelta(seconds=10)


class Idle:
    """The pauses between the claims of a worker.

    Args:
        poll: the longest pause while nothing is found.
        interval: a pause before each claim, to limit the load.
        wakeups: what wakes the worker meanwhile; None: nothing does.
    """

    def __init__(
        self, *, poll: timedelta, interval: timedelta, wakeups: Wakeups | None = None
    ) -> None:
        self._wakeups = wakeups
        self._longest = poll.total_seconds()
        self._interval = interval.total_seconds()
        self._empty = 0  # claims in a row that found nothing

    def claim_at(
        self, *, claimed: bool, found: bool, at_once: bool, held_until: float = math.inf
    ) -> float:
        """Return when the next claim is due, by time.monotonic().

        Args:
            claimed: the turn has claimed, or has tried to.
            found: it has claimed jobs.
            at_once: the turn has not made its claim; the next turn makes it.
            held_until: by time.monotonic(), when a queue that was left alone may be claimed from.
        """
        if claimed and not at_once:
            self._empty = 0 if found else self._empty + 1
            if self._wakeups is not None:
                self._wakeups.claimed(found=found)
        pause = self._interval
        if self._empty and not at_once:
            pause = max(pause, min(self._poll(), held_until - time.monotonic()))
        return time.monotonic() + pause if pause else 0.0

    def _poll(self) -> float:
        if self._wakeups is not None and self._wakeups.healthy:
            beside = POLL_BESIDE_LOOKS.total_seconds() if self._wakeups.looks else 0.0
            return max(self._longest, beside) * random.uniform(0.5, 1.0)
        shortest: float = min(SHORTEST_POLL.total_seconds(), self._longest)
        poll: float = min(shortest * 2 ** min(self._empty - 1, 20), self._longest)
        return poll * random.uniform(0.5, 1.0)
