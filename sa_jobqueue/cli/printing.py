"""The door to the terminal: what a command prints goes through here.

Rows hold what strangers have written: codes that a terminal obeys, markup of rich, and line breaks
that forge a line. All text of rows passes :func:`printable`; :mod:`.logs` uses it, too.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any, TypeAlias

import click
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text
from sqlalchemy.exc import DBAPIError

from ..ages import time_text
from ..counts import Count


def printable(text: object) -> str:
    """Write a stranger's text so that the terminal does not obey it, in one line."""
    return "".join(each if each.isprintable() else "\ufffd" for each in str(text))


def say(line: object, *, err: bool = False) -> None:
    """Print a line."""
    click.echo(printable(line), err=err)


#: The width of lines that no terminal shows, but another program reads.
WIDEST = 10_000


Rows: TypeAlias = Iterable[Iterable[object]]


def wide_console() -> Console:
    """Return the console; what is no terminal gets each line whole."""
    console = Console()
    if not console.is_terminal:
        console.width = WIDEST
    return console


def table_of(*columns: str | Column, rows: Rows, full: bool = False, gap: int = 2) -> Table:
    """Lay out rows, a line for each: times are of UTC, and None is a dash.

    Args:
        columns: a terminal cuts those that are given as texts.
        full: lay out all of them, over several lines.
        gap: between columns.
    """
    table = Table(*columns, box=None, padding=(0, gap, 0, 0), header_style="dim")
    for row in rows:
        table.add_row(*(_cell(value, full=full) for value in row))
    return table


def _cell(value: object, *, full: bool) -> Text:
    if isinstance(value, Text):
        return value
    if value is None or isinstance(value, datetime):
        return Text(time_text(value))
    text = f"{value:,}" if isinstance(value, int) else printable(value)
    return Text(text, no_wrap=not full, overflow="fold" if full else "ellipsis")


def right(name: str) -> Column:
    """Return a column of numbers."""
    return Column(name, justify="right", no_wrap=True)


def whole(name: str) -> Column:
    """Return a column whose texts are never cut."""
    return Column(name, no_wrap=True)


def print_json(value: object) -> None:
    """Print JSON: times in ISO 8601, durations in seconds, and what JSON does not have as text."""
    click.echo(json.dumps(value, indent=2, default=_plain))


def _plain(value: Any) -> object:
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, Count):
        return vars(value)
    return value.isoformat() if isinstance(value, datetime) else str(value)


def in_one_line(error: BaseException) -> str:
    """Return an error's text without the statement, the links and the line breaks."""
    cause = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    # Drivers of MySQL put a number first; the text of an OSError names the file.
    text = str(cause if isinstance(cause, OSError) or not cause.args else cause.args[-1])
    return printable(" ".join(text.split())) or type(cause).__name__
