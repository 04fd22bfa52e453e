"""What a worker does beside its jobs may fail: that is logged, and never ends the worker."""

from __future__ import annotations

import logging
from collections.abc import Callable

from ..dialects.driver_errors import driver_errors
from ..errors import MissingTable
from .transactions import Transactions, cause_of

log = logging.getLogger("sa_jobqueue.worker")


class Tries:
    """Try something again and again; an error is logged when it comes, not each time.

    Args:
        what: is tried, for the log.
    """

    def __init__(self, transactions: Transactions, what: str) -> None:
        self._transactions = transactions
        self._what = what
        self._has_logged = False

    def run(self, work: Callable[[], object]) -> bool:
        """Call `work`; tell whether it succeeded."""
        try:
            work()
        except Exception as error:
            self._note(error)
            return False
        self._has_logged = False
        return True

    def _note(self, error: Exception) -> None:
        if self._transactions.is_temporary(error):
            log.info("%s failed; the worker tries again: %s", self._what, cause_of(error))
        elif not self._has_logged:
            self._has_logged = True
            if isinstance(error, MissingTable):  # it says the way out; a traceback adds nothing
                log.warning("%s failed; the worker tries again: %s", self._what, error)
                return
            refused = any(driver_errors(error))
            what = f"the database refuses {self._what}" if refused else f"{self._what} failed"
            log.error("%s; the worker tries again: %s", what, cause_of(error), exc_info=error)
