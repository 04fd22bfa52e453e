"""How a command is declared: its options, and one function that has its name and its help.

::

    @command("as_json")
    def failed(at: Place, limit: int = number("List at most N jobs.", default=20)) -> Any:
        ...

Every such command takes targets and the options that name databases; its function gets the queues,
and an engine that has connected, for each database. ``cli/__init__.py`` lists the commands.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import timedelta
from functools import wraps
from inspect import signature
from math import isnan
from typing import Any, TypeVar

import click
from click.core import ParameterSource
from click.exceptions import Exit
from rich.table import Column
from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from ..model.keys import queue_name
from ..queue import JobQueue
from ..sessions.transactions import run_with_retries
from ..worker.deadlines import Deadlines
from .database import URL_VARIABLE, URLS, Databases, check_file, connect, one_of
from .printing import Rows, in_one_line, print_json, printable, say, table_of, wide_console
from .targets import load_queues

R = TypeVar("R")
COMMANDLINE = ParameterSource.COMMANDLINE


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


# -- options: the default of a parameter declares one, which has its name -----

#: The longest time that an option takes, 31 years: every database can subtract it from today.
MOST_SECONDS = 1_000_000_000

TARGETS = click.Argument(["targets"], metavar="MODULE[:QUEUE]...", nargs=-1, required=True)
TARGET = click.Argument(["targets"], metavar="MODULE[:QUEUE]", nargs=1, callback=lambda *it: it[2:])
KEYS = click.Argument(["keys"], metavar="[KEY]...", nargs=-1)


@dataclass(frozen=True)
class Option:
    """An option.

    Attributes:
        name: None: that of its parameter.
        settings: what click.Option() is given.
    """

    name: str | None
    settings: dict[str, Any]

    def of(self, parameter: str) -> click.Option:
        """Make the option whose value a parameter gets."""
        name = self.name or "--" + parameter.replace("_", "-")
        return click.Option([name, parameter], **self.settings)


def flag(says: str, name: str | None = None) -> Any:
    """Declare an option without a value."""
    return Option(name, {"is_flag": True, "help": says})


def text(says: str, metavar: str | None = "NAME", **settings: Any) -> Any:
    """Declare an option with a text."""
    return Option(None, {"metavar": metavar, "help": says, **settings})


def number(says: str, *, least: int = 1, most: int = 2**31 - 1, **settings: Any) -> Any:
    """Declare an option with a number, by default from 1 to the largest that databases take."""
    return text(says, "N", type=click.IntRange(least, most), **settings)


def seconds(
    says: str, default: timedelta | None = None, *, zero: bool = False, **settings: Any
) -> Any:
    """Declare an option of so many seconds, perhaps 0; its value is a timedelta, or None."""
    settings["default"] = default and default.total_seconds()
    kind = click.FloatRange(0, MOST_SECONDS, min_open=not zero)
    return text(says, "SECONDS", type=kind, callback=_as_timedelta, **settings)


def _as_timedelta(_context: object, _option: object, number: float | None) -> timedelta | None:
    if number is not None and isnan(number):
        raise click.BadParameter("it is no number.")
    return None if number is None else timedelta(seconds=number)


#: What a command may be asked for besides.
COMMON = {
    "yes": flag("Do it without asking."),
    "full": flag("Print long texts whole, over several lines."),
    "as_json": flag("Print JSON.", "--json"),
}


def given(name: str) -> Any:
    """Return the value of an option or an argument of the running command; None: it has none."""
    return click.get_current_context().params.get(name)


def options_of(function: Callable[..., Any]) -> dict[str, click.Option]:
    """Make the options that the parameters of a function declare, by their names."""
    defaults = {name: it.default for name, it in signature(function).parameters.items()}
    return {name: it.of(name) for name, it in defaults.items() if isinstance(it, Option)}


def plain_command(*arguments: click.Parameter) -> Callable[[Callable[..., Any]], click.Command]:
    """Make a command of a function that gets these, and the values of options that it declares."""
    return lambda function: click.command(
        cls=click.Command, params=[*arguments, *options_of(function).values()]
    )(function)


# -- a command, and where it works ---------------------------------------------


@dataclass(frozen=True)
class Place:
    """Where a command works: an engine that has connected, and queues.

    Attributes:
        queues: by their targets.
        database: its name; "": it has none.
    """

    engine: Engine
    queues: dict[str, JobQueue[Any]]
    database: str = ""

    @property
    def named(self) -> dict[str, JobQueue[Any]]:
        """The queues by the names that people read: outbox, or shop:outbox if there are two."""
        short = Counter(target.rpartition(":")[2] for target in self.queues)
        return {
            target if short[name] > 1 else name: queue
            for target, queue in self.queues.items()
            for name in [target.rpartition(":")[2]]
        }

    @property
    def names(self) -> str:
        """The names of all queues, for a sentence."""
        return ", ".join(self.named)

    @property
    def queue(self) -> JobQueue[Any]:
        """The first queue."""
        return next(iter(self.queues.values()))

    def called(self, queue: str) -> str:
        """Return the name that people read of the queue that tables call so."""
        found = [name for name, it in self.named.items() if queue_name(it) == queue]
        return found[0] if len(found) == 1 else queue

    def read(self, work: Callable[[Session], R]) -> R:
        """Call `work` in a session; return its result."""
        with Session(self.engine) as session:
            return work(session)

    def write(self, work: Callable[[Session], R]) -> R:
        """Call `work` in a transaction, again after temporary errors; return its result."""
        return run_with_retries(self.engine, work)

    def ask(self, what: str) -> None:
        """Say on the error output what is about to be done, and go on if the user agrees.

        Raises:
            Abort: the user does not agree, or nobody is there to answer.
        """
        where = f" in {self.database}" if self.database else ""
        if not given("yes"):
            click.confirm(printable(f"About to {what}{where}. Go on?"), abort=True, err=True)


def show(data: Any, *columns: str | Column, rows: Rows) -> Any:
    """Return the data, for JSON, or print the rows of a table."""
    if given("as_json"):
        return data
    return wide_console().print(table_of(*columns, rows=rows, full=given("full")))


#: How long a call to a database may take until the command shows the others.
PATIENCE = timedelta(seconds=10)


def command(
    *common: str,
    tables: bool = True,
    of_jobs: bool = False,
    together: bool = False,
    threads: bool = False,
) -> Callable[[Callable[..., Any]], click.Command]:
    """Make a command of a function that gets a Place, and the values of options that it declares.

    It is called for each database. It prints, or returns what is to be printed as JSON.

    Args:
        common: options that it has besides, of :data:`COMMON`.
        tables: whether the queues' tables must be there.
        of_jobs: whether it changes jobs of one queue, and takes their keys.
        together: whether it is called once, with the engines by names, and the queues; it
            connects by itself, again and again.
        threads: whether it works in threads, which no engine for asyncio can serve.
    """

    def declare(function: Callable[..., Any]) -> click.Command:
        own = options_of(function)

        def visit(at: Place, shown: dict[str, Any], **values: Any) -> int:
            """Connect and call the function; return an exit code."""
            name, needed = at.database, {queue.mapping.table for queue in at.queues.values()}
            try:
                with Deadlines(at.engine, PATIENCE) if name else nullcontext():
                    connect(at.engine, needed if tables else ())
                if name and not given("as_json"):
                    say(f"{name}:")
                shown[name] = function(at, **values)
            except Exit as end:
                return end.exit_code
            except (SQLAlchemyError, click.ClickException) as error:
                if not name or isinstance(error, click.UsageError):
                    raise
                say(f"{name}: {in_one_line(error)}", err=True)
                shown[name] = None
                return 1
            return 0

        @wraps(function)
        def run(databases: Databases, targets: tuple[str, ...], **values: Any) -> None:
            queues, shown = load_queues(targets), dict[str, Any]()
            values = {name: value for name, value in values.items() if name in own}
            if of_jobs and len(queues) > 1:
                names = ", ".join(queues)
                raise click.UsageError(f"{targets[0]} has several queues: name one, {names}")

            def work(_: object, engines: dict[str, Engine]) -> None:
                if given("keys"):
                    one_of(engines)
                if together:
                    for engine in engines.values():
                        check_file(engine)
                    function(engines, queues, **values)
                    return
                places = [Place(engine, queues, name) for name, engine in engines.items()]
                codes = [visit(place, shown, **values) for place in places]
                if any(each is not None for each in shown.values()):
                    print_json(shown if any(shown) else shown[""])
                # 1 is an error, 3 are warnings of the doctor.
                click.get_current_context().exit(min(filter(None, codes), default=0))

            databases.open(work, threads=threads)

        arguments = (TARGET, KEYS) if of_jobs else (TARGETS,)
        in_place = (*common, "yes", "as_json") if of_jobs else common
        added = [option.of(name) for name, option in COMMON.items() if name in in_place]
        return plain_command(*arguments, *added)(database_options(run))

    return declare


class Urls(click.types.StringParamType):
    """URLs; the environment may name several, with spaces between them."""

    name = "URL"

    def split_envvar_value(self, rv: str) -> list[str]:
        """Divide before each name."""
        return re.split(r"\s+(?=[\w.-]+=)", rv.strip())


OF_URL = f"The database: {URLS}. Several: --url eu=URL --url us=URL."
OF_ENGINE = "The application's own Engine, AsyncEngine or sessionmaker, instead of --url."
OF_ENGINES = "A function that returns a mapping of names to such engines."
TRUST = "Trust the row locks of a server that is not known; `doctor --locks` proves them."
IN_ENVIRONMENT: Any = {"multiple": True, "envvar": URL_VARIABLE, "show_envvar": True}


def databases_of(
    url: tuple[str, ...] = text(OF_URL, "[NAME=]URL", type=Urls(), **IN_ENVIRONMENT),
    engine: str | None = text(OF_ENGINE, "MODULE:ENGINE"),
    engines: str | None = text(OF_ENGINES, "MODULE:FUNCTION"),
    database: str | None = text("Only this one, of several with names."),
    assume_locks: bool = flag(TRUST),
) -> Databases:
    """Return what these options name.

    Raises:
        UsageError: several of them name the database.
    """
    is_given = click.get_current_context().get_parameter_source("url") is COMMANDLINE
    if is_given + bool(engine) + bool(engines) > 1:
        raise click.UsageError("--url, --engine, --engines: give one of them, not several")
    trusted = assume_locks or bool(given("locks"))  # `doctor --locks` proves them
    return Databases(url, engine, engines, database, trusted)


def database_options(run: Callable[..., None]) -> Any:
    """Add the options that name databases; the command gets `databases`."""
    options = options_of(databases_of)

    @wraps(run)
    def with_databases(**values: Any) -> None:
        named = {name: values.pop(name) for name in options}
        run(databases=databases_of(**named), **values)

    # As click's decorators do.
    with_databases.__dict__["__click_params__"] = [*reversed(options.values())]
    return with_databases
