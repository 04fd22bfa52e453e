"""``setup-tables`` and ``start-processing``: the workload on the example model."""

from __future__ import annotations

import time
from dataclasses import dataclass

import click

from ..databases import open_engine, require_table, shown, url_option
from ..stopping import Stopping
from .model import Record, recreate_tables
from .team import LOOK_EVERY, Phase, Report, Team
from .workload import Consumed, Produced, Workload

COUNTER_EVERY = 1_000
FOREVER = float("inf")


@click.command()
@url_option
def setup_tables(url: str) -> None:
    """Drop and create again the table of the example model."""
    engine = open_engine(url, create_file=True)
    recreate_tables(engine)
    click.echo(f"table {Record.__tablename__!r} is ready in {shown(engine)}")


@click.command()
@url_option
@click.option("--producers", type=click.IntRange(min=0), default=2, show_default=True)
@click.option("--consumers", type=click.IntRange(min=0), default=10, show_default=True)
@click.option(
    "--seconds", type=click.FloatRange(min=0), metavar="N", help="Stop then. [default: at Ctrl-C]"
)
@click.option(
    "--pause",
    type=click.FloatRange(min=0),
    default=0.1,
    show_default=True,
    metavar="SECONDS",
    help="Between two transactions of a process.",
)
@click.option("--keep/--delete", help="What becomes of finished rows.  [default: delete]")
def start_processing(
    url: str, producers: int, consumers: int, seconds: float | None, pause: float, keep: bool
) -> None:
    """Insert rows and work on them, each producer and consumer a process of its own."""
    require_table(open_engine(url), Record.metadata.tables[Record.__tablename__])
    workload = Workload(
        url=url, producers=producers, consumers=consumers, pause=pause, delete=not keep
    )
    with Stopping() as stopping, Team(workload) as team:
        run(team, Teller(), stopping, FOREVER if seconds is None else seconds)


@dataclass
class Teller:
    """Print what the processes report; it alone counts what all producers made."""

    counter: int = 0

    def tell(self, report: Report) -> None:
        """Print a batch, or the counter now and then."""
        if isinstance(report, Consumed) and report.keys:
            keys = list(report.keys)
            click.echo(f"consumer {report.consumer} #records = {len(keys)} - {keys}")
        elif isinstance(report, Produced):
            before, self.counter = self.counter, self.counter + report.rows
            if before // COUNTER_EVERY < self.counter // COUNTER_EVERY:
                self.tell_counter()

    def tell_counter(self) -> None:
        """Print how many rows were produced so far."""
        click.echo(f"counter = {self.counter}")


def run(team: Team, teller: Teller, stopping: Stopping, seconds: float) -> None:
    """Have the team work for so long, then end after what each is doing."""
    team.gather(stopping)
    team.go(Phase.RUNNING)
    end = time.monotonic() + seconds
    while team.working and not stopping and time.monotonic() < end:
        listen(team, teller)
    team.go(Phase.STOPPED)
    while team.working:
        listen(team, teller)
    teller.tell_counter()


def listen(team: Team, teller: Teller) -> None:
    """Print what is reported in a moment."""
    for report in team.reports(10 * LOOK_EVERY):
        teller.tell(report)
