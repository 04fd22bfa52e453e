"""The jobs in hand of a worker, and the threads that handle them: slots, and the supervisor.

Handlers run in slots; each slot is a thread (in an event loop a task). A slot takes the next
claimed job. If there is none, and no turn is under way, the slot does the next turn: it finishes
all jobs that were handled meanwhile, and claims for all free slots. A single slot therefore never
waits for another thread, and several slots share their transactions.

The supervisor, who called run(), does what no slot does: it claims while the worker is idle,
finishes what waits for long while all handlers run, does the chores, notices timeouts, and ends the
run. On a database in memory, which only one thread may use, it is the only slot, too.

Each database has a Loop of turns; all loops share the slots. A loop claims again at once while it
finds jobs, else after a growing pause.
"""

from __future__ import annotations

import logging
import random
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from dataclasses import dataclass, field
from datetime import timedelta
from math import inf
from typing import Any, Protocol, TypeAlias

from ..ages import duration_text
from ..errors import HandlerTimeout
from ..process import Background, Flag, Runtime, function_name
from ..wakeups import Wakeups
from .handlers import Calls, tell_lock_lost
from .in_hand import InHand, in_hand_of, log_job
from .lanes import Lane
from .transactions import PATIENCE, Stopped, cause_of
from .turns import Batch, TurnResult, Turns

log = logging.getLogger("sa_jobqueue.worker")

#: Without a limit, jobs are claimed ahead while handlers take no longer than so many seconds.
QUICK = 0.1

#: The longest time that a handled job waits to be finished with others, in seconds.
LONGEST_WAIT = 0.05

#: How long the supervisor sleeps at most, in seconds.
LONGEST_SLEEP = 1.0

#: How long to wait for handlers that were interrupted.
INTERRUPTION = timedelta(seconds=5)

SHORTEST_POLL = timedelta(milliseconds=100)
LONGEST_POLL = timedelta(seconds=2)

#: The longest pause, if `poll` is shorter, while a watcher looks for due jobs in each `poll`.
POLL_BESIDE_LOOKS = timedelta(seconds=10)


class Chore(Protocol):
    """Work that is due now and then, in the supervisor's thread.

    Attributes:
        due_at: when it is due, by time.monotonic(); infinity: never.
    """

    @property
    def due_at(self) -> float: ...

    def run(self) -> None: ...


@dataclass(eq=False)
class Loop:
    """The turns of one database, the jobs that they are to write, and when the next claim is due.

    Attributes:
        poll: the longest pause while no claim finds anything.
        interval: a pause before each claim, in seconds: a turn that finishes jobs then does not
            claim, and a wake-up makes no claim due.
        wakeups: what wakes the worker meanwhile; None: nothing does.
        handled: jobs that are to be finished.
        claim_at: when the next claim is due, by time.monotonic().
        woken_for: for when a wake-up that came after the last claim began makes another claim due.
        oldest: since when a handled job waits to be finished.
        hopeless: why the database has refused for PATIENCE to finish jobs.
    """

    turns: Turns
    poll: timedelta
    interval: float
    wakeups: Wakeups | None
    handled: list[InHand] = field(default_factory=list)
    claim_at: float = 0.0
    woken_for: float = inf
    in_turn: bool = False
    oldest: float = inf
    hopeless: Exception | None = None
    _empty: int = 0  # claims in a row that found nothing

    def wake(self, at: float = 0.0) -> None:
        """Make a claim due now, or at a time, unless there is an interval; it needs no lock."""
        for lane in self.turns.lanes:
            lane.mapping.head.notices += 1
        if not self.interval:
            self.woken_for = min(self.woken_for, at)
            self.claim_at = min(self.claim_at, at)

    def note_turn(self, result: TurnResult, *, claimed: bool) -> None:
        """Decide when the next claim is due, after a turn that has claimed, or has tried to."""
        at_once, found = result.claim_is_due, any(claim for _, claim in result.claims)
        if claimed and not at_once:
            self._empty = 0 if found else self._empty + 1
            if self.wakeups is not None:
                self.wakeups.claimed(found=found)
        pause = self.interval
        if self._empty and not at_once:
            pause = max(pause, self._pause())
        # A wake-up may come just now, by another thread.
        self.claim_at = min(time.monotonic() + pause if pause else 0.0, self.woken_for)

    def _pause(self) -> float:
        longest = self.poll.total_seconds()
        if self.wakeups is not None and self.wakeups.healthy:
            beside = POLL_BESIDE_LOOKS.total_seconds() if self.wakeups.looks else 0.0
            return max(longest, beside) * random.uniform(0.5, 1.0)
        pause: float = SHORTEST_POLL.total_seconds() * 2 ** min(self._empty - 1, 20)
        return min(pause, longest) * random.uniform(0.5, 1.0)


