"""A worker's transactions: run again where their error is one that passes."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from datetime import timedelta
from typing import TypeVar

from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.orm import Session

from ..dialects import is_transient
from ..errors import LockTimeout
from ..sessions.transactions import run_in_transaction
from .threads import Waiting

log = logging.getLogger("sa_jobqueue.worker")

R = TypeVar("R")

#: How long a transaction is run again, after the first success, before its error
#: comes out: a restart of the server is waited for.
PATIENCE = timedelta(minutes=5)

SHORTEST_PAUSE = timedelta(milliseconds=50)
LONGEST_PAUSE = timedelta(seconds=2)


class Patience:
    """Transactions of the worker's own, on its engine.

    Attributes:
        in_doubt: whether the answer to the last COMMIT is missing.
    """

    def __init__(self, engine: Engine, waiting: Waiting) -> None:
        self.engine = engine
        self.in_doubt = False
        self._waiting = waiting
        self._worked = False  # whether any transaction has

    def transaction(self, work: Callable[[Session], R]) -> R:
        """Run and commit a transaction, again if its error is one that passes."""
        result = self.patiently(lambda: self._once(work))
        self._worked = True
        self.in_doubt = False
        return result

    def patiently(self, work: Callable[[], R]) -> R:
        """Do something, again if its error is one that passes."""
        deadline = time.monotonic() + PATIENCE.total_seconds()
        pause = SHORTEST_PAUSE.total_seconds()
        while True:
            try:
                return work()
            except (DBAPIError, LockTimeout) as error:
                if time.monotonic() > deadline or not self.passes(error):
                    raise
                said = error.orig if isinstance(error, DBAPIError) else error
                log.info("a transaction failed, and is run again: %s", said)
                self._waiting.sleep(pause * random.uniform(0.5, 1.0))
                pause = min(pause * 2, LONGEST_PAUSE.total_seconds())

    def passes(self, error: DBAPIError | LockTimeout) -> bool:
        """Tell whether an error goes away by itself, given time."""
        if is_transient(error) or isinstance(error, LockTimeout):
            return True
        # A connection that broke, or that could not be made: once it worked, wait
        # for the server. Without a statement, the error is one of connecting.
        connecting = isinstance(error, OperationalError) and error.statement is None
        return self._worked and (error.connection_invalidated or connecting)

    def _once(self, work: Callable[[Session], R]) -> R:
        def doubted(session: Session) -> R:
            result = work(session)
            self.in_doubt = True  # until the answer to the COMMIT is here
            return result

        return run_in_transaction(self.engine, doubted)
