"""How a command is declared: its options, and one function that has its name and its help.

::

    @command(number("--limit", "List at most N jobs.", default=20), json_option)
    def failed(at: Place, limit: int, as_json: bool) -> None:
        ...

Every such command takes targets, ``--url``, ``--engine`` and ``--assume-locks``; its function gets
the queues, and an engine that has connected. ``cli/__init__.py`` lists the commands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import wraps
from math import isnan
from typing import Any, TypeAlias, TypeVar

import click
from click.core import ParameterSource
from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from ..queue import JobQueue
from ..sessions.transactions import run_with_retries
from .database import URL_VARIABLE, URLS, Database
from .printing import in_one_line
from .targets import load_queues

R = TypeVar("R")
Option: TypeAlias = Callable[[Any], Any]

#: The longest time that an option takes, 31 years: every database can subtract it from today.
MOST_SECONDS = 1_000_000_000

targets_argument: Option = click.argument(
    "targets", metavar="MODULE[:QUEUE]...", nargs=-1, required=True
)
target_argument: Option = click.argument(
    "targets", metavar="MODULE[:QUEUE]", callback=lambda _, __, target: (target,)
)
keys_argument: Option = click.argument("keys", metavar="[KEY]...", nargs=-1)


class Commands(click.Group):
    """Commands in groups, each under its title; an error of the database is one line."""

    def __init__(self, groups: Mapping[str, Iterable[click.Command]], **options: Any) -> None:
        commands = [each for group in groups.values() for each in group]
        super().__init__(commands=commands, context_settings={"show_default": True}, **options)
        self._groups = groups

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the help of each group."""
        for title, group in self._groups.items():
            with formatter.section(title):
                formatter.write_dl([(str(it.name), it.get_short_help_str(60)) for it in group])

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; turn errors of SQLAlchemy, and ours, into one line."""
        try:
            return super().invoke(ctx)
        except SQLAlchemyError as error:
            raise click.ClickException(in_one_line(error)) from error


@dataclass(frozen=True)
class Place:
    """Where a command works: queues by the names of their targets, and their engine.

    Attributes:
        targets: as the user wrote them.
    """

    engine: Engine
    queues: dict[str, JobQueue[Any]]
    targets: tuple[str, ...]

    def read(self, work: Callable[[Session], R]) -> R:
        """Call `work` in a session; return its result."""
        with Session(self.engine) as session:
            return work(session)

    def write(self, work: Callable[[Session], R]) -> R:
        """Call `work` in a transaction, again after temporary errors; return its result."""
        return run_with_retries(self.engine, work)


def command(
    *options: Option, tables: bool = True, threads: bool = False, one: bool = False
) -> Callable[[Callable[..., None]], click.Command]:
    """Make a command of a function that gets a Place, and the values of its options.

    Args:
        tables: whether the queues' tables must be there.
        threads: whether it works in threads, which no engine for asyncio can serve.
        one: whether it works on one queue, and takes keys of its jobs.
    """

    def declare(function: Callable[..., None]) -> click.Command:
        def run(database: Database, targets: tuple[str, ...], **values: Any) -> None:
            queues = load_queues(targets)
            if one and len(queues) > 1:
                names = ", ".join(queues)
                raise click.UsageError(f"{targets[0]} has several queues: name one, {names}")
            needed = {queue.mapping.table for queue in queues.values()} if tables else ()
            database.run(
                lambda engine: function(Place(engine, queues, targets), **values),
                needed,
                threads=threads,
            )

        for each in (database_options, *reversed(options)):
            run = each(run)
        run = target_argument(keys_argument(run)) if one else targets_argument(run)
        name = function.__name__.replace("_", "-")
        return click.command(name, help=function.__doc__)(run)

    return declare


def database_options(run: Callable[..., None]) -> Any:
    """Add the options that name a database; the command gets `database`."""

    @wraps(run)
    def with_database(
        url: str | None, engine: str | None, assume_locks: bool, **values: Any
    ) -> None:
        source = click.get_current_context().get_parameter_source("url")
        if engine and source is ParameterSource.COMMANDLINE:
            raise click.UsageError("--url and --engine both name the database: give one of them")
        trusted = assume_locks or values.get("locks", False)  # `doctor --locks` proves them
        run(database=Database(url, engine, trusted), **values)

    url = text("--url", f"The database: {URLS}.", "URL", envvar=URL_VARIABLE, show_envvar=True)
    own = "The application's own Engine, AsyncEngine or sessionmaker, instead of --url."
    trust = "Trust the row locks of a server that is not known; `doctor --locks` proves them."
    return url(text("--engine", own, "MODULE:ENGINE")(flag("--assume-locks", trust)(with_database)))


def flag(name: str, says: str, *argument: str) -> Option:
    """Make an option without a value; the command gets it as this argument."""
    return click.option(name, *argument, is_flag=True, help=says)


def text(name: str, says: str, metavar: str = "NAME", **options: Any) -> Option:
    """Make an option with a text."""
    return click.option(name, metavar=metavar, help=says, **options)


def number(name: str, says: str, *, least: int = 1, most: int = 2**31 - 1, **more: Any) -> Option:
    """Make an option with a number, by default from 1 to what every database takes as a limit."""
    return text(name, says, "N", type=click.IntRange(least, most), **more)


def seconds(name: str, says: str, *, zero: bool = False, **options: Any) -> Option:
    """Make an option of so many seconds, perhaps 0; the command gets a timedelta, or None."""
    kind = click.FloatRange(0, MOST_SECONDS, min_open=not zero)
    return text(name, says, "SECONDS", type=kind, callback=_as_timedelta, **options)


json_option = flag("--json", "Print JSON.", "as_json")
yes_option = flag("--yes", "Do it without asking.")
host_option = text("--host", "The address to listen on.", default="127.0.0.1")


def _as_timedelta(_context: object, _option: object, number: float | None) -> timedelta | None:
    if number is not None and isnan(number):
        raise click.BadParameter("it is no number.")
    return None if number is None else timedelta(seconds=number)


def ask(what: str, *, yes: bool) -> None:
    """Say on the error output what is about to be done, and go on if the user agrees.

    Raises:
        Abort: the user does not agree, or nobody is there to answer.
    """
    if not yes:
        click.confirm(f"About to {what}. Go on?", abort=True, err=True)
