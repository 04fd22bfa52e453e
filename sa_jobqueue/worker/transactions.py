"""A worker's transactions: run again when their error is temporary."""

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
from ..process.runtime import Runtime
from ..sessions.transactions import run_in_transaction

log = logging.getLogger("sa_jobqueue.worker")

R = TypeVar("R")

#: For how long a transaction is run again before its error is raised: long enough for a restart
#: of the server.
PATIENCE = timedelta(minutes=5)

SHORTEST_PAUSE = timedelta(milliseconds=50)
LONGEST_PAUSE = timedelta(seconds=2)


class Transactions:
    """Transactions of the worker's own, on its engine.

    Attributes:
        in_doubt: whether the answer to the last COMMIT is missing.
    """

    def __init__(self, engine: Engine, runtime: Runtime) -> None:
        self.engine = engine
        self.in_doubt = False
        self._runtime = runtime
        self._succeeded_once = False

    def run(self, work: Callable[[Session], R]) -> R:
        """Run and commit a transaction, again while its error is temporary."""
        result = self.patiently(lambda: self._run_once(work))
        self._succeeded_once = True
        self.in_doubt = False
        return result

    def patiently(self, work: Callable[[], R]) -> R:
        """Call `work`, again while its error is temporary, for PATIENCE at most."""
        deadline = time.monotonic() + PATIENCE.total_seconds()
        pause = SHORTEST_PAUSE.total_seconds()
        while True:
            try:
                return work()
            except (DBAPIError, LockTimeout) as error:
                if time.monotonic() > deadline or not self.is_temporary(error):
                    raise
                cause = error.orig if isinstance(error, DBAPIError) else error
                log.info("a transaction failed, and is run again: %s", cause)
                self._runtime.sleep(pause * random.uniform(0.5, 1.0))
                pause = min(pause * 2, LONGEST_PAUSE.total_seconds())

    def is_temporary(self, error: DBAPIError | LockTimeout) -> bool:
        """Tell whether an error goes away with time."""
        if is_transient(error) or isinstance(error, LockTimeout):
            return True
        # A broken connection, or a failure to connect (an error without a statement): the server
        # may be restarting. Before the first success the URL may be wrong, so raise at once.
        connecting = isinstance(error, OperationalError) and error.statement is None
        return self._succeeded_once and (error.connection_invalidated or connecting)

    def _run_once(self, work: Callable[[Session], R]) -> R:
        def doubted(session: Session) -> R:
            result = work(session)
            self.in_doubt = True  # until the COMMIT is answered
            return result

        return run_in_transaction(self.engine, doubted)
