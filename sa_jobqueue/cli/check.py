"""``check``: judge the histories that a Ledger has recorded."""

from __future__ import annotations

from datetime import timedelta

import click

from ..errors import ArgumentError
from ..evidence import History
from ..evidence import check as find_faults
from .options import seconds_option


@click.command()
@click.argument("files", metavar="FILE..", nargs=-1, required=True)
@click.option(
    "--drained",
    is_flag=True,
    help="The queue was empty at the end: report a job without an end as lost.",
)
@seconds_option(
    "--skew",
    default=1.0,
    show_default=True,
    help="How much the clocks of the processes and of the database may differ.",
)
@click.option(
    "--clock-steps",
    is_flag=True,
    help="The database's clock was stepped: order claims by the clocks of the processes, which "
    "must agree, and do not judge the database's clock and the claim order.",
)
@click.option(
    "--most",
    type=click.IntRange(min=1),
    default=10,
    show_default=True,
    metavar="NUMBER",
    help="Print the stories of at most this many faults.",
)
def check(
    files: tuple[str, ...], drained: bool, skew: timedelta, clock_steps: bool, most: int
) -> None:
    """Check the recorded history of a run.

    FILE is written by a Ledger; give all files of the run. The exit code is 0 if every promise was
    kept, 1 if not, and 2 if a file cannot be read.
    """
    try:
        history = History.read(*files, skew=skew, clock_steps=clock_steps)
    except ArgumentError as error:
        raise click.UsageError(str(error)) from error
    faults = list(find_faults(history, drained=drained))
    for fault in faults[:most]:
        click.echo("\n".join(fault.story()))
    if len(faults) > most:
        click.echo(f"and {len(faults) - most} more")
    found = "1 fault" if len(faults) == 1 else f"{len(faults) or 'no'} faults"
    click.echo(f"{len(history.records)} events of {len(history.rows)} rows: {found}")
    if faults:
        raise click.exceptions.Exit(1)
