"""The jobs in hand of a worker, and the threads that handle them: slots, and the supervisor.

Handlers run in slots; each slot is a thread (in an event loop a task). A slot takes the jobs of the
next call: one job, or a batch. If there is none, and no turn is under way, the slot does the next
turn: it finishes all jobs that were handled meanwhile, and claims for all free slots. A single slot
therefore never waits for another thread, and several slots share their transactions.

The supervisor, who called run(), does what no slot does: it claims while the worker is idle,
finishes what waits for long while all handlers run, does the chores, notices timeouts, and ends the
run. On a database in memory, which only one thread may use, it is the only slot, too.

Each database has a Loop of turns. A loop claims again at once while it finds jobs, else after a
growing pause.

With several databases, each loop has a thread of its own, which does its turns and its chores, and
waits alone for a database that is away; slots only handle jobs. All loops share the slots. A turn
reserves the slots that it claims for, at first, but none while its database is known to be away; of
loops that wait to claim, the one that has waited for longest is the next.
"""

from __future__ import annotations

import logging
import random
import time
from collections import deque
from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import chain
from math import inf
from typing import Any, NamedTuple

from ..ages import duration_text
from ..errors import HandlerTimeout
from ..events.event import Event, called_on
from ..events.notes import tell
from ..process import Background, Flag, Runtime, function_name
from ..wakeups import Wakeups
from .deadlines import no_deadline
from .handlers import Calls
from .in_hand import Call, InHand, calls_for, log_finished, log_job
from .lanes import Lane
from .named import records_named
from .transactions import PATIENCE, Pauses, Stopped, cause_of
from .turns import Batch, TurnResult, Turns

log = logging.getLogger("sa_jobqueue.worker")

#: Without a limit, jobs are claimed ahead while handlers take no longer than so many seconds.
QUICK = 0.1

#: The longest time that a handled job waits to be finished with others, in seconds.
LONGEST_WAIT = 0.05

#: How long the supervisor sleeps at most, in seconds.
LONGEST_SLEEP = 1.0

#: For how many seconds a turn keeps the free slots from the loops of other databases.
RESERVED = 1.0

#: How long to wait for handlers that were interrupted.
INTERRUPTION = timedelta(seconds=5)

SHORTEST_POLL = timedelta(milliseconds=100)
LONGEST_POLL = timedelta(seconds=2)

#: The longest pause, if `poll` is shorter, while a watcher looks for due jobs in each `poll`.
POLL_BESIDE_LOOKS = timedelta(seconds=10)


