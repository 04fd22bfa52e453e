"""``doctor``: does an index serve the claim, and what slows it down."""

from __future__ import annotations

from collections.abc import Sequence

import click
from rich.console import Console
from rich.text import Text

from ..dialects.examination import Severity
from ..doctor import Finding, Report, examine
from .command import Place, command, flag

#: Exit codes; 2 is click's, for wrong options.
ALL_WELL, ERRORS, WARNINGS = 0, 1, 3

STYLES = {Severity.ERROR: "bold red", Severity.WARNING: "yellow", Severity.OK: "green"}


@command(
    flag("--locks", "Only prove, by two connections, that row locks hold."),
    tables=False,
)
def doctor(at: Place, locks: bool) -> None:
    """Find out what slows down claims.

    The doctor says whether an index serves the claim. Each finding names its fix. The exit code is
    0 if all is well, 1 if there are errors, and 3 if there are only warnings.

    The doctor changes nothing, and locks nothing. With --locks one connection locks a row, and a
    second connection tries to lock it too. This works also on a server that is refused as a
    look-alike.
    """
    code = ALL_WELL
    for queue in at.queues.values():
        report = examine(at.engine, queue, checks=["locks"] if locks else None)
        _print_report(report)
        if report.errors or code == ERRORS:
            code = ERRORS
        elif report.warnings:
            code = WARNINGS
    click.get_current_context().exit(code)


def _print_report(report: Report) -> None:
    """Print the findings, then the facts, then a summary."""
    console = Console(soft_wrap=True, highlight=False)
    console.print(Text(f"{report.queue} on {report.database}", style="bold"))
    for finding in (*report.findings, *report.facts):
        console.print(_finding_text(finding))
    found = f"{_counted(report.errors, 'error')}, {_counted(report.warnings, 'warning')}"
    console.print(found if report.findings else "all is well")


def _finding_text(finding: Finding) -> Text:
    """Lay out a finding, with its fix below."""
    text = Text.assemble(
        (f"{finding.severity:<8}", STYLES[finding.severity]),
        (f"{finding.check + ' ':<10}", "dim"),
        finding.message,
    )
    if finding.fix:
        text.append(f"\n{'':<18}fix: {finding.fix}")
    return text


def _counted(findings: Sequence[Finding], word: str) -> str:
    return f"{len(findings)} {word}{'' if len(findings) == 1 else 's'}"