#: A turn that has begun.
Turn: TypeAlias = tuple[Loop, Batch]


@dataclass(eq=False)
class Crew:
    """The jobs in hand, and the threads of one run.

    Change them while you hold `lock`, which keeps other threads out.

    Args:
        loops: one for each database.
        tell: called with what each turn has finished and claimed, after its commit.
        stopping: set when the worker is to stop.
        limit: the most jobs in hand; None: one for each slot, and with several slots and quick
            handlers as many again.
        slots: how many handlers run at once.
        grace: how long running handlers may go on when the run is to end.
        drains: the run ends when no job is left.
        alone: the supervisor is the only slot.

    Attributes:
        chores: what the supervisor does at intervals, such as reaping.
        unstarted: claimed jobs whose handler was not called yet, in their order.
        running: jobs whose handler runs.
        ending: no handler is called any more, and nothing is claimed; true while `stopping`, too.
        ended: the run is over, and the slots end.
        error: what ends the run.
        abandoned: how many handlers still run although the worker no longer waits for them.
    """

    runtime: Runtime
    loops: Sequence[Loop]
    calls: Calls
    tell: Callable[[TurnResult], None]
    stopping: Flag
    limit: int | None
    slots: int
    grace: timedelta
    drains: bool
    alone: bool
    chores: list[Chore] = field(default_factory=list)
    unstarted: deque[InHand] = field(default_factory=deque)
    running: set[InHand] = field(default_factory=set)
    ending: bool = False
    ended: bool = False
    error: BaseException | None = None
    abandoned: int = 0

    def __post_init__(self) -> None:
        self._latest = 0.0  # how long the latest handler ran, in seconds
        # Jobs claimed ahead would take the places of other jobs that could run, and a claim would
        # look at the whole queue for jobs that no key allows.
        lanes = [lane for loop in self.loops for lane in loop.turns.lanes]
        self._is_limited_by_keys = any(lane.queue.plan.spec.limits for lane in lanes)
        self._dozes = False  # the supervisor may sleep beyond LONGEST_WAIT
        self.lock = self.runtime.lock()
        self.slot_is_needed = self.runtime.condition(self.lock)
        self._noticed = self.runtime.condition(self.lock)

    def work(self) -> None:
        """Work until the run is to end, and end it.

        Raises:
            BaseException: what has ended the run.
        """
        started: list[Background] = []
        patience = 0.0
        try:
            for number in () if self.alone else range(1, self.slots + 1):
                started.append(self._start_slot(f"sa_jobqueue handler {number}"))
            try:
                self._supervise()
            except BaseException as error:  # such as KeyboardInterrupt
                self._end_by(error)
            self._end()
            if not (self.running or self.abandoned):
                patience = INTERRUPTION.total_seconds()
        finally:
            with self.lock:
                self.ending = self.ended = True
                self.slot_is_needed.notify_all()
            for slot in started:
                slot.join(patience)
        if self.error is not None:
            raise self.error

    @property
    def in_hand(self) -> list[InHand]:
        """All jobs in hand, without those of a turn that is under way."""
        handled = [job for loop in self.loops for job in loop.handled]
        return [*self.unstarted, *self.running, *handled]

    def claimed(self) -> list[InHand]:
        """Return the jobs whose claims are ours; if our lock was lost, under an older name."""
        with self.lock:
            return self.in_hand + [job for loop in self.loops for job in loop.turns.aside]

    # -- slots ----------------------------------------------------------

    def _start_slot(self, name: str) -> Background:
        return self.runtime.start(self._work_in_slot, name=name)

    def _work_in_slot(self) -> None:
        """Do turns, and handle jobs, until the run ends."""
        handled = None
        while True:
            with self.lock:
                if handled is not None:
                    self.put_handled(handled)
                while (step := self.next_step()) is None:
                    if self.ended:
                        return
                    self.slot_is_needed.wait()
            handled = self.do(step)

    def next_step(self) -> InHand | Turn | None:
        """Take the job that a free slot is to handle, or the turn that it is to do."""
        if self.ending or self.stopping.is_set():
            return None
        if not self.unstarted or self._is_unwanted(self.unstarted[0]):
            return self._begin_turn(in_slot=True)
        in_hand = self.unstarted.popleft()
        in_hand.began = time.monotonic()
        self.running.add(in_hand)
        if self._dozes and (self.unstarted or in_hand.lane.timeout is not None):
            self.notice()
        return in_hand

    def do(self, step: InHand | Turn) -> InHand | None:
        """Do a turn, or handle a job; return the job if it is to be finished."""
        if isinstance(step, tuple):
            self._do_turn(*step)
            return None
        if step.ended is None:  # else its claim was lost
            try:
                self.calls.handle(step)
            except BaseException as error:
                return self.end_by_handler(error, step)
        return step

    def end_by_handler(self, error: BaseException, in_hand: InHand) -> InHand | None:
        """Have the run end with what a handler raised, unless the worker has interrupted it."""
        with self.lock:
            if self.calls.was_interrupted(error):
                self._put_back(in_hand)
                return None
            self._fail(error)
        return in_hand

    def put_handled(self, in_hand: InHand) -> None:
        """Note that a handler has ended, unless it was given up before."""
        if in_hand not in self.running:
            return
        self.running.remove(in_hand)
        loop: Loop = in_hand.loop
        loop.handled.append(in_hand)
        self._latest = in_hand.duration
        if loop.oldest == inf and in_hand.ended is None:
            loop.oldest = time.monotonic()
        if self.ending:
            self.notice()

    def _put_back(self, in_hand: InHand) -> None:
        """Note that a job was not handled after all."""
        if in_hand in self.running:
            self.running.remove(in_hand)
            self.unstarted.appendleft(in_hand)
            self.notice()

    # -- turns ----------------------------------------------------------

    def _begin_turn(self, *, in_slot: bool) -> Turn | None:
        """Begin the next turn that is due, if its loop has none under way.

        Args:
            in_slot: a free slot does the turn; False: the supervisor does.
        """
        if self.ending or self.stopping.is_set():
            return None
        now = time.monotonic()
        for loop in self.loops:
            if loop.in_turn or (not (in_slot and loop.handled) and now < self._due_at(loop)):
                continue
            claims = now >= self._claim_at(loop) or (bool(loop.handled) and not loop.interval)
            if claims:
                loop.woken_for = inf
            return loop, self._take(loop, self._free if claims else 0)
        return None

    def _take(self, loop: Loop, wanted: int) -> Batch:
        """Begin a turn; return what it is to do."""
        loop.in_turn = True
        unwanted = [job for job in self.unstarted if job.loop is loop and self._is_unwanted(job)]
        if unwanted:
            self.unstarted = deque(job for job in self.unstarted if job not in unwanted)
        handled, loop.handled, loop.oldest = loop.handled, [], inf
        return Batch(handled, unwanted, wanted)

    def _is_unwanted(self, in_hand: InHand) -> bool:
        """Tell whether a claimed job is to be released: its lane is paused, or the run ends."""
        return self.ending or in_hand.lane.whole in in_hand.loop.turns.paused

    def _do_turn(self, loop: Loop, batch: Batch) -> None:
        """Do a turn, and report what it has done; any error ends the run."""
        came: list[InHand] = []
        try:
            if batch.wanted and not batch.handled:  # they do not wait for a lock, perhaps minutes
                self._check_lock(loop)
            result = loop.turns.turn(batch)
        except BaseException as error:
            with self.lock:
                loop.oldest = time.monotonic()
                loop.handled[:0] = batch.handled
                self._end_turn(loop, batch.unhandled)
                if batch.handled and isinstance(error, Exception):
                    loop.hopeless = error
            self._end_by(error)
            return
        try:
            came = [job for lane, claim in result.claims for job in in_hand_of(lane, claim)]
            self.tell(result)
            if batch.wanted and not came:
                result.claim_is_due |= not loop.turns.owner_name.is_sure
            if batch.wanted and not (came or result.refused or result.claim_is_due):
                self._note_nothing()
            if batch.wanted or batch.handled:
                loop.note_turn(result, claimed=bool(batch.wanted))
        except BaseException as error:
            self._end_by(error)
        finally:
            with self.lock:
                self._end_turn(loop, came)

    def _end_turn(self, loop: Loop, came: Sequence[InHand]) -> None:
        """Note that a turn is over, and what it has claimed."""
        loop.in_turn = False
        for in_hand in came:
            in_hand.loop = loop
        self.unstarted.extend(came)
        if self.unstarted and len(self.running) < self.slots:
            self.slot_is_needed.notify(len(self.unstarted))
        elif loop.handled:
            self.slot_is_needed.notify(1)  # nobody is due to finish them yet
        if self.ending or (self._dozes and len(self.unstarted) + len(self.running) < self.slots):
            self.notice()

    def _check_lock(self, loop: Loop) -> None:
        """Take a new lock if that of the Owner was lost: others may reap its claims."""
        if loop.turns.owner_name.check_lock():
            tell_lock_lost(lane.queue for lane in loop.turns.lanes)

    def _note_nothing(self) -> None:
        """End a drain if no job is left."""
        if self.drains and not self.in_hand and all(each.turns.is_drained() for each in self.loops):
            with self.lock:
                self.ending = True
                self.notice()

    def _end_by(self, error: BaseException) -> None:
        """Have the run end with an error."""
        if self.calls.ends_at_once(error):
            raise error
        if not isinstance(error, Stopped):  # then the run ends anyway
            with self.lock:
                self._fail(error)

    def _fail(self, error: BaseException) -> None:
        """End the run with an error; the first error counts."""
        self.error = self.error or error
        self.ending = True
        self.notice()

    @property
    def _free(self) -> int:
        """How many more jobs may be in hand."""
        return max(self.slots + self._ahead - len(self.unstarted) - len(self.running), 0)

    @property
    def _ahead(self) -> int:
        """How many jobs may wait for a slot."""
        if self.limit is not None:
            return self.limit - self.slots
        if self.slots == 1 or self._is_limited_by_keys:
            return 0
        return self.slots if 0 < self._latest <= QUICK else 0

    def _due_at(self, loop: Loop) -> float:
        """When a turn is due, also if no slot is free to do it."""
        if any(self._is_unwanted(job) for job in self.unstarted if job.loop is loop):
            return 0.0
        # A turn that has nothing to do gives its connection back.
        kept_until = loop.turns.transactions.kept_until
        return min(self._claim_at(loop), loop.oldest + LONGEST_WAIT, kept_until)

    def _claim_at(self, loop: Loop) -> float:
        """When a claim is due: while a slot is idle, or so few jobs wait that one soon will be.

        A single slot claims when it has done all its jobs: its transactions are then largest.
        """
        waiting = len(self.unstarted)
        idle = len(self.running) + waiting < self.slots
        low = self.slots > 1 and waiting <= self._ahead // 2
        return loop.claim_at if (idle or low) and self._free else inf

    def pause(self, loop: Loop, lanes: Iterable[Lane[Any]], paused: Iterable[Lane[Any]]) -> None:
        """Pause some lanes, and let the others go on; a lane that goes on wakes the worker.

        Running jobs are finished. Jobs that were claimed and not started are released.
        """
        before = loop.turns.paused
        loop.turns.paused = (before - frozenset(lanes)) | frozenset(paused)
        if before - loop.turns.paused:
            loop.wake()
        self.notice()

    # -- the supervisor -------------------------------------------------

    def _supervise(self) -> None:
        """Do what no slot does, until the run is to end."""
        handled = None
        while True:
            with self.lock:
                if handled is not None:
                    self.put_handled(handled)
                while True:
                    if self.ending or self.stopping.is_set():
                        return
                    step = self.next_step() if self.alone else self._begin_turn(in_slot=False)
                    chore_at = self._next_chore_at
                    if step is not None or chore_at <= time.monotonic():
                        break
                    self._wait_for_notice(chore_at)
            handled = None
            if step is None:
                self._do_chores()
            else:
                handled = self.do(step)

    @property
    def _next_chore_at(self) -> float:
        if not all(loop.turns.owner_name.is_sure for loop in self.loops):
            return 0.0
        deadlines = [in_hand.deadline or 0.0 for in_hand in self._with_timeout()]
        return min((*deadlines, *(chore.due_at for chore in self.chores)), default=inf)

    def _with_timeout(self) -> list[InHand]:
        """Return the running jobs with a timeout that the supervisor must notice."""
        if self.calls.keeps_timeouts:
            return []
        return [job for job in self.running if job.lane.timeout and job.given_up is None]

    def _do_chores(self) -> None:
        now = time.monotonic()
        with self.lock:
            overdue = [job for job in self._with_timeout() if (job.deadline or 0.0) <= now]
        for in_hand in overdue:
            self._give_up(in_hand)
        due = [chore for chore in self.chores if chore.due_at <= now]
        for loop in self.loops if not self.stopping.is_set() else ():
            self._check_lock(loop)
        for chore in due:
            chore.run()

    def _give_up(self, in_hand: InHand) -> None:
        """Fail the attempt of a handler that goes on beyond its timeout, and end the run.

        A transactional handler has locked its row: its transaction is rolled back when it returns.
        """
        lane = in_hand.lane
        assert lane.timeout is not None
        error = HandlerTimeout(
            f"{function_name(lane.handler)} still runs after its timeout of "
            f"{duration_text(lane.timeout)}; a thread cannot be stopped, so this worker ends: "
            "replace its process"
        )
        with self.lock:
            if in_hand not in self.running:
                return
            if lane.transactional:
                in_hand.given_up = error
            else:
                given_up = copy(in_hand)
                in_hand.given_up = Stopped()  # the attempt is over
                self.calls.fail(given_up, error)
                self.running ^= {in_hand, given_up}
                self.abandoned += 1
                self.put_handled(given_up)
            self._fail(error)
        self.stopping.set()

    def notice(self) -> None:
        """Wake the supervisor."""
        self._dozes = False
        self._noticed.notify_all()

    def _wait_for_notice(self, until: float) -> None:
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

    # -- the end --------------------------------------------------------

    def _end(self) -> None:
        """Give running handlers their grace; finish what was handled, and release the rest."""
        until = time.monotonic() + self.grace.total_seconds()
        with self.lock:
            self.ending = True
        self._wait_for_handlers(until)
        overdue = tuple(self.running)
        if overdue and self.calls.interrupt():
            for in_hand in overdue:
                self._log_overdue(in_hand, "is cancelled")
            self._wait_for_handlers(time.monotonic() + INTERRUPTION.total_seconds())
        with self.lock:
            in_time = time.monotonic() + PATIENCE.total_seconds()
            while any(loop.in_turn for loop in self.loops) and time.monotonic() < in_time:
                self._wait_for_notice(in_time)
            for in_hand in tuple(self.running):  # its job is released, or rolled back
                in_hand.given_up = in_hand.given_up or Stopped()
                self._log_overdue(in_hand, "goes on until its process ends")
                if not in_hand.lane.transactional:
                    self._put_back(in_hand)
                    self.abandoned += 1
        for loop in self.loops:
            self._end_loop(loop, until)

    def _end_loop(self, loop: Loop, until: float) -> None:
        """Finish and release the last jobs of a database."""
        with self.lock:
            batch = self._take(loop, 0)
        left_of_grace = timedelta(seconds=max(until - time.monotonic(), 0.0))
        try:
            if loop.hopeless is not None:
                raise loop.hopeless
            patience = left_of_grace if self.stopping.is_set() else PATIENCE
            result = loop.turns.end(batch, patience)
        except Exception as error:
            if self.error is None:
                raise
            log.error(
                "some claimed jobs are not released; a reap returns them to the queue: %s",
                cause_of(error),
            )
        else:
            self.tell(result)

    def _wait_for_handlers(self, until: float) -> None:
        """Wait until no handler runs; meanwhile finish handled jobs and release unstarted jobs."""
        while True:
            turn: Turn | None = None
            with self.lock:
                while self.running and time.monotonic() < until and turn is None:
                    if any(loop.hopeless for loop in self.loops):
                        return
                    turn = self._begin_ending_turn()
                    if turn is None:
                        self._wait_for_notice(until)
            if turn is None:
                return
            self._do_turn(*turn)

    def _begin_ending_turn(self) -> Turn | None:
        """Begin a turn that finishes and releases, if there is anything to write."""
        for loop in self.loops:
            waits = loop.handled or any(job.loop is loop for job in self.unstarted)
            if waits and not loop.in_turn:
                return loop, self._take(loop, 0)
        return None

    def _log_overdue(self, in_hand: InHand, what: str) -> None:
        """Log that a handler still runs after the grace, and what becomes of it and its job."""
        grace, name = duration_text(self.grace), function_name(in_hand.lane.handler)
        is_released = not in_hand.lane.transactional
        end = "its job is released" if is_released else "its writes are rolled back"
        text = f"still runs {grace} after the worker was asked to stop: {end}, and its handler"
        log_job(log.error, in_hand, f"{text} {what}. The handler is {name}")
