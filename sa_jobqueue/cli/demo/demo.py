"""``demo``: producers and consumers for a while, then the drain, then the proof."""

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
from ..databases import open_engine, shown, url_option
from ..stopping import Stopping
from .figures import AfterPause, Figures
from .model import Record, recreate_tables
from .proof import Proof, prove
from .team import Phase, Report, Team
from .views import View, pause_lines, proof_table
from .workload import LETTERS, Consumed, Workload, queue_of

TICK = 0.5

#: How long the drain may go on without a job being finished, in seconds.
PATIENCE = 60.0

ALWAYS_SHOWN = (UNCLAIMED, CLAIMED)

#: A claim that is not written down ends with its transaction or its connection; these
#: consumers commit before they work, and take another connection for each transaction.
STRATEGY_NAMES = [AUTO, *(name for name, strategy in STRATEGIES.items() if strategy.marks)]


@click.command()
@url_option
@click.option("--seconds", type=click.FloatRange(min=1), default=30, show_default=True, metavar="N")
@click.option("--producers", type=click.IntRange(min=1), default=2, show_default=True)
@click.option("--consumers", type=click.IntRange(min=1), default=10, show_default=True)
@click.option(
    "--strategy",
    type=click.Choice(STRATEGY_NAMES),
    default=AUTO,
    show_default=True,
    help="auto: candidates where it runs, since it tells how many were lost.",
)
@click.option("--keep/--delete", help="What becomes of finished rows.  [default: delete]")
@click.option(
    "--pause",
    type=click.FloatRange(min=0),
    default=0,
    metavar="SECONDS",
    help="Stop the consumers for so long in the middle; the next batches are larger.",
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
    """Run producers and consumers, and prove that each row was finished once.

    Drops and creates again the tables of the example model. Ctrl-C ends the
    insertion of rows; the rest is finished, and proved.
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
        strategy=telling_strategy(engine) if strategy == AUTO else strategy,
        log=True,
    )
    console = Console()
    console.print(f"database: {shown(engine)}", soft_wrap=True, highlight=False, markup=False)
    Demo(engine, workload, console).run(seconds, pause)
    conclude(engine, console)


def telling_strategy(engine: Engine) -> str:
    """Choose candidates where it can run: it tells how many were lost."""
    with engine.connect() as connection:
        database = database_of(connection)
    if database.skip_locked:
        return Candidates.name
    return queue_of(LETTERS[0], AUTO).plan.built_for(database).name


class Demo:
    """One run of the workload, watched."""

    def __init__(self, engine: Engine, workload: Workload, console: Console) -> None:
        self.engine = engine
        self.workload = workload
        self.figures = Figures(workload.consumers)
        self.view = View(console, self.figures)
        self.pause: AfterPause | None = None
        self.phase = Phase.STARTING

    def run(self, seconds: float, pause: float) -> None:
        """Start all, let them work, stop the producers, drain."""
        with Stopping() as self.stopping, Team(self.workload) as self.team, self.view:
            self._start()
            for phase, length in timetable(seconds, pause):
                self._let(phase, length)
            self._close()
            self._drain()
        self.view.show_result()
        for line in pause_lines(self.pause) if self.pause else ():
            self.view.say(line)

    def _start(self) -> None:
        """Wait until every process is there: their start is no part of the time."""
        self.view.say(
            f"starting {self.workload.producers} producers and {self.workload.consumers} "
            f"consumers, strategy {self.workload.strategy}"
        )
        self.team.gather(self.stopping)
        self.view.begin()

    def _let(self, phase: Phase, seconds: float) -> None:
        """Have everybody work, or the producers alone, for so long."""
        if self.stopping:
            return
        if phase is Phase.PAUSED:
            self.view.say(f"consumers stopped for {seconds:g} s")
            self.pause = AfterPause(self.figures.everybody.average)
        end = time.monotonic() + seconds
        self._go(phase)
        self._watch(
            "consumers paused" if phase is Phase.PAUSED else "running",
            lambda: not self.stopping and time.monotonic() < end,
        )

    def _go(self, phase: Phase) -> None:
        self.phase = phase
        self.team.go(phase)

    def _close(self) -> None:
        self._go(Phase.CLOSING)
        self._watch("stopping the producers", lambda: self.team.producing)

    def _drain(self) -> None:
        self._last_finish = time.monotonic()
        self._go(Phase.DRAINING)
        self._watch("draining", lambda: self.team.working and self._drains())
        self.view.show("drained", self._counts(), now=True)

    def _drains(self) -> bool:
        """Tell that the drain gets on.

        Raises:
            ClickException: it does not.
        """
        if time.monotonic() - self._last_finish > PATIENCE:
            raise click.ClickException(f"nothing was finished for {PATIENCE:g} s; jobs are left")
        return True

    def _watch(self, doing: str, go_on: Callable[[], bool]) -> None:
        """Listen and show until it is time for the next step."""
        while go_on():
            for report in self.team.reports(TICK):
                self._take(report)
            self.view.show(doing, self._counts())

    def _take(self, report: Report) -> None:
        self.figures.add(report)
        if self.pause is not None and self.phase is not Phase.PAUSED:
            self.pause.add(report)
        if isinstance(report, Consumed) and report.keys:
            self._last_finish = time.monotonic()

    def _counts(self) -> dict[str, int]:
        with Session(self.engine) as session:
            counts = count_by_status(session, Record)
        return {word: count for word, count in counts.items() if count or word in ALWAYS_SHOWN}


def timetable(seconds: float, pause: float) -> list[tuple[Phase, float]]:
    """Put the pause into the middle."""
    if not pause:
        return [(Phase.RUNNING, seconds)]
    around = (seconds - pause) / 2
    return [(Phase.RUNNING, around), (Phase.PAUSED, pause), (Phase.RUNNING, around)]


def conclude(engine: Engine, console: Console) -> None:
    """Print the proof.

    Raises:
        ClickException: it fails.
    """
    with Session(engine) as session:
        proof = prove(session)
    console.print(proof_table(proof))
    if not proof.holds:
        raise click.ClickException(f"PROOF FAILED: {why(proof)}")
    click.echo(f"PROOF: inserted = finished = {proof.inserted:,}, none twice, none left")


def why(proof: Proof) -> str:
    """Say what speaks against the proof."""
    if not proof.inserted:
        return "nothing was inserted"
    return (
        f"{proof.inserted:,} inserted, {proof.finished:,} finished, {proof.twice:,} twice, "
        f"{proof.unfinished:,} never, {proof.unknown:,} never inserted, {proof.left:,} left"
    )
