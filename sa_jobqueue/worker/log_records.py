"""The log record of a failed job: one for each, which names the job.

::

    Email 7 failed, attempt 3 of 20, after 0.12 s; next try in 3.9 s: OSError: no route

Its traceback is the record's, and its parts are extra fields of the record, for JSON logs.
"""

from __future__ import annotations

import logging
import time
from datetime import timedelta
from typing import Any

from ..fence.claim import fence_of
from ..model.last_error import first_line
from .batch import InHand

log = logging.getLogger("sa_jobqueue.worker")


class Attempt:
    """One attempt at a job, from now on."""

    def __init__(self, in_hand: InHand[Any]) -> None:
        self._in_hand = in_hand
        self._began = time.monotonic()

    def log_failure(self, error: BaseException, retry_in: timedelta | None) -> None:
        """Log that the handler raised.

        Args:
            retry_in: the delay before the next attempt, if one remains.
        """
        fields = self._fields(retry_in)
        log.warning("%s: %s", _text(fields), first_line(error), exc_info=error, extra=fields)

    def _fields(self, retry_in: timedelta | None) -> dict[str, Any]:
        """Return the extra fields of the record, the times in seconds."""
        in_hand = self._in_hand
        queue = in_hand.lane.queue
        most = _most_attempts(in_hand)
        is_last = most is not None and in_hand.attempts is not None and in_hand.attempts >= most
        wait = None if is_last or retry_in is None else retry_in.total_seconds()
        return {
            "job_class": str(queue.mapping),
            "job_key": fence_of(in_hand.job).identity,
            "queue": repr(queue),
            "attempt": in_hand.attempts,
            "max_attempts": most,
            "next_try_in": wait,
            "duration": time.monotonic() - self._began,
        }


def _most_attempts(in_hand: InHand[Any]) -> int | None:
    """Return max_attempts as the claim read it; None: no limit, or the handler expired the job."""
    key = in_hand.lane.queue.mapping.attributes.get("max_attempts")
    most: int | None = None if key is None else vars(in_hand.job).get(key)
    return most


def _text(fields: dict[str, Any]) -> str:
    key = ", ".join(map(repr, fields["job_key"]))
    most = "" if fields["max_attempts"] is None else f" of {fields['max_attempts']}"
    attempt = "" if fields["attempt"] is None else f", attempt {fields['attempt']}{most}"
    wait = fields["next_try_in"]
    then = "not tried again" if wait is None else f"next try in {wait:.3g} s"
    return f"{fields['job_class']} {key} failed{attempt}, after {fields['duration']:.3g} s; {then}"
