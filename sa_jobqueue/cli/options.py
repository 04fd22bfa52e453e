"""The argument and the options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeAlias

import click

from .engine import ASSUME_LOCKS, DRIVERS, ENGINE, EXAMPLE_URL, URL_VARIABLE

Option: TypeAlias = Callable[[Any], Any]

#: MODULE:QUEUE, the target that most commands work on; :mod:`.targets` imports it.
queue_argument: Option = click.argument("queue", metavar="MODULE:QUEUE")

#: MODULE or MODULE:QUEUE, several of them; the command gets them as `queues`.
targets_argument: Option = click.argument(
    "queues", metavar="MODULE[:QUEUE]...", nargs=-1, required=True
)

#: The longest time that an option takes, 31 years: every database can subtract it from today.
MOST_SECONDS = 1_000_000_000

#: How many rows an option asks for: at least one, at most what every database takes as a limit.
ROWS = click.IntRange(1, 2**31 - 1)

_URL_HELP = f"The database, with its driver: {', '.join(DRIVERS)}, or sqlite:///FILE."

#: --url of the example's commands. They drop tables, so no environment names their database.
example_url_option: Option = click.option(
    "--url", default=EXAMPLE_URL, show_default=True, metavar="URL", help=_URL_HELP
)


def url_option(command: Any) -> Any:
    """Add ``--url`` and ``--engine``: the database of the user's own queue.

    The command gets ``url``, or None, and open_engine() knows about ``--engine``.
    """
    url = click.option(
        "--url", envvar=URL_VARIABLE, show_envvar=True, metavar="URL", help=_URL_HELP
    )
    engine = click.option(
        "--engine",
        metavar="MODULE:ENGINE",
        expose_value=False,
        callback=_note_engine,
        help="The application's own Engine; give it instead of --url.",
    )
    return url(engine(command))


def _note_engine(context: click.Context, _option: object, target: str | None) -> None:
    context.meta[ENGINE] = target


def _note(context: click.Context, _option: object, assumes: bool) -> None:
    context.meta[ASSUME_LOCKS] = assumes


#: --assume-locks, which open_engine() obeys.
assume_locks_option: Option = click.option(
    "--assume-locks",
    is_flag=True,
    expose_value=False,
    callback=_note,
    help="Trust the row locks of a server that is not known; `doctor --locks` proves them.",
)


def seconds_option(name: str, *, zero: bool = True, **options: Any) -> Option:
    """Make an option of so many seconds; the command gets a timedelta, or None.

    Args:
        zero: whether 0 is allowed.
        options: the help and the default, as click takes them.
    """
    return click.option(
        name,
        type=click.FloatRange(min=0, min_open=not zero),
        callback=_as_timedelta,
        metavar="SECONDS",
        **options,
    )


def _as_timedelta(_context: object, _option: object, number: float | None) -> timedelta | None:
    if number is None:
        return None
    if not number <= MOST_SECONDS:  # also what is no number
        raise click.BadParameter(f"{number} is more than {MOST_SECONDS:,} seconds.")
    return timedelta(seconds=number)


#: --json, for a program that reads what a command prints.
json_option: Option = click.option(
    "--json", "as_json", is_flag=True, help="Print JSON instead of a table."
)
