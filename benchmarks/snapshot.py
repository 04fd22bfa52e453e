"""What an old snapshot costs: the rate in each tenth of a long drain, by one process.

While a report, a backup or an idle session keeps a snapshot, handled rows stay in the claim index.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from benchmarks.growth import courses
from benchmarks.harness.command import benchmark, number, run_by_name
from benchmarks.harness.databases import Database
from benchmarks.harness.plots import BLUE, GREEN, RED, finish_log_axes, server_of
from benchmarks.harness.report import Figures, titled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

if __name__ == "__main__":
    run_by_name(__spec__.name)


def tables(figures: Figures) -> str:
    """Write the table of rates."""
    return titled(("Jobs per second in each tenth of a drain", courses.COLUMNS, figures["courses"]))


def draw(figure: Figure, written: dict[str, Any]) -> None:
    """Draw the time of a batch, its finish included, over the jobs that were handled before."""
    figure.set_size_inches(7, 4.2)
    axes = figure.subplots()
    colours = {"rows": BLUE, "sql": GREEN, "pgqueuer": RED}
    ends = set()
    for course in written["courses"]:
        part = course["jobs"] / len(course["rates"])
        ends |= {course["jobs"] // courses.PARTS, course["jobs"]}
        axes.plot(
            [round(part * (tenth + 1)) for tenth in range(len(course["rates"]))],
            [1000 * course["batch"] / rate for rate in course["rates"]],
            "--^" if course["snapshot"] else "-o",
            ms=4,
            color=colours[course["way"]],
            label=course["way"] + (", old snapshot" if course["snapshot"] else ""),
        )
    title = f"{server_of(written)}: claim and finish of {written['courses'][0]['batch']} jobs"
    finish_log_axes(axes, sorted(ends), title=title, xlabel="jobs handled before", ylabel="ms")


@benchmark(
    number("--jobs", 1_000_000),
    number("--others", 1_000_000),
    number("--batch", 100),
    number("--rounds", 1),
    click.option("--peers/--no-peers", default=True, help="Install PgQueuer, and measure it."),
    tables=tables,
    draw=draw,
)
def main(
    database: Database, *, jobs: int, others: int, batch: int, rounds: int, peers: bool
) -> Figures:
    """Drain a long queue with and without an old snapshot; compare with hand-written SQL.

    The others drain `--others` jobs: a claim of theirs costs what was handled before it, so a
    drain of theirs costs the square.
    """
    ours, *theirs = courses.ways(database.name, peers=peers)
    drains = (([ours], jobs), (theirs, others))
    return {
        "courses": [
            course
            for entries, size in drains
            for course in courses.measure_courses(
                database, entries, batch=batch, workers=1, jobs=size, rounds=rounds
            )
        ]
    }
