"""``load``: a bulk load that resumes where it was killed, or is rolled back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from inspect import signature
from typing import Any

import click
from rich.console import Console
from rich.progress import Progress as Bar
from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from ..bulk import BulkLoad, FileLog, LoadState, Progress, Source
from ..bulk.manager import status_of
from ..errors import LoadStopped
from ..process import first_signal_stops
from .command import database_options
from .database import Databases, connect, driver_errors, one_of
from .printing import in_one_line, say
from .targets import load_target

WAYS_ON = "--resume continues the load, --rollback deletes what it has inserted"


@click.command()
@click.argument("source", metavar="MODULE:SOURCE|status")
@click.option("--log", metavar="DIR", required=True, help="A new load begins in an empty folder.")
@click.option("--resume", "verb", flag_value="restore", help="Continue after a crash or Ctrl-C.")
@click.option("--rollback", "verb", flag_value="rollback", help="Delete what was inserted.")
@click.option("--clean", "verb", flag_value="clean", help="Delete the log of a finished load.")
@database_options
def load(source: str, log: str, verb: str | None, databases: Databases) -> None:
    """Insert many rows; resume or roll back after a crash.

    MODULE:SOURCE names a source, such as an InsertSource, or a function that returns a
    source. The function takes no argument, or the Engine of --url or --engine. Ctrl-C stops
    the load after the current batch. Give `status` instead of MODULE:SOURCE to see the
    progress of a load.
    """
    with driver_errors():
        before = status_of(FileLog(log))
    if before.state is LoadState.STARTING and (verb or source == "status"):
        raise click.ClickException(f"there is no load in {log}")
    if source == "status":
        say(before)
        return
    if before.state is LoadState.INSERTING:
        raise click.ClickException(f"another process works with the load in {log}")
    if verb is None and before.state not in (LoadState.STARTING, LoadState.CLEANING):
        way = "--clean makes room for a new load"
        way = way if before.state is LoadState.CANCELLED else WAYS_ON
        raise click.ClickException(f"the load in {log} is {before.state}; {way}")
    found = load_target(source)

    def run(made: Any) -> None:
        if not isinstance(made, Source):
            raise click.ClickException(
                f"{source!r} is neither a source nor a function that returns one"
            )
        bulk_load = BulkLoad(made, FileLog(log))
        with first_signal_stops(bulk_load.stop), _progress_bar(bulk_load, before):
            _call(bulk_load, verb or "run")
        say(bulk_load.status())

    def run_on_engine(_: object, engines: dict[str, Engine]) -> None:
        connect(engine := one_of(engines))
        run(found(engine))

    if not isinstance(found, Source) and callable(found) and signature(found).parameters:
        databases.open(run_on_engine, threads=True)
    else:
        run(found if isinstance(found, Source) or not callable(found) else found())


def _call(bulk_load: BulkLoad[Any], verb: str) -> None:
    """Call run, restore, rollback or clean.

    Raises:
        ClickException: the load ended early; says why, and how to go on.
    """
    try:
        getattr(bulk_load, verb)()
    except (SQLAlchemyError, OSError) as error:
        progress, reason = bulk_load.status(), in_one_line(error)
        if progress.state is LoadState.BLOCKED:
            reason = "stopped" if isinstance(error, LoadStopped) else reason.rstrip(".")
            reason = f"{reason}. {progress}; {WAYS_ON}"
        raise click.ClickException(reason) from error


@contextmanager
def _progress_bar(bulk_load: BulkLoad[Any], before: Progress) -> Iterator[None]:
    """Show a bar of batches, which starts with the batches that are in already."""
    with Bar(console=Console(stderr=True)) as bar:
        task = bar.add_task("")

        def update(now: Progress) -> None:
            told = f"{now.state} {now.inserted}/{now.batches} batches"
            bar.update(task, description=told, completed=now.inserted, total=now.batches)

        update(before)  # a load with nothing left to do reports no progress
        bulk_load.progress = update
        yield
