"""--log-level and --log-json: where the records of Python's logging go.

Without these options the logging that the application has set up while it was imported is left
as it is. Else, and where it has set up none, records go to the error output.
"""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Any

import click

from .options import flag, text
from .printing import printable

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
    handler.setFormatter(JsonLines() if as_json else PlainLines())
    logging.basicConfig(level=(level or DEFAULT_LEVEL).upper(), handlers=[handler], force=True)
    return level != "debug"


class PlainLines(logging.Formatter):
    """Format records as text: a line for each, and behind it lines that begin with a bar."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the lines; an error's text cannot forge a record, or command the terminal."""
        head = f"{self.formatTime(record)} {record.levelname} {record.process} {record.name}: "
        behind = [self.formatException(record.exc_info)] if record.exc_info else []
        behind += [record.stack_info] if record.stack_info else []
        lines = [f"| {line}" for text in behind for line in text.splitlines()]
        return "\n".join(map(printable, [head + record.getMessage(), *lines]))


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
