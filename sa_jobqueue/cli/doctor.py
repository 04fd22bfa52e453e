"""``doctor``: is the claim served by its index, at what cost, and what stands in the way."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import click
from rich.console import Console
from rich.text import Text

from ..dialects.examination import Severity
from ..doctor import OLD_SNAPSHOT, Finding, Report, examine
from .databases import open_engine, url_option
from .importing import load_queue

#: Exit codes; 2 is click's, for wrong options.
ALL_WELL, ERRORS, WARNINGS = 0, 1, 3

STYLES = {Severity.ERROR: "bold red", Severity.WARNING: "yellow", Severity.OK: "green"}


@click.command()
@click.argument("queue", metavar="MODULE:QUEUE")
@url_option
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    default=100,
    show_default=True,
    metavar="N",
    help="The size of a batch, as workers claim it.",
)
@click.option(
    "--run/--no-run",
    default=True,
    help="Claim one batch and roll it back, to count rows; or explain only, without a lock.",
)
@click.option(
    "--old-snapshot",
    type=click.FloatRange(min=0),
    default=OLD_SNAPSHOT.total_seconds(),
    show_default=True,
    metavar="SECONDS",
    help="From which age on another transaction's snapshot is old.",
)
@click.pass_context
def doctor(
    context: click.Context, queue: str, url: str, limit: int, run: bool, old_snapshot: float
) -> None:
    """Say whether the claim of MODULE:QUEUE is served by its index, and what is in its way.

    MODULE:QUEUE names a JobQueue or a mapped class. Each finding names what mends it.
    Exits with 0 when all is well, with 1 where there are errors, with 3 where there are
    only warnings.

    One batch is claimed and rolled back: its rows are locked for a moment, and nothing is
    changed. With --no-run nothing is locked.
    """
    found = load_queue(queue)
    report = examine(
        open_engine(url),
        found,
        limit=limit,
        run=run,
        old_snapshot=timedelta(seconds=old_snapshot),
    )
    tell(report)
    context.exit(exit_code(report))


def exit_code(report: Report) -> int:
    """Return what the command ends with."""
    if report.errors:
        return ERRORS
    return WARNINGS if report.warnings else ALL_WELL


def tell(report: Report) -> None:
    """Print the findings, then the facts, then a summary."""
    console = Console(soft_wrap=True, highlight=False)
    console.print(Text(f"{report.queue} on {report.database}", style="bold"))
    for finding in (*report.findings, *report.facts):
        console.print(line(finding))
    console.print(summary(report))


def line(finding: Finding) -> Text:
    """Lay out one finding, its fix below."""
    text = Text.assemble(
        (f"{finding.severity:<8}", STYLES[finding.severity]),
        (f"{finding.check:<10}", "dim"),
        finding.message,
    )
    if finding.fix:
        text.append(f"\n{'':<18}fix: {finding.fix}")
    return text


def summary(report: Report) -> str:
    """Say how many findings there are."""
    if not report.findings:
        return "all is well"
    return f"{_counted(report.errors, 'error')}, {_counted(report.warnings, 'warning')}"


def _counted(findings: Sequence[Finding], word: str) -> str:
    return f"{len(findings)} {word}{'' if len(findings) == 1 else 's'}"
