"""``doctor`` and ``sql``: what a claim sends, what serves it, and what slows it down."""

from __future__ import annotations

import re
from typing import Any

import click
from rich.console import Console
from rich.text import Text
from sqlalchemy import make_url

from ..dialects import database_of_dialect
from ..dialects.examination import Severity
from ..doctor import Report, examine
from ..queue import claim_statements
from .command import Place, command, flag, targets_argument, text
from .targets import load_queues

STYLES = {Severity.ERROR: "bold red", Severity.WARNING: "yellow", Severity.OK: "green"}

_EXPANDING = re.compile(r"(?P<open>\()?__\[POSTCOMPILE_(?P<name>\w+)\](?(open)\))")


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
    found: set[Severity] = set()
    for queue in at.queues.values():
        report = examine(at.engine, queue, checks=["locks"] if locks else None)
        _print_report(report)
        found.update(each.severity for each in report.findings)
    code = 1 if Severity.ERROR in found else 3 if Severity.WARNING in found else 0
    click.get_current_context().exit(code)


def _print_report(report: Report) -> None:
    """Print the findings with their fixes, then the facts, then a summary."""
    console = Console(soft_wrap=True, highlight=False)
    console.print(Text(f"{report.queue} on {report.database}", style="bold"))
    for finding in (*report.findings, *report.facts):
        severity = (f"{finding.severity:<8}", STYLES[finding.severity])
        fix = f"\n{'':<18}fix: {finding.fix}" if finding.fix else ""
        check = (f"{finding.check + ' ':<10}", "dim")
        console.print(Text.assemble(severity, check, finding.message, fix))
    counts = ((len(report.errors), "error"), (len(report.warnings), "warning"))
    counted = ", ".join(f"{number} {word}{'' if number == 1 else 's'}" for number, word in counts)
    console.print(counted if report.findings else "all is well")


@click.command()
@targets_argument
@text("--dialect", "postgresql, mysql, mariadb or sqlite.", required=True)
def sql(targets: tuple[str, ...], dialect: str) -> None:
    """Print the SQL that claims jobs, for the newest server."""
    # Named parameters: those of a driver would be %s or ?.
    kind: Any = make_url(f"{dialect}://").get_dialect()
    made = kind(paramstyle="named")
    # MySQL's dialect writes "FOR UPDATE OF" only once it has connected to a server that has it.
    if hasattr(made, "supports_for_update_of"):
        made.supports_for_update_of = database_of_dialect(made).lock_of
    for queue in load_queues(targets).values():
        for statement in claim_statements(queue, dialect=made):
            compiled: Any = statement.compile(dialect=made)  # type: ignore[attr-defined]
            for key, value in compiled.params.items():
                if value is not None:
                    click.echo(f"-- :{key} = {value!r}")
            click.echo(_EXPANDING.sub(r"(:\g<name>)", str(compiled)) + ";\n")
