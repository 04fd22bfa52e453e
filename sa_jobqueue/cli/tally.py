"""What ``work`` logs of its jobs: a line a minute with their numbers, and none for each job."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from ..ages import duration_text
from ..counts import Count, overview
from ..model.status import CANCELLED, FAILED
from ..process import Runtime
from ..worker import Lane
from ..worker.deadlines import Deadlines
from .command import PATIENCE

log = logging.getLogger("sa_jobqueue.cli")

#: How often a worker tells what it has done, in seconds.
MINUTE = 60.0


class Tally(logging.Filter):
    """Counts the jobs that a worker logs, and tells their number.

    Args:
        quiet: leave out the records of single jobs that have not failed.
    """

    def __init__(self, lanes: Iterable[Lane[Any]], *, quiet: bool) -> None:
        super().__init__()
        self._queues = {repr(lane.queue): lane.queue for lane in lanes}
        self._quiet = quiet
        self._since, self._counts = time.monotonic(), Counter[str]()

    def filter(self, record: logging.LogRecord) -> bool:
        """Count the job that a record tells of; tell whether the record is wanted."""
        told, has_failed = vars(record), record.levelno > logging.INFO
        if "job_key" not in told or (queue := self._queues.get(told["queue"])) is None:
            return True
        unfinished = (queue.ready, *map(queue.mapping.word, (CANCELLED, FAILED)))
        if has_failed is (told["status"] in unfinished):
            self._counts["failed" if has_failed else "done"] += 1
        return has_failed or not self._quiet

    @contextmanager
    def told_each_minute(
        self, runtime: Runtime, engines: Callable[[], dict[str, Engine]]
    ) -> Iterator[None]:
        """Count within the block; log what was done each minute, and at the end."""
        logger, over = logging.getLogger("sa_jobqueue.worker"), runtime.flag()

        def tell_often() -> None:
            while not over.wait(MINUTE):
                due: list[Count] = []
                for engine in engines().values():
                    limit = Deadlines(engine, PATIENCE)
                    with suppress(DBAPIError), limit, Session(engine) as session:
                        due += [it.due for it in overview(session, self._queues.values())]
                more = "+" * any(each.more for each in due)
                self._tell(f", {sum(each.number for each in due):,}{more} waiting")

        logger.addFilter(self)
        runtime.start(tell_often, name="sa_jobqueue tally")
        try:
            yield
        finally:
            over.set()
            logger.removeFilter(self)
            self._tell()

    def _tell(self, waiting: str = "") -> None:
        counts, self._counts = self._counts, Counter()
        age, self._since = time.monotonic() - self._since, time.monotonic()
        told = (duration_text(age), counts["done"], counts["failed"], counts["done"] / age, waiting)
        log.info("in %s: %d done, %d failed, %.3g a second%s", *told)
