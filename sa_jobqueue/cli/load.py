"""``load``: a bulk load that resumes where it was killed, or is rolled back."""

from __future__ import annotations

from typing import Any

import click
from rich.console import Console
from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from ..bulk import BulkLoad, FileLog, LoadState, Source
from ..bulk.manager import status_of
from ..errors import LoadStopped
from ..process import first_signal_stops
from .database import DATABASES, connect, driver_errors, named_databases, one_of
from .options import plain_command
from .printing import in_one_line, say
from .targets import load_target

WAYS_ON = {
    LoadState.BLOCKED: "--resume continues the load, --rollback deletes what it has inserted",
    LoadState.CANCELLED: "--clean makes room for a new load",
}


@plain_command(*DATABASES)
@click.argument("source", metavar="MODULE:SOURCE|status")
@click.option("--log", metavar="DIR", required=True, help="A new load begins in an empty folder.")
@click.option("--resume", "verb", flag_value="restore", help="Continue after a crash or Ctrl-C.")
@click.option("--rollback", "verb", flag_value="rollback", help="Delete what was inserted.")
@click.option("--clean", "verb", flag_value="clean", help="Delete the log of a finished load.")
def load(source: str, log: str, verb: str | None) -> None:
    """Insert many rows; resume or roll back after a crash.

    MODULE:SOURCE names a source, such as an InsertSource, or a function that returns a source for
    the Engine of --url or --engine. Ctrl-C stops the load after the current batch. Give `status`
    instead of MODULE:SOURCE to see the progress of a load.
    """
    with driver_errors():
        before = status_of(FileLog(log))
    if before.state is LoadState.STARTING and (verb or source == "status"):
        raise click.ClickException(f"there is no load in {log}")
    if source == "status":
        say(before)
        return
    if verb is None and before.state in WAYS_ON:
        raise click.ClickException(f"the load in {log} is {before.state}; {WAYS_ON[before.state]}")
    found = load_target(source)

    def run_on_engine(_: object, engines: dict[str, Engine]) -> None:
        connect(engine := one_of(engines))
        _run(found(engine), log, verb or "run")

    if callable(found):
        named_databases().open(run_on_engine, threads=True)
    else:
        _run(found, log, verb or "run")


def _run(source: Any, log: str, verb: str) -> None:
    """Call run, restore, rollback or clean, and show the progress in a terminal.

    Raises:
        ClickException: the load ended early; says why, and how to go on.
    """
    if not isinstance(source, Source):
        raise click.ClickException(f"{source!r} is neither a source nor a function that makes one")
    bulk_load = BulkLoad(source, FileLog(log))
    with first_signal_stops(bulk_load.stop), Console(stderr=True).status("") as line:
        bulk_load.progress = lambda now: line.update(str(now))
        try:
            getattr(bulk_load, verb)()
        except (SQLAlchemyError, OSError) as error:
            progress, reason = bulk_load.status(), in_one_line(error)
            if progress.state is LoadState.BLOCKED:
                reason = "stopped" if isinstance(error, LoadStopped) else reason.rstrip(".")
                reason = f"{reason}. {progress}; {WAYS_ON[progress.state]}"
            raise click.ClickException(reason) from error
    say(bulk_load.status())
