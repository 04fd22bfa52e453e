"""``load``: a bulk load that goes on where it was killed, or is taken back."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from sqlalchemy.exc import SQLAlchemyError

from ..bulk import BulkLoad, DivisibleSource, FileLog, LoadState, Progress
from ..bulk.progress import status_of
from ..errors import BrokenLog, InvalidState, LoadStopped, LockTimeout
from .databases import open_engine, url_option
from .errors import in_one_line
from .importing import load as load_object

STATUS = "status"


@click.command()
@click.argument("source", metavar="MODULE:SOURCE|status")
@click.option(
    "--log",
    "folder",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="This load's folder; an empty one, or none, is a new load.",
)
@url_option
@click.option("--workers", type=click.IntRange(min=1), default=1, show_default=True, metavar="N")
@click.option("--resume", "verb", flag_value="restore", help="Go on after a crash or Ctrl-C.")
@click.option("--rollback", "verb", flag_value="rollback", help="Delete what was inserted.")
@click.option("--clean", "verb", flag_value="clean", help="Delete the log of a load that is done.")
def load(source: str, folder: Path, url: str, workers: int, verb: str | None) -> None:
    """Insert many rows, so that a crash anywhere leaves nothing half done.

    MODULE:SOURCE names a source, such as an InsertSource, or a function that returns one:
    without an argument, or with an Engine, which is that of --url. Ctrl-C ends after the
    current batches. `status` instead says how far the load of --log is.
    """
    log = FileLog(folder)
    with one_line_file_errors():
        before = status_of(log)
    if source == STATUS:
        if not folder.exists():
            raise click.ClickException(f"there is no log in {folder}: no such folder")
        click.echo(before)
        return
    refuse(before.state, verb, folder)
    work = BulkLoad(source_of(source, url), log, workers=workers)
    with work.stopping_on_signals(), shown_progress(work, before):
        call(work, verb or "run")
    click.echo(work.status())


@contextmanager
def one_line_file_errors() -> Iterator[None]:
    """Name the file that cannot be read or written."""
    try:
        yield
    except OSError as error:
        raise click.ClickException(str(error)) from error


def call(work: BulkLoad[Any], verb: str) -> None:
    """Run, go on, take back or clean.

    Raises:
        ClickException: why it ended early, and how it goes on.
    """
    try:
        with one_line_file_errors():
            getattr(work, verb)()
    except (LockTimeout, InvalidState, BrokenLog):
        raise  # they say it themselves
    except LoadStopped:
        raise click.ClickException(f"stopped. {work.status()}; {ways_on()}") from None
    except (SQLAlchemyError, click.ClickException) as error:
        so_far = work.status()
        if so_far.state is not LoadState.BLOCKED:
            raise
        said = error.message if isinstance(error, click.ClickException) else in_one_line(error)
        raise click.ClickException(f"{said.rstrip('.')}. {so_far}; {ways_on()}") from error


def refuse(state: LoadState, verb: str | None, folder: Path) -> None:
    """Refuse to begin what has begun, and to go on with what has not.

    Raises:
        ClickException: says the way out.
    """
    if state is LoadState.INSERTING:
        raise click.ClickException(f"another process works with the load in {folder}")
    if verb is None and state not in (LoadState.STARTING, LoadState.CLEANING):
        way = "--clean makes room for a new load" if state is LoadState.CANCELLED else ways_on()
        raise click.ClickException(f"the load in {folder} is {state}; {way}")
    if verb is not None and state is LoadState.STARTING:
        raise click.ClickException(f"there is no load in {folder}")


def ways_on() -> str:
    """Say how a load goes on."""
    return "--resume goes on, --rollback takes back what is in the table"


def source_of(place: str, url: str) -> DivisibleSource[Any]:
    """Import a source, or have it made.

    Raises:
        ClickException: it is neither.
    """
    found = load_object(place)
    if not isinstance(found, DivisibleSource) and callable(found):
        found = made(found, url)
    if not isinstance(found, DivisibleSource):
        raise click.ClickException(
            f"{place!r} is neither a DivisibleSource nor a function that returns one"
        )
    return found


def made(make: Callable[..., Any], url: str) -> Any:
    """Call a function, with the engine if it takes one."""
    return make(open_engine(url)) if inspect.signature(make).parameters else make()


@contextmanager
def shown_progress(work: BulkLoad[Any], before: Progress) -> Iterator[None]:
    """Show a bar of batches while it works, from how far it is."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("batches"),
        TimeRemainingColumn(),
    )
    with Bar(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("", total=None)

        def tell(progress: Progress) -> None:
            bar.update(
                task,
                description=str(progress.state),
                completed=progress.inserted,
                total=progress.batches,
            )

        tell(before)  # where nothing is to be done, it is the last word
        work.progress = tell
        yield