@dataclass(eq=False)
class Loop:
    """The turns of one database, the jobs that they are to write, and when the next claim is due.

    Attributes:
        site: the Site whose database it is.
        noticed: the condition that the thread of the turns waits for.
        poll: the longest pause while no claim finds anything.
        interval: a pause before each claim, in seconds: a turn that finishes jobs then does not
            claim, and a wake-up makes no claim due.
        wakeups: what wakes the worker meanwhile; None: nothing does.
        chores: what is done at intervals, such as reaping.
        handled: jobs that are to be finished.
        claim_at: when the next claim is due, by time.monotonic().
        woken_for: for when a wake-up that came after the last claim began makes another claim due.
        oldest: since when a handled job waits to be finished.
        waits: its own thread waits for something to do, so it can begin a claim.
        claimed_at: when the last claim began; the loop that has waited for longest is the next.
        wanted: for how many calls the turn under way reserves slots.
        rests_until: no turn begins before, after an error of a turn in one of several databases.
        drained_at: how many calls of handlers had ended when no job was left for a drain.
    """

    site: Any
    turns: Turns
    noticed: Any
    poll: timedelta
    interval: float
    wakeups: Wakeups | None = None
    chores: list[Any] = field(default_factory=list)
    handled: list[InHand] = field(default_factory=list)
    claim_at: float = 0.0
    woken_for: float = inf
    in_turn: bool = False
    oldest: float = inf
    waits: bool = False
    claimed_at: float = 0.0
    wanted: int = 0
    rests_until: float = 0.0
    drained_at: int = -1
    _pauses: Pauses | None = None
    _empty: int = 0  # claims in a row that found nothing

    @property
    def name(self) -> str | None:
        """The name of its database; None: the worker has one, without a name."""
        name: str | None = self.site.name
        return name

    def rest(self, error: Exception) -> None:
        """Log what a turn was refused, and begin the next turn after a growing pause."""
        self.turns.transactions.trouble = f"a turn failed: {cause_of(error)}"
        text = "a turn failed; the worker tries again, and works in its other databases: %s"
        log.error(text, cause_of(error), exc_info=error if self._pauses is None else None)
        self._pauses = self._pauses or Pauses(1.0, 60.0, spread=0.0)
        self._pauses.next()
        self.rests_until = self._pauses.until

    def wake(self, at: float = 0.0) -> None:
        """Make a claim due now, or at a time, unless there is an interval; it needs no lock."""
        for lane in self.turns.lanes:
            lane.mapping.head.notices += 1
        if not self.interval:
            self.woken_for = min(self.woken_for, at)
            self.claim_at = min(self.claim_at, at)

    def note_turn(self, result: TurnResult, *, claimed: bool) -> None:
        """Decide when the next claim is due, after a turn that has claimed, or has tried to."""
        self._pauses, claims = None, [claim for _, claim in result.claims]
        refills = [c.refills_in.total_seconds() for c in claims if c.refills_in is not None]
        # If rates limit all of them, nobody needs to look for jobs: there are some.
        at_once, found = result.claim_is_due, any(claims) or len(refills) == len(claims) > 0
        if claimed and not at_once:
            self._empty = 0 if found else self._empty + 1
            if self.wakeups is not None:
                self.wakeups.claimed(found=found)
        pause = self.interval
        if self._empty and not at_once:
            pause = max(pause, self._pause())
        if refills and not at_once and not any(c for c in claims if c.refills_in is None):
            pause = max(self.interval, min(*refills, pause or self.poll.total_seconds()))
        # A wake-up may come just now, by another thread.
        self.claim_at = min(time.monotonic() + pause if pause else 0.0, self.woken_for)

    def _pause(self) -> float:
        longest = self.poll.total_seconds()
        if self.wakeups is not None and self.wakeups.healthy:
            beside = POLL_BESIDE_LOOKS.total_seconds() if self.wakeups.looks else 0.0
            return max(longest, beside) * random.uniform(0.5, 1.0)
        pause: float = SHORTEST_POLL.total_seconds() * 2 ** min(self._empty - 1, 20)
        return min(pause, longest) * random.uniform(0.5, 1.0)


class Turn(NamedTuple):
    """A turn that has begun."""

    loop: Loop
    batch: Batch


