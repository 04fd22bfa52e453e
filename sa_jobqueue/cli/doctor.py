"""``doctor``: does an index serve the claim, and what slows it down."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import click
from rich.console import Console
from rich.text import Text

from ..dialects.examination import Severity
from ..doctor import OLD_SNAPSHOT, Finding, Report, examine
from .engine import open_engine
from .options import assume_locks_option, queue_argument, seconds_option, url_option
from .targets import load_queue

#: Exit codes; 2 is click's, for wrong options.
ALL_WELL, ERRORS, WARNINGS = 0, 1, 3

STYLES = {Severity.ERROR: "bold red", Severity.WARNING: "yellow", Severity.OK: "green"}


@click.command()
@queue_argument
@url_option
@seconds_option(
    "--old-snapshot",
    default=OLD_SNAPSHOT.total_seconds(),
    show_default=True,
    help="Warn if the snapshot of another transaction is older than this.",
)
@click.option(
    "--locks",
    is_flag=True,
    help="Only prove, by two connections, that row locks hold.",
)
@assume_locks_option
@click.pass_context
def doctor(
    context: click.Context,
    queue: str,
    url: str | None,
    old_snapshot: timedelta,
    locks: bool,
) -> None:
    """Find out what slows down claims of MODULE:QUEUE.

    MODULE:QUEUE names a JobQueue or a mapped class. The doctor says whether an index serves the
    claim. Each finding names its fix. The exit code is 0 if all is well, 1 if there are errors,
    and 3 if there are only warnings.

    The doctor changes nothing, and locks nothing. With --locks one connection locks a row, and a
    second connection tries to lock it too. This works also on a server that is refused as a
    look-alike.
    """
    found = load_queue(queue)
    if locks:
        report = examine(open_engine(url, assume_locks=True), found, checks=["locks"])
    else:
        report = examine(open_engine(url), found, old_snapshot=old_snapshot)
    print_report(report)
    context.exit(exit_code(report))


def exit_code(report: Report) -> int:
    """Return the exit code for a report."""
    if report.errors:
        return ERRORS
    return WARNINGS if report.warnings else ALL_WELL


def print_report(report: Report) -> None:
    """Print the findings, then the facts, then a summary."""
    console = Console(soft_wrap=True, highlight=False)
    console.print(Text(f"{report.queue} on {report.database}", style="bold"))
    for finding in (*report.findings, *report.facts):
        console.print(finding_text(finding))
    console.print(summary(report))


def finding_text(finding: Finding) -> Text:
    """Lay out a finding, with its fix below."""
    text = Text.assemble(
        (f"{finding.severity:<8}", STYLES[finding.severity]),
        (f"{finding.check + ' ':<10}", "dim"),
        finding.message,
    )
    if finding.fix:
        text.append(f"\n{'':<18}fix: {finding.fix}")
    return text


def summary(report: Report) -> str:
    """Return how many findings there are."""
    if not report.findings:
        return "all is well"
    return f"{_counted(report.errors, 'error')}, {_counted(report.warnings, 'warning')}"


def _counted(findings: Sequence[Finding], word: str) -> str:
    return f"{len(findings)} {word}{'' if len(findings) == 1 else 's'}"
