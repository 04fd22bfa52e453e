"""What a worker does beside its jobs may fail: that is logged, and never ends the worker."""

from __future__ import annotations

import logging
from collections.abc import Callable

from ..dialects.connections import driver_errors
from ..errors import MissingTable
from .transactions import Transactions, cause_of

log = logging.getLogger("sa_jobqueue.worker")


class Tries:
    """Try the parts of a chore again and again; an error is logged when it comes, not each time.

    Missing tables are logged once for all parts.

    Args:
        chore: what the worker goes on without while its tables are missing, for the log.
    """

    def __init__(self, transactions: Transactions, chore: str) -> None:
        self._transactions = transactions
        self._chore = chore
        self._logged: set[str] = set()  # the parts whose error was logged
        self._lacking: set[str] = set()  # the parts that have not found their table

    def run(self, part: str, work: Callable[[], object]) -> bool:
        """Call `work`, which is named `part` in the log; tell whether it succeeded."""
        try:
            work()
        except MissingTable as error:  # it says the way out; a traceback adds nothing
            if not self._lacking:
                log.warning("the worker goes on without %s: %s", self._chore, error)
            self._lacking.add(part)
            return False
        except Exception as error:
            self._note(part, error)
            return False
        self._logged.discard(part)
        self._lacking.discard(part)
        return True

    def _note(self, part: str, error: Exception) -> None:
        if self._transactions.is_temporary(error):
            log.info("%s failed; the worker tries again: %s", part, cause_of(error))
        elif part not in self._logged:
            self._logged.add(part)
            refused = any(driver_errors(error))
            what = f"the database refuses {part}" if refused else f"{part} failed"
            log.error("%s; the worker tries again: %s", what, cause_of(error), exc_info=error)
