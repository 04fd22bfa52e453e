"""The command of a benchmark: its options, its database, what it writes.

    @benchmark(number("--rows", 10_000), ROUNDS, tables=tables)
    def main(database: Database, *, rows: int, rounds: int) -> Figures:
        ...

becomes ``--database``, ``--url``, ``--rows``, ``--rounds`` and ``--results``. It gets an empty
database, measures, writes JSON, prints tables and draws a plot.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

import click

from benchmarks.harness.databases import empty_database
from benchmarks.harness.plots import Draw, draw_beside
from benchmarks.harness.report import Figures, write
from tests.servers import PROVIDERS, ServerUnavailable

RESULTS = Path(__file__).resolve().parents[1] / "results"

Option = Callable[[Any], Any]
Measure = Callable[..., Figures]


def number(name: str, default: int, *, least: int = 1) -> Option:
    """Make an option that is a number."""
    return click.option(name, type=click.IntRange(least), default=default, show_default=True)


def numbers(name: str, default: str) -> Option:
    """Make an option that is a list of numbers, such as 1,10,100."""
    return click.option(name, callback=_numbers, default=default, show_default=True)


def _numbers(_: click.Context, __: click.Parameter, value: str) -> tuple[int, ...]:
    try:
        found = tuple(map(int, value.split(",")))
    except ValueError as error:
        raise click.BadParameter(f"{value!r} is no list of numbers, such as 1,10,100") from error
    if min(found) < 1:
        raise click.BadParameter("each number is at least 1")
    return found


ROUNDS = number("--rounds", 3)


class Benchmark(click.Command):
    """A command that runs a benchmark.

    Attributes:
        measure: the function that measures, for callers who have a database.
    """

    measure: Measure


def benchmark(
    *options: Option, tables: Callable[[Figures], str], draw: Draw | None = None
) -> Callable[[Measure], Benchmark]:
    """Make a command of a function that measures.

    Args:
        options: of this benchmark alone; the function gets their values as keyword arguments.
        tables: writes the figures as Markdown.
        draw: draws what was written.
    """

    def command(measure: Measure) -> Benchmark:
        name = measure.__module__.rpartition(".")[2]

        def run(kind: str, url: str | None, results: Path, **given: Any) -> None:
            try:
                with empty_database(kind, url) as database:
                    figures = measure(database, **given)
                    written = [write(results, name, database, given, figures)]
            except ServerUnavailable as error:
                raise click.ClickException(str(error)) from error
            click.echo(tables(figures))
            if draw is not None:
                written.append(draw_beside(written[0], draw))
            click.echo(f"written: {', '.join(map(str, written))}")

        for option in reversed((*FIRST, *options, LAST)):
            run = option(run)
        made = click.command(name, cls=Benchmark, help=inspect.getdoc(measure))(run)
        made.measure = measure
        return made

    return command


FIRST = (
    click.option("--database", "kind", type=click.Choice(list(PROVIDERS)), required=True),
    click.option("--url", help="Of a server; by default the server that the tests would use."),
)
LAST = click.option(
    "--results",
    type=click.Path(path_type=Path),
    default=RESULTS,
    show_default="benchmarks/results",
    help="The folder that the files go to.",
)


def run_by_name(name: str) -> NoReturn:
    """Run the benchmark of a module that Python runs as ``__main__``, and end the process.

    The module is imported by its own name, which its results and other processes go by. Call this
    behind the imports: the rest of the module would map its classes twice.
    """
    sys.exit(import_module(name).main(prog_name=f"python -m {name}"))
