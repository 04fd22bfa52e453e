"""What commands print: tables, JSON, and errors of one line; text of rows is never obeyed."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table
from sqlalchemy.exc import DBAPIError

from ..counts import Count


def printable(text: object) -> str:
    """Write a stranger's text so that the terminal does not obey it."""
    return "".join(each if each.isprintable() else "\ufffd" for each in str(text))


def print_table(*columns: str | Column, rows: Iterable[Iterable[object]]) -> None:
    """Print rows, whose texts may be a stranger's; times are of UTC, and None is a dash."""
    table = Table(*columns)
    for row in rows:
        table.add_row(*(escape(_cell(value)) for value in row))
    Console().print(table)


def _cell(value: object) -> str:
    if value is None or isinstance(value, datetime):
        return time_text(value)
    return f"{value:,}" if isinstance(value, int) else printable(value)


def right(name: str) -> Column:
    """Return a column of numbers."""
    return Column(name, justify="right")


def time_text(value: datetime | None) -> str:
    """Write a time of UTC."""
    return "-" if value is None else f"{value:%Y-%m-%d %H:%M:%S}"


def print_json(value: object) -> None:
    """Print JSON: times in ISO 8601, durations in seconds, and what JSON does not have as text."""
    click.echo(json.dumps(value, indent=2, default=_plain))


def _plain(value: Any) -> object:
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, Count):
        return {"number": value.number, "more": value.more}
    return value.isoformat() if isinstance(value, datetime) else str(value)


def jobs_text(count: int) -> str:
    """Count jobs."""
    return f"{count:,} {'job' if count == 1 else 'jobs'}"


def in_one_line(error: BaseException) -> str:
    """Return an error's text without the statement, the links and the line breaks."""
    cause = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    text = str(cause.args[-1]) if cause.args else ""  # drivers of MySQL put a number first
    return " ".join(text.split()) or type(cause).__name__
