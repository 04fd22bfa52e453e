"""A chore whose parts may fail: the worker goes on, logs the error once, and tries again."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar

from ..dialects.connections import driver_errors
from ..errors import MissingTable
from .crew import Crew, Loop
from .lanes import Lane
from .transactions import cause_of

log = logging.getLogger("sa_jobqueue.worker")

#: The pause before a chore that has failed is tried again.
SOON = timedelta(seconds=1)


@dataclass(eq=False)
class TriedChore:
    """A chore whose parts are tried again and again: an error is logged when it comes, not always.

    Missing tables are logged once for all parts.

    Attributes:
        lanes: for whose queues it is done.
        without: what the worker goes on without while its tables are missing, for the log.
        due_at: when it is due, by time.monotonic().
    """

    crew: Crew
    loop: Loop
    lanes: Sequence[Lane[Any]]

    without: ClassVar[str]
    due_at = 0.0

    def __post_init__(self) -> None:
        self.queues = [lane.queue for lane in self.lanes]
        self.transactions = self.loop.turns.transactions
        self.engine = self.transactions.engine
        self._logged: dict[str, type[Exception]] = {}  # the error of each part

    def attempt(self, part: str, work: Callable[[], object]) -> bool:
        """Call `work`, which is named `part` in the log; tell whether it succeeded."""
        try:
            work()
        except MissingTable as error:  # it says the way out; a traceback adds nothing
            if MissingTable not in self._logged.values():
                log.warning("the worker goes on without %s: %s", self.without, error)
            self._logged[part] = MissingTable
        except Exception as error:
            if self.transactions.is_temporary(error):
                log.info("%s failed; the worker tries again: %s", part, cause_of(error))
            elif self._logged.get(part) is not type(error):
                self._logged[part] = type(error)
                refused = any(driver_errors(error))
                what = f"the database refuses {part}" if refused else f"{part} failed"
                log.error("%s; the worker tries again: %s", what, cause_of(error), exc_info=error)
        else:
            self._logged.pop(part, None)
            return True
        return False
