"""What is seen of queues: what they hold, who works on them, and what slows their claims down.

``status``, ``top``, ``failed``, ``workers``, ``health``, ``doctor`` and ``sql`` change nothing.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from operator import itemgetter
from typing import Any, TypeVar

import click
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.table import Column, Table
from rich.text import Text
from sqlalchemy import make_url
from sqlalchemy.exc import OperationalError

from ..ages import age_text, duration_text
from ..control import HOST_LENGTH, paused, tables_for
from ..control import workers as list_workers
from ..counts import Listed, ListedJob, QueueStats, list_jobs, overview, why_incomplete
from ..dialects import database_of_dialect
from ..dialects.examination import Severity
from ..doctor import Report, examine
from ..model.columns import first_line
from ..model.keys import CONTROL, beside, queue_name
from ..owners.alive import OwnerState
from ..process import THREADS, first_signal_stops
from ..queue import JobQueue, claim_statements
from ..steering import key_text
from .command import Place, command, flag, json_option, number, seconds, targets_argument, text
from .database import shown_url
from .printing import in_one_line, print_json, print_table, printable, right, time_text
from .targets import load_queues

R = TypeVar("R")


@command(json_option)
def status(at: Place, as_json: bool) -> None:
    """Count the jobs of queues.

    The command reads only indexes, and is fast on a big table. For one MODULE:QUEUE it also counts
    by status, and reads all rows; --json does not.
    """
    seen = _look(at)
    if as_json:
        print_json([_data(*named) for named in seen.items()])
        return
    (target, queue), *others = at.queues.items()
    if not others and target in at.targets:
        counts = at.read(queue.count_by_status)
        print_table("status", right("jobs"), rows=counts.items())
    Console().print(_overview_table(seen))
    for each in seen.values():
        if each.paused is not None:
            click.echo(pause_text(each.name, each.paused))


@command(seconds("--every", "The time between refreshes.", default=2.0))
def top(at: Place, every: timedelta) -> None:
    """Watch queues in the terminal until Ctrl-C."""
    seen: dict[str, QueueStats] = {}
    where, stop = shown_url(at.engine), THREADS.flag()
    with first_signal_stops(stop.set), Live(auto_refresh=False) as live:
        while True:
            try:
                seen, problem = _look(at), None
            except OperationalError as error:  # a server that is away is asked again
                problem = error
            live.update(picture(seen, where, problem), refresh=True)
            if stop.wait(every.total_seconds()):
                return


@command(number("--limit", "List at most N jobs.", default=20), json_option)
def failed(at: Place, limit: int, as_json: bool) -> None:
    """List failed jobs, the newest first.

    Without the index of failed jobs, which __queue_args__ = {"failed_index": True} declares, only
    the 10,000 rows with the largest keys are looked at.
    """
    found: list[tuple[str, ListedJob]] = []
    for queue in at.queues.values():
        jobs = at.read(partial(list_jobs, queue=queue, which=Listed.FAILED, limit=limit))
        incomplete = at.read(partial(why_incomplete, queue=queue))
        if incomplete is not None:
            click.echo(f"this list may lack jobs: {incomplete}", err=True)
        found += [(queue_name(queue), job) for job in jobs]
    if as_json:
        names = ("queue", "key", "job", "attempts", "failed_at", "last_error")
        values = (
            (it, job.key, job.text, job.attempts, job.owner_date, job.last_error)
            for it, job in found
        )
        print_json([dict(zip(names, each, strict=True)) for each in values])
        return
    calls = ["job"] if any(job.text for _, job in found) else []  # of tasks alone
    rows = (
        (
            *(name, key_text(job.key), *([job.text] if calls else [])),
            *(job.attempts, job.owner_date, first_line(job.last_error)),
        )
        for name, job in found
    )
    columns: tuple[Any, ...] = (
        "queue",
        "key",
        *calls,
        right("attempts"),
        "failed at (UTC)",
        "error",
    )
    print_table(*columns, rows=rows)


def _look(at: Place) -> dict[str, QueueStats]:
    return dict(zip(at.queues, at.read(partial(overview, queues=at.queues.values())), strict=True))


def picture(
    queues: Mapping[str, QueueStats], where: str, error: OperationalError | None = None
) -> RenderableType:
    """Lay out a refresh: where and when, the queues, and what is wrong."""
    head = Text(f"{datetime.now(UTC):%H:%M:%S} UTC  {where}", style="dim", no_wrap=True)
    head.overflow = "ellipsis"
    parts: list[RenderableType] = [head, _overview_table(queues)]
    if error is not None:
        parts.append(f"[red]not read, tried again:[/] {escape(in_one_line(error))}")
    return Group(*parts)


def _data(target: str, seen: QueueStats) -> dict[str, Any]:
    """Return a queue as JSON has it: null where nobody knows."""
    states = [worker.state for worker in seen.workers or ()]
    workers = {state.name.lower(): states.count(state) for state in OwnerState}
    return {
        "target": target,
        "queue": seen.name,
        "due": seen.due,
        "oldest_seconds": seen.oldest,
        "next_due": seen.next_due,
        "claimed": seen.claimed,
        "failed": seen.failed,
        "cancelled": seen.cancelled,
        "finished_per_second": seen.rate,
        "paused": seen.paused,
        "workers": None if seen.workers is None else workers,
    }


def _overview_table(queues: Mapping[str, QueueStats]) -> Table:
    """Lay out queues by the names of their targets."""
    names = ("due", "oldest", "next", "claimed", "failed", "done/s", "workers")
    table = Table(
        Column("queue", overflow="ellipsis"),  # the only one that rich may make narrower
        *(Column(name, justify="right", no_wrap=True) for name in names),
        box=None,
        padding=(0, 1, 0, 0),
    )
    for target, seen in queues.items():
        table.add_row(
            escape(target.rpartition(":")[2]),
            str(seen.due),
            age_text(seen.oldest),
            age_text(None if seen.next_due is None else seen.next_due - datetime.now(UTC)),
            str(seen.claimed),
            "not indexed" if seen.failed is None else str(seen.failed),
            "-" if seen.rate is None else f"{seen.rate:,.{0 if seen.rate >= 10 else 2}f}",
            _workers_text(seen),
        )
    return table


def _workers_text(seen: QueueStats) -> str:
    """Count the workers, those that are dead apart; say that they rest."""
    if seen.workers is None:
        return "-"
    dead = sum(worker.state is OwnerState.DEAD for worker in seen.workers)
    words = [f"{len(seen.workers) - dead}"]
    words += [f"[red]{dead} dead[/]"] if dead else []
    stuck = sum(worker.state is OwnerState.STUCK for worker in seen.workers)
    words += [f"[red]{stuck} stuck[/]"] if stuck else []
    words += ["[yellow]paused[/]"] if seen.paused else []
    return " ".join(words)


def pause_text(queue: str, since: datetime) -> str:
    """Say that a queue is paused, by its name."""
    return f"{printable(queue)} is paused since {time_text(since.astimezone(UTC))} UTC"


@command(json_option)
def workers(at: Place, as_json: bool) -> None:
    """List workers and paused queues.

    They are those of the applications that the queues belong to.
    """
    pauses = listed(at, paused)
    found = [{**vars(it), "state": it.state.name.lower()} for it in listed(at, list_workers)]
    if as_json:
        print_json({"workers": found, "paused": [vars(it) for it in pauses]})
        return
    columns = ("worker", "state", "host", "pid", "queues", right("jobs"), "seen (UTC)")
    shown = ({**it, "pid": str(it["pid"]), "queues": ", ".join(it["queues"])} for it in found)
    values = itemgetter("name", "state", "host", "pid", "queues", "jobs", "seen_at")
    print_table(*columns, rows=map(values, shown))
    for pause in pauses:
        click.echo(pause_text(pause.queue, pause.since))


def listed(
    at: Place, in_tables: Callable[..., list[R]], queues: Iterable[JobQueue[Any]] | None = None
) -> list[R]:
    """Read the control tables of the queues, each once; queues without them are an error."""
    given = at.queues.values() if queues is None else queues
    found = (tables_for(None, queue.mapping) for queue in given)
    each_once = {id(tables): tables for tables in found}.values()
    return at.read(
        lambda session: [it for tables in each_once for it in in_tables(session, tables=tables)]
    )


#: A worker writes its row once in a minute, give or take a fifth.
WITHIN = timedelta(seconds=150)


@command(
    seconds(
        "--within",
        "A worker of this host wrote its row in this time.",
        default=WITHIN.total_seconds(),
    )
)
def health(at: Place, within: timedelta) -> None:
    """Tell by the exit code whether this host works on the queues.

    The database answers, the tables are there, and a worker of this host is at work. Without
    control tables, nothing tells of workers.
    """
    known = [queue for queue in at.queues.values() if beside(queue.mapping, CONTROL)]
    if not known:
        click.echo("ok: the database answers, and the tables are there")
        return
    names, host = set(map(queue_name, at.queues.values())), socket.gethostname()
    here = [it for it in listed(at, list_workers, known) if it.host == host[:HOST_LENGTH]]
    found = [it for it in here if names.intersection(it.queues)]
    young = [it for it in found if datetime.now(UTC) - it.seen_at <= within]
    alive = [it for it in young if it.state not in (OwnerState.DEAD, OwnerState.STUCK)]
    if not alive:
        stuck = next((f"; one is stuck in {it.stuck}" for it in young if it.stuck), "")
        raise click.ClickException(
            f"no worker of {host} is at work: {len(found)} listed, {len(young)} seen within "
            f"{duration_text(within)}{stuck}"
        )
    click.echo(f"ok: {len(alive)} workers of {host} are at work")


# -- what a claim sends, what serves it, and what slows it down ---------------

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
