"""Handle what is due, inline and inside of the caller's transaction."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, TypeVar

from sqlalchemy import Connection
from sqlalchemy.orm import Session

from ..databases import database_of
from ..events.event import called_on
from ..process import THREADS
from ..queue import JobQueue
from ..sessions.transactions import routed_to_writes
from ..sessions.writer import AnySession, session_of
from ..verbs.backoff import DEFAULT_BACKOFF, delay_or_default
from ..worker import Failed, Lane, Outcome
from ..worker.handlers import Calls
from ..worker.in_hand import Call, Ended, InHand, calls_for
from ..worker.lanes import NOT_YET, lanes_of
from ..worker.transactions import Transactions

R = TypeVar("R")

#: Who claims the jobs.
OWNER = "run_all"

#: Jobs in one claim.
BATCH = 100


@dataclass(frozen=True)
class HandledJob:
    """A job that was handled.

    Attributes:
        job: as its handler got it, detached.
        outcome: None or a Done; a Retry, a Cancel, a workflow's status; or an object with the
            `error` that the handler raised.
    """

    job: Any
    outcome: Outcome


def run_all(
    session: AnySession,
    queue: JobQueue[Any] | Lane[Any] | Iterable[JobQueue[Any] | Lane[Any]],
    *,
    raising: bool = True,
) -> list[HandledJob]:
    """Call the handlers of all jobs that are due, as a worker does, and finish the jobs.

    Everything happens in the session's transaction, within savepoints; nothing is committed.
    A plain handler gets its job detached. A transactional one gets a session of its own on the
    same connection. What handlers enqueue is handled, too, if it is due. A job that is to be tried
    again is tried by the next call at the earliest, even if it is due at once.

    Args:
        session: the caller's; it is flushed first, and what it has loaded is expired at the end.
        queue: JobQueues that have handlers, a workflow, or its steps.
        raising: False: a handler's exception fails its attempt, and is not raised here.

    Returns:
        The handled jobs, in the order in which they were handled.

    Raises:
        ArgumentError: a queue without a handler, or an ``async def`` handler.
        Exception: what a handler has raised, after its attempt has failed.
    """
    session = session_of(session)
    lanes = lanes_of(queue, None)
    session.flush()
    connection = session.connection(bind_arguments=routed_to_writes(lanes[0].queue.mapping.mapper))
    calls = Calls(Joined(connection, lambda: joined(connection, type(session))), delay_of)
    calls.check(lanes)
    try:
        return handle_all(connection, lanes, calls, raising=raising)
    finally:
        session.expire_all()


def handle_all(
    connection: Connection, lanes: Iterable[Lane[Any]], calls: Calls, *, raising: bool
) -> list[HandledJob]:
    """Handle what is due, with handlers that are called in this way."""
    database_of(connection).begin_write(connection)  # SQLite's savepoints need it
    handled: list[HandledJob] = []
    seen: set[Any] = set()
    with joined(connection, Session) as own:
        claimed: deque[Call] = deque()
        again: list[InHand] = []
        try:
            while _claim(own, lanes, claimed):
                while claimed:
                    call: list[InHand] = []
                    for in_hand in claimed.popleft():
                        fence = in_hand.fence
                        attempt = (type(in_hand.job), fence.identity, fence.token.status)
                        (again if attempt in seen else call).append(in_hand)
                        seen.add(attempt)
                        in_hand.began = time.monotonic()
                    if not call:
                        continue
                    try:
                        calls.handle(tuple(call))
                    finally:
                        # Else the test itself was cancelled.
                        ended = [each for each in call if each.outcome is not NOT_YET]
                        again += [each for each in call if each not in ended]
                        call[0].lane.finish(
                            own, [each for each in ended if each.ended is None], delete=None
                        )
                        own.commit()
                    for in_hand in call:
                        if in_hand.ended is Ended.LOST:
                            raise AssertionError(f"{in_hand.fence!r} was taken away from run_all()")
                        handled.append(HandledJob(in_hand.job, in_hand.outcome))
                    for in_hand in call:
                        if raising and isinstance(in_hand.outcome, Failed):
                            raise in_hand.outcome.error
        finally:
            for left in (*again, *chain.from_iterable(claimed)):
                left.lane.queue.release(own, left.job)
            own.commit()
    return handled


def joined(connection: Connection, kind: type[Session]) -> Session:
    """Open a session whose commits end savepoints of the connection's transaction."""
    return kind(connection, join_transaction_mode="create_savepoint", expire_on_commit=False)


def _claim(own: Session, lanes: Iterable[Lane[Any]], claimed: deque[Call]) -> bool:
    """Claim what is due; tell whether there was anything."""
    for lane in lanes:
        queue: Any = lane.queue
        if queue.plan.spec.rate is not None:  # a test does not wait
            queue = queue.plan.for_spec(replace(queue.plan.spec, rate=None, rate_by=()))
        with called_on(lane.queue):
            claim = queue.claim(own, owner=OWNER, limit=max(BATCH, lane.size))
        own.commit()
        for job in claim:
            own.expunge(job)
        claimed += calls_for(lane, claim)
    return bool(claimed)


def delay_of(in_hand: InHand) -> Any:
    if in_hand.attempts is None:
        return None
    return delay_or_default(in_hand.lane.queue.backoff or DEFAULT_BACKOFF, in_hand.attempts)


class Joined(Transactions):
    """The transactions of handlers, as savepoints of a transaction; they are not run again."""

    def __init__(self, connection: Connection, open_session: Callable[[], Session]) -> None:
        super().__init__(connection.engine, THREADS, THREADS.flag(), open_session)

    def run_for_handler(self, work: Callable[[Session], R], *, mapper: Any) -> R:
        assert self.open_session is not None
        with self.open_session() as session:
            result = work(session)
            session.commit()
            return result
