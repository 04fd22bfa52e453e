"""``demo``: producers and consumers work for a while, drain the table, and prove the result."""

from __future__ import annotations

import time
from collections.abc import Callable

import click
from rich.console import Console
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from ...dialects import database_of
from ...model.status import CLAIMED, UNCLAIMED
from ...strategies import AUTO, STRATEGIES
from ...strategies.candidates import Candidates
from ...verbs.stats import count_by_status
from ..engine import open_engine, shown_url
from ..options import example_url_option
from ..stop_signals import StopSignals
from .child_process import Phase, Report
from .consumer import Consumed, queue_of
from .display import Display, pause_lines, proof_table
from .model import Record, recreate_tables
from .options import keep_option, process_options
from .processes import Processes
from .producer import LETTERS
from .proof import Proof, prove
from .totals import PauseEffect, Totals
from .workload import Workload

#: How often the display is refreshed, in seconds.
TICK = 0.5

#: How long the drain may take from one finished job to the next, in seconds.
PATIENCE = 60.0

ALWAYS_SHOWN = (UNCLAIMED, CLAIMED)

#: Unmarked claims are left out: they end with their transaction or connection, and these
#: consumers commit before they work, and use another connection for each transaction.
STRATEGY_NAMES = [AUTO, *(name for name, strategy in STRATEGIES.items() if strategy.marks)]


@click.command()
@example_url_option
@click.option(
    "--seconds",
    type=click.FloatRange(min=1),
    default=30,
    show_default=True,
    metavar="N",
    help="How long the producers insert rows.",
)
@process_options(least=1)
@click.option(
    "--strategy",
    type=click.Choice(STRATEGY_NAMES),
    default=AUTO,
    show_default=True,
    help="How to claim. auto chooses candidates if the database can, to count lost candidates.",
)
@keep_option
@click.option(
    "--pause",
    type=click.FloatRange(min=0),
    default=0,
    metavar="SECONDS",
    help="Pause the consumers halfway; the batches after the pause are larger.",
)
def demo(
    url: str,
    seconds: float,
    producers: int,
    consumers: int,
    strategy: str,
    keep: bool,
    pause: float,
) -> None:
    """Run producers and consumers, and prove the result.

    The proof counts in the database that each row was finished once. The command drops the tables
    of the example model, and creates them again. Ctrl-C stops the producers. The consumers then
    finish all rows, and the proof follows.
    """
    if pause >= seconds:
        raise click.BadParameter("the pause must be shorter than --seconds", param_hint="--pause")
    engine = open_engine(url, create_file=True)
    recreate_tables(engine)
    workload = Workload(
        url=url,
        producers=producers,
        consumers=consumers,
        pause=0.1,
        delete=not keep,
        strategy=counting_strategy(engine) if strategy == AUTO else strategy,
        log=True,
    )
    console = Console()
    console.print(f"database: {shown_url(engine)}", soft_wrap=True, highlight=False, markup=False)
    Demo(engine, workload, console).run(seconds, pause)
    conclude(engine, console)


def counting_strategy(engine: Engine) -> str:
    """Choose candidates where it can run, since it counts lost candidates."""
    with engine.connect() as connection:
        database = database_of(connection)
    if database.skip_locked:
        return Candidates.name
    return queue_of(LETTERS[0], AUTO).plan.built_for(database).name


class Demo:
    """A run of the workload, with its display."""

    def __init__(self, engine: Engine, workload: Workload, console: Console) -> None:
        self.engine = engine
        self.workload = workload
        self.totals = Totals(workload.consumers)
        self.display = Display(console, self.totals)
        self.pause: PauseEffect | None = None
        self.phase = Phase.STARTING

    def run(self, seconds: float, pause: float) -> None:
        """Start all processes, let them work, stop the producers, and drain."""
        with StopSignals() as self.stop, Processes(self.workload) as self.processes, self.display:
            self._start()
            for phase, length in timetable(seconds, pause):
                self._let(phase, length)
            self._close()
            self._drain()
        self.display.show_result()
        for line in pause_lines(self.pause) if self.pause else ():
            self.display.print_line(line)

    def _start(self) -> None:
        """Wait until every process has started; the start does not count as run time."""
        self.display.print_line(
            f"starting {self.workload.producers} producers and {self.workload.consumers} "
            f"consumers, strategy {self.workload.strategy}"
        )
        self.processes.wait_until_ready(self.stop)
        self.display.begin()

    def _let(self, phase: Phase, seconds: float) -> None:
        """Let all processes work, or the producers alone, for so long."""
        if self.stop.received:
            return
        if phase is Phase.PAUSED:
            self.display.print_line(f"consumers stopped for {seconds:g} s")
            self.pause = PauseEffect(self.totals.all_consumers.average)
        end = time.monotonic() + seconds
        self._enter(phase)
        self._watch(
            "consumers paused" if phase is Phase.PAUSED else "running",
            lambda: not self.stop.received and time.monotonic() < end,
        )

    def _enter(self, phase: Phase) -> None:
        self.phase = phase
        self.processes.enter(phase)

    def _close(self) -> None:
        self._enter(Phase.CLOSING)
        self._watch("stopping the producers", lambda: self.processes.any_producer_left)

    def _drain(self) -> None:
        self._last_finish = time.monotonic()
        self._enter(Phase.DRAINING)
        self._watch("draining", lambda: self.processes.any_left and self._is_draining())
        self.display.show("drained", self._counts(), now=True)

    def _is_draining(self) -> bool:
        """Return True while jobs get finished.

        Raises:
            ClickException: no job was finished for too long.
        """
        if time.monotonic() - self._last_finish > PATIENCE:
            raise click.ClickException(f"nothing was finished for {PATIENCE:g} s; jobs are left")
        return True

    def _watch(self, doing: str, go_on: Callable[[], bool]) -> None:
        """Count and show reports until it is time for the next phase."""
        while go_on():
            for report in self.processes.reports(TICK):
                self._count(report)
            self.display.show(doing, self._counts())

    def _count(self, report: Report) -> None:
        self.totals.add(report)
        if self.pause is not None and self.phase is not Phase.PAUSED:
            self.pause.add(report)
        if isinstance(report, Consumed) and report.keys:
            self._last_finish = time.monotonic()

    def _counts(self) -> dict[str, int]:
        with Session(self.engine) as session:
            counts = count_by_status(session, Record)
        return {word: count for word, count in counts.items() if count or word in ALWAYS_SHOWN}


def timetable(seconds: float, pause: float) -> list[tuple[Phase, float]]:
    """Return the phases and their lengths, with the pause halfway."""
    if not pause:
        return [(Phase.RUNNING, seconds)]
    around = (seconds - pause) / 2
    return [(Phase.RUNNING, around), (Phase.PAUSED, pause), (Phase.RUNNING, around)]


def conclude(engine: Engine, console: Console) -> None:
    """Print the proof.

    Raises:
        ClickException: the proof fails.
    """
    with Session(engine) as session:
        proof = prove(session)
    console.print(proof_table(proof))
    if not proof.holds:
        raise click.ClickException(f"PROOF FAILED: {failure_text(proof)}")
    click.echo(f"PROOF: inserted = finished = {proof.inserted:,}, none twice, none left")


def failure_text(proof: Proof) -> str:
    """Return the numbers that contradict the proof."""
    if not proof.inserted:
        return "nothing was inserted"
    return (
        f"{proof.inserted:,} inserted, {proof.finished:,} finished, {proof.twice:,} twice, "
        f"{proof.unfinished:,} never, {proof.unknown:,} never inserted, {proof.left:,} left"
    )