class Crew:
    """The jobs in hand, and the threads of one run.

    Change them while you hold `lock`, which keeps other threads out.

    Args:
        worker: the Worker, whose options count.
        sites: its databases.

    Attributes:
        several: each loop has a thread of its own.
        loops: one for each database.
        awaited: how many databases are to have a loop, and have none yet.
        alone: the supervisor is the only slot.
        slots: how many handlers run at once.
        unstarted: the calls of handlers that are to come, in their order.
        running: those that run.
        ending: no handler is called any more, and nothing is claimed; true while `stopping`, too.
        ended: the run is over, and the slots end.
        closing: no handler runs any more, and the loops of several databases end.
        calls_ended: how many calls of handlers have ended.
        until: when the grace is over, by time.monotonic().
        error: what ends the run.
        abandoned: how many handlers still run although the worker no longer waits for them.
    """

    def __init__(self, worker: Any, sites: Any) -> None:
        self.worker, self.several, self.patience = worker, sites.several, sites.patience
        self.calls: Calls = sites.calls
        self.loops: Sequence[Loop] = ()
        self.awaited = 0
        self.alone = False
        self.slots: int = worker.concurrency
        self.runtime: Runtime = sites.runtime
        self.stopping: Flag = sites.stopping
        self._notify_from_outside = sites.notify
        self.unstarted: deque[Call] = deque()
        self.running: set[Call] = set()
        self.ending = self.ended = self.closing = False
        self.calls_ended = 0
        self.until = 0.0
        self.error: BaseException | None = None
        self.abandoned = 0
        # How many calls may wait for a slot. With limits by key, jobs claimed ahead would take the
        # places of other jobs that could run, and a claim would look at the whole queue for jobs
        # that no key allows. Jobs of a rate are to begin at once.
        self._ahead = 0 if worker.limit is None else worker.limit - self.slots
        specs = [lane.queue.plan.spec for lane in worker.lanes]
        limited = any(spec.key_limit or spec.rate is not None for spec in specs)
        self._ahead_if_quick = worker.limit is None and self.slots > 1 and not limited
        self._dozes = False  # the supervisor may sleep beyond LONGEST_WAIT
        self.lock = self.runtime.lock()
        self.slot_is_needed = self.runtime.condition(self.lock)
        self._noticed = self.runtime.condition(self.lock)

    def condition(self) -> Any:
        """Return the condition that the thread of a loop's turns waits for."""
        return self.runtime.condition(self.lock) if self.several else self._noticed

    def work(self, loops: Sequence[Loop] = ()) -> None:
        """Work until the run is to end, and end it.

        Args:
            loops: that whose turns the slots and the supervisor do.

        Raises:
            BaseException: what has ended the run.
        """
        self.loops = loops or self.loops
        started: list[Background] = []
        patience = 0.0
        try:
            for number in () if self.alone else range(1, self.slots + 1):
                started.append(self._start_slot(f"sa_jobqueue handler {number}"))
            try:
                self._supervise()
            except BaseException as error:  # such as KeyboardInterrupt
                self.end_by(error)
            self._end()
            if not (self.running or self.abandoned):
                patience = INTERRUPTION.total_seconds()
        finally:
            with self.lock:
                self.ending = self.ended = self.closing = True
                self.slot_is_needed.notify_all()
            for slot in started:
                slot.join(patience)
        if self.error is not None:
            raise self.error

    def claimed(self, loop: Loop) -> list[InHand]:
        """Return the jobs whose claims are a loop's; if our lock was lost, under an older name.

        Those of a turn that is under way are not among them.
        """
        with self.lock:
            jobs = chain(chain.from_iterable(self.unstarted), chain.from_iterable(self.running))
            return [*(j for j in jobs if j.loop is loop), *loop.handled, *loop.turns.aside]

    # -- slots ----------------------------------------------------------

    def _start_slot(self, name: str) -> Background:
        return self.runtime.start(self._work_in_slot, name=name)

    def _work_in_slot(self) -> None:
        """Do turns, and handle jobs, until the run ends."""
        handled = None
        while True:
            with self.lock:
                self.put_handled(handled)
                while (step := self.next_step()) is None:
                    if self.ended:
                        return
                    self.slot_is_needed.wait()
            handled = self.do(step)

    def next_step(self) -> Call | Turn | None:
        """Take the jobs that a free slot is to handle, or the turn that it is to do."""
        if self.ending or self.stopping.is_set():
            return None
        for _ in range(len(self.unstarted)):
            if self._waits_for_turn(self.unstarted[0]):
                if not self.several:
                    break
                self.unstarted.rotate(-1)
                continue
            call, now = self.unstarted.popleft(), time.monotonic()
            first, *others = call
            if others or first.ended is not None:
                call = tuple([each for each in call if each.ended is None])
            if not call:  # their claims were lost
                continue
            for in_hand in call:
                in_hand.began = now
            self.running.add(call)
            if self._dozes and (self.unstarted or call[0].lane.timeout is not None):
                self.notice()
            self._call_next()
            return call
        return None if self.several else self._begin_turn(self.loops, at_once=True)

    def _waits_for_turn(self, call: Call) -> bool:
        """Tell whether a turn is to release jobs, or to finish others before they begin.

        Jobs may be alone because they end processes.
        """
        alone = call[0].lane.batch is not None and len(call) == 1
        return self._is_unwanted(call) or (alone and bool(call[0].loop.handled))

    def do(self, step: Call | Turn) -> Call | None:
        """Do a turn, or handle jobs; return the jobs if they are to be finished."""
        if isinstance(step, Turn):
            self._do_turn(*step)
            return None
        try:
            self.calls.handle(step)
        except BaseException as error:
            return self.end_by_handler(error, step)
        return step

    def end_by_handler(self, error: BaseException, call: Call) -> Call | None:
        """Have the run end with what a handler raised, unless the worker has interrupted it."""
        with self.lock:
            if self.calls.was_interrupted(error):
                self._put_back(call)
                return None
            self.end_by(error)
        return call

    def put_handled(self, call: Call | None) -> None:
        """Note that a handler has ended, unless it was given up before."""
        if call is None or call not in self.running:
            return
        self.running.remove(call)
        self.calls_ended += 1
        loop: Loop = call[0].loop
        loop.handled += call
        if self._ahead_if_quick:
            self._ahead = self.slots if 0 < call[0].duration <= QUICK else 0
        if loop.oldest == inf and None in [each.ended for each in call]:
            loop.oldest = time.monotonic()
        if self.several:
            loop.noticed.notify_all()
            self._call_next()
        if self.ending:
            self.notice()

    def _put_back(self, call: Call) -> None:
        """Note that jobs were not handled after all."""
        if call in self.running:
            self.running.remove(call)
            self.unstarted.appendleft(call)
            self.notice()

    # -- turns ----------------------------------------------------------

    def _begin_turn(self, loops: Sequence[Loop], *, at_once: bool) -> Turn | None:
        """Begin the next turn that is due, if its loop has none under way.

        Args:
            at_once: handled jobs are finished at once; False: after LONGEST_WAIT.
        """
        now = time.monotonic()
        for loop in loops:
            if loop.in_turn or (not (at_once and loop.handled) and now < self._due_at(loop)):
                continue
            claims = not (self.ending or loop.site.leaves) and (
                now >= self._claim_at(loop) or (bool(loop.handled) and not loop.interval)
            )
            if self.several:
                if now < loop.rests_until:
                    continue
                claims = claims and self._next_loop(loop) is loop
                if not (claims or loop.handled or self._due_at(loop, claims=False) <= now):
                    self._call_next()
                    continue
            wanted = self._free if claims else 0
            if claims:
                loop.woken_for = inf
            if wanted:
                loop.claimed_at = now
            return Turn(loop, self._take(loop, wanted))
        return None

    def _next_loop(self, own: Loop | None = None) -> Loop | None:
        """Return the loop of several databases that is to claim next: it has waited for longest.

        Args:
            own: one that is about to claim.
        """
        now = time.monotonic()
        due = [
            loop
            for loop in self.loops
            if loop is own
            or (loop.waits and now >= max(loop.claim_at, loop.rests_until) and not loop.site.leaves)
        ]
        return min(due, key=lambda loop: loop.claimed_at, default=None)

    def _call_next(self) -> None:
        """Wake the loop of several databases that is to claim next, if there is a free slot."""
        if self.several and self._has_room and (loop := self._next_loop()) is not None:
            loop.noticed.notify_all()

    def _take(self, loop: Loop, wanted: int) -> Batch:
        """Begin a turn; return what it is to do."""
        loop.in_turn, loop.wanted = True, wanted
        unwanted = [
            call for call in self.unstarted if call[0].loop is loop and self._is_unwanted(call)
        ]
        if unwanted:
            self.unstarted = deque(call for call in self.unstarted if call not in unwanted)
        handled, loop.handled, loop.oldest = loop.handled, [], inf
        return Batch(handled, [*chain.from_iterable(unwanted)], wanted)

    def _is_unwanted(self, call: Call) -> bool:
        """Tell whether claimed jobs are to be released: their lane is paused, or the run ends."""
        paused = call[0].loop.turns.paused
        return self.ending or (bool(paused) and call[0].lane.whole in paused)

    def _do_turn(self, loop: Loop, batch: Batch) -> None:
        """Do a turn, and report what it has done; any error ends the run."""
        came: list[Call] = []
        calls_ended = self.calls_ended
        try:
            if batch.wanted and not batch.handled:  # they do not wait for a lock, perhaps minutes
                self._check_lock(loop)
            result = loop.turns.turn(batch)
        except BaseException as error:
            with self.lock:
                loop.oldest = time.monotonic()
                loop.handled[:0] = batch.handled
                self._end_turn(loop, [(each,) for each in batch.unhandled])
                if isinstance(error, Exception) and self.patience.is_endless:
                    return loop.rest(error)
                if batch.handled and isinstance(error, Exception):
                    self.patience.end_at = 0.0  # it has lasted for PATIENCE
            return self.end_by(error)
        try:
            came = [call for lane, claim in result.claims for call in calls_for(lane, claim)]
            self._tell(result)
            if batch.wanted and not came:
                result.claim_is_due |= not loop.turns.owner_name.is_sure
                if not (result.refused or result.claim_is_due):
                    self._note_nothing(loop, calls_ended)
            if batch.wanted or batch.handled:
                loop.note_turn(result, claimed=bool(batch.wanted))
        except BaseException as error:
            self.end_by(error)
        finally:
            with self.lock:
                self._end_turn(loop, came)

    def _end_turn(self, loop: Loop, came: Sequence[Call]) -> None:
        """Note that a turn is over, and what it has claimed."""
        loop.in_turn, loop.wanted = False, 0
        for in_hand in chain.from_iterable(came):
            in_hand.loop = loop
        self.unstarted.extend(came)
        if self.unstarted and len(self.running) < self.slots:
            self.slot_is_needed.notify(len(self.unstarted))
        elif loop.handled and not self.several:
            self.slot_is_needed.notify(1)  # nobody is due to finish them yet
        self._call_next()
        if self.ending or (self._dozes and len(self.unstarted) + len(self.running) < self.slots):
            self.notice()

    def _tell(self, result: TurnResult) -> None:
        """Log and call back, after the commit of a turn."""
        log_finished(result.finished)
        on_claim, on_outcome = self.worker.on_claim, self.worker.on_outcome
        if on_outcome is None and on_claim is None:
            return
        with no_deadline():
            if on_outcome is not None:
                for in_hand in result.finished:
                    on_outcome(in_hand.job, in_hand.outcome)
            if on_claim is not None:
                for _, claim in result.claims:
                    if claim or claim.lost:
                        on_claim(claim)

    def _check_lock(self, loop: Loop) -> None:
        """Take a new lock if that of the Owner was lost: others may reap its claims."""
        if loop.turns.owner_name.check_lock():
            for lane in loop.turns.lanes:
                with called_on(lane.queue):
                    tell(lane.mapping, Event("after_lock_lost", "check", lane.queue.entity))

    def _note_nothing(self, loop: Loop, calls_ended: int) -> None:
        """End a drain if no job is left: no call has ended since each loop has found nothing.

        Args:
            calls_ended: how many calls had ended before the claim that has found nothing.
        """
        busy = self.unstarted or self.running or any(each.handled for each in self.loops)
        if not self.worker.drain or busy or not loop.turns.is_drained():
            return
        with self.lock:
            loop.drained_at = calls_ended
            drained = all(each.drained_at == self.calls_ended for each in self.loops)
            if drained and not self.awaited:
                self.ending = True
                self.notice()

    def end_by(self, error: BaseException) -> None:
        """Have the run end with an error; the first one counts."""
        if self.calls.ends_at_once(error):
            raise error
        if not isinstance(error, Stopped):  # then the run ends anyway
            with self.lock:
                self.error = self.error or error
                self.ending = True
                self.notice()

    @property
    def _free(self) -> int:
        """For how many more calls jobs may be claimed."""
        reserved = 0
        if self.several:
            since = time.monotonic() - RESERVED
            reserved = sum(loop.wanted for loop in self.loops if loop.claimed_at > since)
        taken = len(self.unstarted) + len(self.running) + reserved
        return max(self.slots + self._ahead - taken, 0)

    def _due_at(self, loop: Loop, *, claims: bool = True) -> float:
        """When a turn is due, also if no slot is free to do it."""
        if any(self._is_unwanted(call) for call in self.unstarted if call[0].loop is loop):
            return 0.0
        # A turn that has nothing to do gives its connection back.
        kept_until = loop.turns.transactions.kept_until
        claim_at = self._claim_at(loop) if claims else inf
        return min(claim_at, loop.oldest + LONGEST_WAIT, kept_until)

    def _claim_at(self, loop: Loop) -> float:
        """When a claim is due: while a slot is idle, or so few calls wait that one soon will be.

        A single slot claims when it has done all its jobs: its transactions are then largest.
        """
        return loop.claim_at if self._has_room else inf

    @property
    def _has_room(self) -> bool:
        waiting = len(self.unstarted)
        idle = len(self.running) + waiting < self.slots
        low = self.slots > 1 and waiting <= self._ahead // 2
        return (idle or low) and self._free > 0 and not self.ending

    def pause(self, loop: Loop, lanes: Iterable[Lane[Any]], paused: Iterable[Lane[Any]]) -> None:
        """Pause some lanes, and let the others go on; a lane that goes on wakes the worker.

        Running jobs are finished. Jobs that were claimed and not started are released.
        """
        with self.lock:
            before = loop.turns.paused
            loop.turns.paused = (before - frozenset(lanes)) | frozenset(paused)
            if before - loop.turns.paused:
                loop.wake()
            self.notice(loop)

    def wake(self, loop: Loop, at: float) -> None:
        """Have a loop claim at a time, by time.monotonic(); safe from another thread."""
        loop.wake(at)
        self._notify_from_outside(loop)

    # -- several databases ----------------------------------------------

    def work_apart(self, loop: Loop) -> None:
        """Do the turns and chores of one of several databases, until it leaves or the run ends."""
        with self.lock:
            self.loops = [*self.loops, loop]
            self.awaited -= 1
        try:
            while True:
                with self.lock:
                    if self.closing or (loop.site.leaves and not self._holds_jobs(loop)):
                        break
                    turn = self._begin_turn([loop], at_once=True)
                    chore_at = inf if self.ending else self._next_chore_at([loop])
                    if turn is None and chore_at > time.monotonic():
                        self._wait_apart(loop, chore_at)
                        continue
                if turn is not None:
                    self._do_turn(*turn)
                else:
                    self._do_chores([loop])
            self._end_loop(loop, self.until)
        finally:
            with self.lock:
                self.loops = [each for each in self.loops if each is not loop]

    def end_empty_drain(self) -> None:
        """End a drain if no database is left, nor is about to be taken in."""
        with self.lock:
            if self.worker.drain and not (self.loops or self.awaited):
                self.ending = True
                self.notice()

    def give_way(self, loop: Loop) -> None:
        """Leave the slots that a turn has reserved to the loops of other databases."""
        with self.lock:
            loop.wanted = 0
            self._call_next()

    def _holds_jobs(self, loop: Loop) -> bool:
        calls = chain(self.unstarted, self.running)
        return bool(loop.handled) or any(call[0].loop is loop for call in calls)

    def _wait_apart(self, loop: Loop, until: float) -> None:
        now = time.monotonic()
        # A loop whose claim is due waits for others: it is called, or their turns take long.
        claim_at = loop.claim_at if loop.claim_at > now else now + RESERVED / 2
        due = (until, claim_at, loop.turns.transactions.kept_until, now + LONGEST_SLEEP)
        loop.waits = True
        loop.noticed.wait(max(min(due), loop.rests_until) - now)
        loop.waits = False

    # -- the supervisor -------------------------------------------------

    def _supervise(self) -> None:
        """Do what no slot does, until the run is to end."""
        handled, own = None, self._own_loops
        while True:
            with self.lock:
                self.put_handled(handled)
                while True:
                    if self.ending or self.stopping.is_set():
                        return
                    step = self.next_step() if self.alone else self._begin_turn(own, at_once=False)
                    chore_at = self._next_chore_at(own)
                    if step is not None or chore_at <= time.monotonic():
                        break
                    self._wait_for_notice(chore_at)
            handled = None
            if step is None:
                self._give_up_late()
                self._do_chores(own)
            else:
                handled = self.do(step)

    @property
    def _own_loops(self) -> Sequence[Loop]:
        """The loops whose turns and chores are the supervisor's."""
        return () if self.several else self.loops

    def _next_chore_at(self, loops: Sequence[Loop]) -> float:
        if not all(loop.turns.owner_name.is_sure for loop in loops):
            return max(loop.rests_until for loop in loops)
        late = () if self.several and loops else self._with_timeout()
        due = [chore.due_at for loop in loops for chore in loop.chores]
        return min((*due, *(call[0].deadline for call in late)), default=inf)

    def _with_timeout(self) -> list[Call]:
        """Return the running calls with a timeout that the supervisor must notice."""
        if self.calls.keeps_timeouts:
            return []
        firsts = ((call, call[0]) for call in self.running)
        return [call for call, job in firsts if job.deadline < inf and job.given_up is None]

    def _give_up_late(self) -> None:
        with self.lock:
            for call in self._with_timeout():
                if call[0].deadline <= time.monotonic():
                    with records_named(call[0].loop.name):
                        self._give_up(call)

    def _do_chores(self, loops: Sequence[Loop]) -> None:
        now = time.monotonic()
        due = [chore for loop in loops for chore in loop.chores if chore.due_at <= now]
        for loop in loops if not self.stopping.is_set() else ():
            try:
                self._check_lock(loop)
            except Exception as error:
                if not self.patience.is_endless:
                    raise
                loop.rest(error)
        for chore in due:
            chore.run()

    def _give_up(self, call: Call) -> None:
        """Fail the attempt of a handler that goes on beyond its timeout, and end the run.

        A transactional handler has locked its rows: its transaction is rolled back when it returns.
        """
        lane = call[0].lane
        assert lane.timeout is not None
        error = HandlerTimeout(
            f"{function_name(lane.handler)} still runs after its timeout of "
            f"{duration_text(lane.timeout)}; a thread cannot be stopped, so this worker ends: "
            "replace its process"
        )
        given_up = tuple(map(copy, call))
        for in_hand in call:
            in_hand.given_up = error if lane.transactional else Stopped()  # the attempt is over
        if not lane.transactional:
            self.calls.fail(given_up, error)
            self.running ^= {call, given_up}
            self.abandoned += 1
            self.put_handled(given_up)
        self.end_by(error)
        self.stopping.set()

    def notice(self, loop: Loop | None = None) -> None:
        """Wake the supervisor, or the thread of a loop."""
        self._dozes = False
        (self._noticed if loop is None else loop.noticed).notify_all()

    def _wait_for_notice(self, until: float) -> None:
        """Wait until something is to be noticed, or a turn is due.

        Args:
            until: wait no longer, by time.monotonic().
        """
        # A signal handler may give its notice between our look and our wait, which misses it.
        now = time.monotonic()
        soon = now + LONGEST_WAIT
        own = self._own_loops
        due = [soon if loop.in_turn else self._due_at(loop) for loop in own]
        until = min(until, now + LONGEST_SLEEP, *due, soon if self.unstarted and own else inf)
        if until > now:
            self._dozes = until > soon
            self._noticed.wait(until - now)
            self._dozes = False

    # -- the end --------------------------------------------------------

    def _end(self) -> None:
        """Give running handlers their grace; finish what was handled, and release the rest."""
        self.until = until = time.monotonic() + self.worker.grace.total_seconds()
        with self.lock:
            self.ending = True
            for loop in self.loops:
                loop.noticed.notify_all()
        if self.patience.is_endless:
            self.patience.end_at = until
        self._wait_for_handlers(until)
        overdue = tuple(self.running)
        if overdue and self.calls.interrupt():
            for call in overdue:
                self._log_overdue(call, "is cancelled")
            self._wait_for_handlers(time.monotonic() + INTERRUPTION.total_seconds())
        with self.lock:
            in_time = time.monotonic() + PATIENCE.total_seconds()
            while any(loop.in_turn for loop in self._own_loops) and time.monotonic() < in_time:
                self._noticed.wait(LONGEST_WAIT)
            for call in tuple(self.running):  # its jobs are released, or rolled back
                for in_hand in call:
                    in_hand.given_up = in_hand.given_up or Stopped()
                self._log_overdue(call, "goes on until its process ends")
                if not call[0].lane.transactional:
                    self._put_back(call)
                    self.abandoned += 1
            self.closing = True
            for loop in self.loops:
                loop.noticed.notify_all()
        for loop in self._own_loops:
            self._end_loop(loop, until)

    def _end_loop(self, loop: Loop, until: float) -> None:
        """Finish and release the last jobs of a database."""
        with self.lock:
            batch = self._take(loop, 0)
        left_of_grace = timedelta(seconds=max(until - time.monotonic(), 0.0))
        try:
            patience = left_of_grace if self.stopping.is_set() else PATIENCE
            result = loop.turns.end(batch, patience)
        except Exception as error:
            if self.error is None and not self.several:
                raise
            log.error(
                "some claimed jobs are not released; a reap returns them to the queue: %s",
                cause_of(error),
            )
        else:
            self._tell(result)

    def _wait_for_handlers(self, until: float) -> None:
        """Wait until no handler runs; meanwhile finish handled jobs and release unstarted jobs."""
        while True:
            turn = None
            with self.lock:
                while self.running and time.monotonic() < until and turn is None:
                    turn = self._begin_turn(self._own_loops, at_once=False)
                    if turn is None:
                        self._wait_for_notice(until)
            if turn is None:
                return
            self._do_turn(*turn)

    def _log_overdue(self, call: Call, what: str) -> None:
        """Log that a handler still runs after the grace, and what becomes of it and its jobs."""
        lane = call[0].lane
        grace, name = duration_text(self.worker.grace), function_name(lane.handler)
        is_released = not lane.transactional
        end = "its job is released" if is_released else "its writes are rolled back"
        text = f"still runs {grace} after the worker was asked to stop: {end}, and its handler"
        for in_hand in call:
            with records_named(in_hand.loop.name):
                log_job(log.error, in_hand, f"{text} {what}. The handler is {name}")
