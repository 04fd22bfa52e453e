"""--log-level and --log-json: where the records of Python's logging go.

Without these options the logging that the application has set up while it was imported is left
as it is. Else, and where it has set up none, records go to the error output.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import click

LEVELS = ("debug", "info", "warning", "error")

#: What is logged where neither the user nor the application says.
DEFAULT_LEVEL = "info"

TEXT = "%(asctime)s %(levelname)s %(process)d %(name)s: %(message)s"

#: The attributes of every record; others are extra fields.
_USUAL = frozenset({*vars(logging.makeLogRecord({})), "message", "asctime"})


def log_options(command: Any) -> Any:
    """Add ``--log-level`` and ``--log-json``; the command gives both to :func:`set_up_logging`."""
    level = click.option(
        "--log-level",
        type=click.Choice(LEVELS, case_sensitive=False),
        help="The lowest level of records that go to stderr.  [default: as the application's own "
        f"logging says, else {DEFAULT_LEVEL}]",
    )
    as_json = click.option(
        "--log-json", is_flag=True, help="Log a JSON object for each record, in a line of its own."
    )
    return level(as_json(command))


def set_up_logging(level: str | None, *, as_json: bool) -> None:
    """Send log records to the error output until the command ends.

    Args:
        level: one of LEVELS; None: leave the application's own logging as it is, if there is one.
    """
    root = logging.root
    if (
        level is None
        and not as_json
        and (root.handlers or logging.getLogger("sa_jobqueue").handlers)
    ):
        return
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines() if as_json else logging.Formatter(TEXT))
    click.get_current_context().call_on_close(_restoring(root))
    root.handlers = [handler]
    root.setLevel((level or DEFAULT_LEVEL).upper())


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
        extra = {name: value for name, value in vars(record).items() if name not in _USUAL}
        for name in line.keys() & extra.keys():
            extra[f"{name}_"] = extra.pop(name)
        try:
            return _in_json({**extra, **line})
        except (TypeError, ValueError, RecursionError):  # such as a NaN, or a tuple as a key
            return _in_json({**{name: _plain(value) for name, value in extra.items()}, **line})


def _in_json(fields: dict[str, Any]) -> str:
    return json.dumps(fields, default=_text, allow_nan=False)


def _plain(value: Any) -> Any:
    """Return a value that JSON has, in place of one that it may not have."""
    try:
        _in_json({"": value})
    except (TypeError, ValueError, RecursionError):
        return _text(value)
    return value


def _text(value: Any) -> str:
    try:
        return str(value)
    except Exception as error:  # a record is not lost for one of its fields
        return f"<{type(value).__name__} without a text: {type(error).__name__}>"


def _restoring(root: logging.Logger) -> Callable[[], None]:
    handlers, level = root.handlers, root.level

    def restore() -> None:
        root.handlers = handlers
        root.setLevel(level)

    return restore
