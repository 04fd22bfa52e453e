"""How a Worker calls handlers: in the thread of their slot. An AsyncWorker has its own way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import Context
from typing import Any

from sqlalchemy import Engine
from sqlalchemy.orm import Session

from ..errors import ArgumentError
from ..process import function_name
from .in_hand import InHand
from .lanes import Lane
from .transactions import Stopped


class Calls:
    """Call handlers.

    Args:
        engine: where sessions are opened.
        open_session: opens sessions of the application's kind; None: plain ones on `engine`.
    """

    #: Whether a handler is ended at its timeout. Otherwise the worker stops waiting for it.
    keeps_timeouts = False

    def __init__(self, engine: Engine, open_session: Callable[[], Session] | None) -> None:
        self._engine = engine
        self._open_session = open_session

    def check(self, lanes: Sequence[Lane[Any]]) -> None:
        """Refuse handlers that cannot be called here.

        Raises:
            ArgumentError: it names the handler.
        """
        for lane in lanes:
            if lane.is_async:
                raise ArgumentError(
                    f"{function_name(lane.handler)} has to be awaited: use an AsyncWorker, or "
                    "sa_jobqueue.testing.asyncio.run_all() in a test"
                )

    def call(self, in_hand: InHand[Any], context: Context) -> Any:
        """Call the handler with the job, and return what it returns."""
        return context.run(in_hand.lane.handler, in_hand.job)

    def call_in(self, session: Session, in_hand: InHand[Any], context: Context, job: Any) -> Any:
        """Call a transactional handler with the job in that session."""
        return context.run(in_hand.lane.handler, session, job)

    def open_session(self) -> Session:
        """Open the session of a transactional handler."""
        return Session(self._engine) if self._open_session is None else self._open_session()

    def interrupt(self) -> bool:
        """Interrupt all running handlers; return False if that is not possible."""
        return False

    def was_interrupted(self, error: BaseException) -> bool:
        """Tell whether the worker ended the attempt, not the handler: it does not count then."""
        return isinstance(error, Stopped)

    def ends_at_once(self, error: BaseException) -> bool:
        """Tell whether an error in the supervisor ends the run without any wait."""
        return False
