"""The jobs in hand: those to be started, those that run, and those to be finished.

Handlers run in slots; each slot is a thread (in an event loop a task). A slot takes the next
claimed job. If there is none, and no turn is under way, the slot does the next turn: it finishes
all jobs that were handled meanwhile, and claims for all free slots. A single slot therefore never
waits for another thread, and several slots share their transactions. The supervisor does a turn
when no slot is free: when a claim of an idle worker is due, or a handled job has waited for long.

Each database has a Loop of turns; all loops share the slots. A loop claims again at once while it
finds jobs, else after a growing pause.

Call all methods within ``with hands:``, or while you hold its lock, which keeps other threads out.
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from math import inf
from typing import Generic, TypeVar

from ..process import Flag, Runtime
from ..wakeups import Wakeups
from .in_hand import InHand
from .lanes import Lane
from .transactions import OwnerName
from .turns import Batch, TurnResult, Turns

T = TypeVar("T")

#: Without a limit, jobs are claimed ahead that will begin within so many seconds.
AHEAD = 0.1

#: The weight of a handler's time in the mean of all times.
WEIGHT = 0.1

#: The longest time that a handled job waits to be finished with others, in seconds.
LONGEST_WAIT = 0.05

#: How long the supervisor sleeps at most, in seconds.
LONGEST_SLEEP = 1.0

SHORTEST_POLL = timedelta(milliseconds=100)
LONGEST_POLL = timedelta(seconds=2)

#: The longest pause, if `poll` is shorter, while a watcher looks for due jobs in each `poll`.
POLL_BESIDE_LOOKS = timedelta(seconds=10)


@dataclass(eq=False)
class Loop(Generic[T]):
    """The turns of one database, the jobs that they are to write, and when the next claim is due.

    Attributes:
        poll: the longest pause while no claim finds anything.
        interval: a pause before each claim, in seconds: a turn that finishes jobs then does not
            claim, and a wake-up makes no claim due.
        wakeups: what wakes the worker meanwhile; None: nothing does.
        handled: jobs that are to be finished.
        unwanted: claimed jobs of paused lanes, which are to be released.
        claim_at: when the next claim is due, by time.monotonic().
        woken_for: for when a wake-up that came after the last claim began makes another claim due.
        oldest: since when a handled job waits to be finished.
    """

    turns: Turns[T]
    owner_name: OwnerName
    poll: timedelta
    interval: float
    wakeups: Wakeups | None
    handled: list[InHand[T]] = field(default_factory=list)
    unwanted: list[InHand[T]] = field(default_factory=list)
    claim_at: float = 0.0
    woken_for: float = inf
    in_turn: bool = False
    oldest: float = inf
    _empty: int = 0  # claims in a row that found nothing

    def take(self, wanted: int, unhandled: Iterable[InHand[T]] = ()) -> Batch[T]:
        """Begin a turn; return what it is to do."""
        self.in_turn = True
        handled, self.handled, self.oldest = self.handled, [], inf
        unwanted, self.unwanted = self.unwanted, []
        return Batch(handled, (*unwanted, *unhandled), wanted)

    def wake(self, at: float = 0.0) -> None:
        """Make a claim due now, or at a time, unless there is an interval; it needs no lock."""
        for lane in self.turns.lanes:
            lane.mapping.head.notices += 1
        if not self.interval:
            self.woken_for = min(self.woken_for, at)
            self.claim_at = min(self.claim_at, at)

    def note_claim(self, result: TurnResult[T], *, claimed: bool, at_once: bool) -> None:
        """Decide when the next claim is due, after a turn.

        Args:
            claimed: the turn has claimed, or has tried to.
            at_once: the turn has not made its claim; the next turn makes it.
        """
        found = any(claim for _, claim in result.claims)
        if claimed and not at_once:
            self._empty = 0 if found else self._empty + 1
            if self.wakeups is not None:
                self.wakeups.claimed(found=found)
        now, pause = time.monotonic(), self.interval
        if self._empty and not at_once:
            until = inf if found else self.turns.held_until
            pause = max(pause, min(self._pause(), until - now))
        self.claim_at = min(now + pause if pause else 0.0, self.woken_for)

    def _pause(self) -> float:
        longest = self.poll.total_seconds()
        if self.wakeups is not None and self.wakeups.healthy:
            beside = POLL_BESIDE_LOOKS.total_seconds() if self.wakeups.looks else 0.0
            return max(longest, beside) * random.uniform(0.5, 1.0)
        pause: float = SHORTEST_POLL.total_seconds() * 2 ** min(self._empty - 1, 20)
        return min(pause, longest) * random.uniform(0.5, 1.0)


class Hands(Generic[T]):
    """The jobs in hand of a worker.

    Args:
        stopping: set when the worker is to stop.
        limit: the most jobs in hand; None: one for each slot, and with several slots also those
            that will begin within AHEAD.
        slots: how many handlers run at once.

    Attributes:
        loops: one for each database.
        unstarted: claimed jobs whose handler was not called yet, in their order.
        running: jobs whose handler runs.
        ending: no handler is called any more, and nothing is claimed; true while `stopping`, too.
        ended: the run is over, and the slots end.
        drained: nothing is left that the run should wait for.
        error: what ends the run.
        abandoned: how many handlers still run although the worker no longer waits for them.
    """

    def __init__(self, runtime: Runtime, stopping: Flag, *, limit: int | None, slots: int) -> None:
        self._stopping = stopping
        self._limit = limit
        # How long handlers run, in seconds; the latest weigh most. Kept only without a limit.
        self._mean = 0.0
        self.slots = slots
        self.loops: list[Loop[T]] = []
        self.unstarted: deque[InHand[T]] = deque()
        self.running: set[InHand[T]] = set()
        self.ending = self.ended = self.drained = False
        self.error: BaseException | None = None
        self.abandoned = 0
        self._own_turn: tuple[Loop[T], Batch[T]] | None = None  # of the supervisor
        self._resting = 0  # slots that wait for something to do
        self._dozes = False  # the supervisor may sleep beyond LONGEST_WAIT
        self.lock = runtime.lock()
        self._slot_is_needed = runtime.condition(self.lock)
        self._noticed = runtime.condition(self.lock)

    def __enter__(self) -> Hands[T]:
        self.lock.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.lock.__exit__(None, None, None)

    # -- slots ----------------------------------------------------------

    def next_step(self) -> InHand[T] | tuple[Loop[T], Batch[T]] | None:
        """Take the job that a free slot is to handle, or the turn that it is to do."""
        if self.ending or self._stopping.is_set():
            return None
        if not self.unstarted:
            return self.begin_turn(in_slot=True)
        in_hand = self.unstarted.popleft()
        in_hand.began = time.monotonic()
        self.running.add(in_hand)
        if self._dozes and (self.unstarted or in_hand.lane.timeout is not None):
            self.notice()
        return in_hand

    def put_handled(self, in_hand: InHand[T]) -> None:
        """Note that a handler has ended, unless it was given up before."""
        try:
            self.running.remove(in_hand)
        except KeyError:
            return
        loop: Loop[T] = in_hand.loop
        loop.handled.append(in_hand)
        if self._limit is None:
            self._mean += (in_hand.duration - self._mean) * WEIGHT
        if loop.oldest == inf and in_hand.ended is None:
            loop.oldest = time.monotonic()
        if self.ending:
            self.notice()

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

    def begin_turn(self, *, in_slot: bool) -> tuple[Loop[T], Batch[T]] | None:
        """Begin the next turn that is due, if its loop has none under way.

        Args:
            in_slot: a free slot does the turn; False: the supervisor does.
        """
        if self.ending or self._stopping.is_set():
            return None
        now = time.monotonic()
        for loop in self.loops:
            if loop.in_turn or (not (in_slot and loop.handled) and now < self._due_at(loop)):
                continue
            claims = now >= loop.claim_at or (bool(loop.handled) and not loop.interval)
            if claims:
                loop.woken_for = inf
            turn = loop, loop.take(self._free if claims else 0)
            self._own_turn = None if in_slot else turn
            return turn
        return None

    def begin_ending_turn(self) -> tuple[Loop[T], Batch[T]] | None:
        """Begin a turn that finishes and releases, if there is anything to write."""
        for loop in self.loops:
            unstarted = [in_hand for in_hand in self.unstarted if in_hand.loop is loop]
            if not loop.in_turn and (loop.handled or loop.unwanted or unstarted):
                self.unstarted = deque(each for each in self.unstarted if each.loop is not loop)
                self._own_turn = loop, loop.take(0, unstarted)
                return self._own_turn
        return None

    def end_turn(self, loop: Loop[T], came: Sequence[InHand[T]] = ()) -> None:
        """Note that a turn is over, and what it has claimed."""
        loop.in_turn, self._own_turn = False, None
        for in_hand in came:
            in_hand.loop = loop
        self.unstarted.extend(came)
        self._put_aside(loop)
        if self.unstarted and len(self.running) < self.slots:
            self._slot_is_needed.notify(len(self.unstarted))
        elif loop.handled:
            self._slot_is_needed.notify(1)  # nobody is due to finish them yet
        if self.ending or (self._dozes and len(self.unstarted) + len(self.running) < self.slots):
            self.notice()

    def undo_turn(self, loop: Loop[T], batch: Batch[T]) -> None:
        """Note that a turn was interrupted: its jobs are still in hand."""
        loop.oldest = time.monotonic()
        loop.handled[:0] = batch.handled
        self.end_turn(loop, batch.unhandled)

    def undo_own_turn(self) -> None:
        """Note that the supervisor was interrupted at any moment of a turn."""
        if self._own_turn is not None:
            self.undo_turn(*self._own_turn)

    @property
    def is_empty(self) -> bool:
        """Whether no job is in hand; jobs in a turn are not counted."""
        return not self.all

    @property
    def all(self) -> list[InHand[T]]:
        """All jobs in hand, without those of a turn that is under way."""
        waiting = [job for loop in self.loops for job in (*loop.handled, *loop.unwanted)]
        return [*self.unstarted, *self.running, *waiting]

    def _put_aside(self, loop: Loop[T]) -> None:
        """Let the next turn release the unstarted jobs of paused lanes."""
        paused = loop.turns.paused
        if paused:
            unwanted = [each for each in self.unstarted if each.lane.whole in paused]
            loop.unwanted += unwanted
            self.unstarted = deque(each for each in self.unstarted if each not in unwanted)

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

    def _due_at(self, loop: Loop[T]) -> float:
        """When a turn is due, also if no slot is free to do it.

        A claim is due while a slot is idle, or so few jobs wait that one soon will be. A single
        slot claims when it has done all its jobs: its transactions are then largest.
        """
        if loop.unwanted:
            return 0.0
        waiting = len(self.unstarted)
        idle = len(self.running) + waiting < self.slots
        low = self.slots > 1 and waiting <= self._ahead // 2
        claim_at = loop.claim_at if (idle or low) and self._free else inf
        return min(claim_at, loop.oldest + LONGEST_WAIT)

    # -- the supervisor -------------------------------------------------

    def call_slot(self) -> None:
        """Let a waiting slot do the turn that is due, or the supervisor if no slot waits."""
        if self._resting:
            self._slot_is_needed.notify()
        else:
            self.notice()

    def notice(self) -> None:
        """Wake the supervisor."""
        self._dozes = False
        self._noticed.notify_all()

    def wait_for_notice(self, until: float) -> None:
        """Wait until something is to be noticed, or a turn is due.

        Args:
            until: wait no longer, by time.monotonic().
        """
        # A signal handler may give its notice between our look and our wait, which misses it.
        now = time.monotonic()
        until = min(until, now + LONGEST_SLEEP)
        if not self.ending:
            soon = now + LONGEST_WAIT
            due = [soon if loop.in_turn else self._due_at(loop) for loop in self.loops]
            until = min(until, *due, soon if self.unstarted else inf)
        if until > now:
            self._dozes = until > now + LONGEST_WAIT
            self._noticed.wait(until - now)
            self._dozes = False

    def pause(self, loop: Loop[T], lanes: Iterable[Lane[T]], paused: Iterable[Lane[T]]) -> None:
        """Pause some lanes, and let the others go on; a lane that goes on wakes the worker.

        Running jobs are finished. Jobs that were claimed and not started are released.
        """
        before = loop.turns.paused
        loop.turns.paused = (before - frozenset(lanes)) | frozenset(paused)
        if before - loop.turns.paused:
            loop.wake()
        self._put_aside(loop)
        self.notice()

    def fail(self, error: BaseException) -> None:
        """End the run with an error; the first error counts."""
        self.error = self.error or error
        self.ending = True
        self.notice()

    def end(self) -> None:
        """Let the slots end."""
        self.ending = self.ended = True
        self._slot_is_needed.notify_all()
        self.notice()
