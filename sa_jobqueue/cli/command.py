"""A command on queues: it takes targets and the options that name databases.

::

    @command(JSON)
    def failed(at: Place, limit: int = number("List at most N jobs.", default=20)) -> Any:
        ...

Its function gets the queues, and an engine that has connected, for each database.
``cli/__init__.py`` lists the commands, and :mod:`.options` says how options are declared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import wraps
from typing import Any, TypeVar

import click
from click.exceptions import Exit
from rich.table import Column
from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from ..databases import assume_locks
from ..model.keys import queue_name
from ..queue import JobQueue
from ..worker.deadlines import Deadlines
from .database import DATABASES, PATIENCE, check_file, connect, named_databases, one_of
from .options import flag, given, plain_command
from .printing import Rows, in_one_line, print_json, printable, say, table_of, wide_console
from .targets import load_queues

R = TypeVar("R")


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


TARGETS = click.Argument(["targets"], metavar="MODULE[:QUEUE]...", nargs=-1, required=True)
TARGET = click.Argument(["targets"], metavar="MODULE[:QUEUE]", nargs=1, callback=lambda *it: it[2:])
KEYS = click.Argument(["keys"], metavar="[KEY]...", nargs=-1)

#: What a command may be asked for besides.
YES = flag("Do it without asking.").named("yes")
FULL = flag("Print long texts whole, over several lines.").named("full")
JSON = flag("Print JSON.").named("json")


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

    def ask(self, what: str) -> None:
        """Say on the error output what is about to be done, and go on if the user agrees.

        Raises:
            Abort: the user does not agree, or nobody is there to answer.
        """
        where = f" in {self.database}" if self.database else ""
        if not given("yes"):
            click.confirm(printable(f"About to {what}{where}. Go on?"), abort=True, err=True)


def tell(line: object) -> None:
    """Print a line, unless JSON is asked for."""
    if not given("json"):
        say(line)


def show(*columns: str | Column, rows: Rows) -> None:
    """Print the rows of a table, unless JSON is asked for."""
    if not given("json"):
        wide_console().print(table_of(*columns, rows=rows, full=given("full")))


def command(
    *options: click.Parameter,
    tables: bool = True,
    of_jobs: bool = False,
    together: bool = False,
    threads: bool = False,
) -> Callable[[Callable[..., Any]], click.Command]:
    """Make a command of a function that gets a Place, and the values of options that it declares.

    It is called for each database. It prints, and returns what is printed instead for --json.

    Args:
        options: those that it has besides.
        tables: whether the queues' tables must be there.
        of_jobs: whether it changes jobs of one queue, and takes their keys.
        together: whether it is called once, with the engines by names, and the queues; it
            connects by itself, again and again.
        threads: whether it works in threads, which no engine for asyncio can serve.
    """

    def declare(function: Callable[..., Any]) -> click.Command:
        @wraps(function)
        def run(**values: Any) -> None:
            queues = load_queues(given("targets"))
            if of_jobs and len(queues) > 1:
                (target,), names = given("targets"), ", ".join(queues)
                raise click.UsageError(f"{target} has several queues: name one, {names}")
            needed = {queue.mapping.table for queue in queues.values()} if tables else ()

            def visit(at: Place) -> tuple[Any, int]:
                """Connect and call the function; return its data and an exit code."""
                if given("locks"):  # the doctor proves them
                    assume_locks(at.engine)
                try:
                    with Deadlines(at.engine, PATIENCE) if at.database else nullcontext():
                        connect(at.engine, needed)
                    if at.database:
                        tell(f"{at.database}:")
                    return function(at, **values), 0
                except Exit as end:
                    return None, end.exit_code
                except (SQLAlchemyError, click.ClickException) as error:
                    if not at.database or isinstance(error, click.UsageError):
                        raise
                    say(f"{at.database}: {in_one_line(error)}", err=True)
                    return None, 1

            def visit_all(_: object, engines: dict[str, Engine]) -> None:
                if given("keys"):
                    one_of(engines)
                found = {name: visit(Place(it, queues, name)) for name, it in engines.items()}
                if given("json"):
                    shown = {name: data for name, (data, _) in found.items()}
                    print_json(shown if any(shown) else shown[""])
                # 1 is an error, 3 are warnings of the doctor.
                codes = [code for _, code in found.values() if code]
                click.get_current_context().exit(min(codes, default=0))

            def work_together(_: object, engines: dict[str, Engine]) -> None:
                for engine in engines.values():
                    check_file(engine)
                function(engines, queues, **values)

            named_databases().open(work_together if together else visit_all, threads=threads)

        arguments = (TARGET, KEYS, YES, JSON) if of_jobs else (TARGETS,)
        return plain_command(*arguments, *options, *DATABASES)(run)

    return declare
