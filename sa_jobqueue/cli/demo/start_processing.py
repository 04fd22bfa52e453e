"""``start-processing``: producers and consumers on the example model, until Ctrl-C."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import timedelta

import click

from ..engine import open_engine, require_table
from ..options import example_url_option, seconds_option
from ..stop_signals import StopSignals
from .child_process import LOOK_EVERY, Phase, Report
from .consumer import Consumed
from .model import Record
from .options import keep_option, process_options
from .processes import Processes
from .producer import Produced
from .workload import Workload

COUNTER_EVERY = 1_000
FOREVER = float("inf")


@click.command()
@example_url_option
@process_options(least=0)
@click.option(
    "--seconds",
    type=click.FloatRange(min=0),
    metavar="N",
    help="Stop after so many seconds.  [default: at Ctrl-C]",
)
@seconds_option(
    "--pause",
    default=0.1,
    show_default=True,
    help="Pause between two transactions of a process.",
)
@keep_option
def start_processing(
    url: str, producers: int, consumers: int, seconds: float | None, pause: timedelta, keep: bool
) -> None:
    """Insert rows and work on them.

    Each producer and each consumer is a process of its own.
    """
    require_table(open_engine(url), Record.metadata.tables[Record.__tablename__])
    workload = Workload(
        url=url,
        producers=producers,
        consumers=consumers,
        pause=pause.total_seconds(),
        delete=not keep,
    )
    with StopSignals() as stop, Processes(workload) as processes:
        run(processes, Printer(), stop, FOREVER if seconds is None else seconds)


@dataclass
class Printer:
    """Print what the processes report, and count the rows of all producers."""

    counter: int = 0

    def print(self, report: Report) -> None:
        """Print a batch, or the counter after each thousand rows."""
        if isinstance(report, Consumed) and report.keys:
            keys = list(report.keys)
            click.echo(f"consumer {report.consumer} #records = {len(keys)} - {keys}")
        elif isinstance(report, Produced):
            before, self.counter = self.counter, self.counter + report.rows
            if before // COUNTER_EVERY < self.counter // COUNTER_EVERY:
                self.print_counter()

    def print_counter(self) -> None:
        """Print how many rows were produced so far."""
        click.echo(f"counter = {self.counter}")


def run(processes: Processes, printer: Printer, stop: StopSignals, seconds: float) -> None:
    """Let the processes work for so long; then each ends after its transaction."""
    processes.wait_until_ready(stop)
    processes.enter(Phase.RUNNING)
    end = time.monotonic() + seconds
    while processes.any_left and not stop.received and time.monotonic() < end:
        listen(processes, printer)
    processes.enter(Phase.STOPPED)
    while processes.any_left:
        listen(processes, printer)
    printer.print_counter()


def listen(processes: Processes, printer: Printer) -> None:
    """Listen to the processes for a moment, and print their reports."""
    for report in processes.reports(10 * LOOK_EVERY):
        printer.print(report)
