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

from .command import flag

#: What is logged where neither the user nor the application says.
DEFAULT_LEVEL = "info"

TEXT = "%(asctime)s %(levelname)s %(process)d %(name)s: %(message)s"

#: The attributes of every record; others are extra fields.
_USUAL = frozenset({*vars(logging.makeLogRecord({})), "message", "asctime"})


def log_options(command: Any) -> Any:
    """Add ``--log-level`` and ``--log-json``; the command gives both to :func:`set_up_logging`."""
    level = click.option(
        "--log-level",
        type=click.Choice(["debug", "info", "warning", "error"], case_sensitive=False),
        help="The lowest level of records that go to stderr.  [default: as the application's own "
        f"logging says, else {DEFAULT_LEVEL}]",
    )
    as_json = flag("--log-json", "Log a JSON object for each record, in a line of its own.")
    return level(as_json(command))


def set_up_logging(level: str | None, *, as_json: bool) -> None:
    """Send log records to the error output.

    Args:
        level: the name of one; None: leave the application's own logging as it is, if there is one.
    """
    set_up = logging.root.handlers or logging.getLogger("sa_jobqueue").handlers
    if set_up and level is None and not as_json:
        return
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines() if as_json else logging.Formatter(TEXT))
    logging.basicConfig(level=(level or DEFAULT_LEVEL).upper(), handlers=[handler], force=True)


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
