"""What is logged, and where: --log-level and --log-json, and a line a minute of ``work``.

Without these options the logging that the application has set up while it was imported is left
as it is. Else, and where it has set up none, records go to the error output.
"""

from __future__ import annotations

import json
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Any

import click
from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from ..ages import duration_text
from ..counts import Count, overview
from ..model.status import CANCELLED, FAILED
from ..process import Runtime
from ..worker import Lane
from ..worker.deadlines import Deadlines
from .database import PATIENCE
from .options import flag, text
from .printing import printable

log = logging.getLogger("sa_jobqueue.cli")

#: What is logged where neither the user nor the application says.
DEFAULT_LEVEL = "info"

#: The attributes of every record; others are extra fields.
_USUAL = frozenset({*vars(logging.makeLogRecord({})), "message", "asctime"})


#: Options of commands, which give both to :func:`set_up_logging`.
LEVEL: Any = text(
    "The lowest level of records that go to stderr.  [default: as the application's own logging "
    f"says, else {DEFAULT_LEVEL}]",
    metavar=None,
    type=click.Choice(["debug", "info", "warning", "error"], case_sensitive=False),
)
AS_JSON: Any = flag("Log a JSON object for each record, in a line of its own.")


def set_up_logging(level: str | None, *, as_json: bool) -> bool:
    """Send log records to the error output.

    Args:
        level: the name of one; None: leave the application's own logging as it is, if there is one.

    Returns:
        Whether records of single jobs would be too many.
    """
    set_up = logging.root.handlers or logging.getLogger("sa_jobqueue").handlers
    if set_up and level is None and not as_json:
        return False
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines() if as_json else PlainLines(PLAIN))
    logging.basicConfig(level=(level or DEFAULT_LEVEL).upper(), handlers=[handler], force=True)
    return level != "debug"


PLAIN = "%(asctime)s %(levelname)s %(process)d %(name)s: %(message)s"


class PlainLines(logging.Formatter):
    """Format records as text: a line for each, and behind it lines that begin with a bar."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the lines; an error's text cannot forge a record, or command the terminal."""
        head, *behind = super().format(record).splitlines()
        return "\n".join(map(printable, [head, *(f"| {line}" for line in behind)]))


class JsonLines(logging.Formatter):
    """Format records as JSON objects, with their extra fields."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line."""
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname,
            "logger": record.name,
            "process": record.process,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            line["stack"] = self.formatStack(record.stack_info)
        extra = {
            f"{name}_" if name in line else name: value
            for name, value in vars(record).items()
            if name not in _USUAL
        }
        return json.dumps({**extra, **line}, default=str, skipkeys=True)


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
