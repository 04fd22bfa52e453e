"""What is seen of queues: what they hold, who works on them, and what slows their claims down.

``status``, ``top``, ``failed``, ``workers``, ``health``, ``doctor`` and ``sql`` change nothing.
"""

from __future__ import annotations

import os
import re
import socket
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import chain
from typing import Any, TypeVar

import click
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Column, Table
from rich.text import Text
from sqlalchemy import Engine, make_url
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from .. import control
from ..ages import age_text, count_text, duration_text, rate_text, rough_text, time_text
from ..counts import Listed, QueueStats, list_jobs, overview, why_incomplete, workers_needed
from ..counts.count import has_table
from ..counts.stats import count_statuses
from ..databases import database_of_dialect
from ..doctor import Report, Severity, examine
from ..groups import progress_of_all
from ..model.columns import first_line
from ..model.keys import CONTROL, beside, queue_name
from ..model.mapping import GROUPS
from ..owners.alive import OwnerState
from ..process import THREADS, first_signal_stops
from ..queue import JobQueue, claim_statements
from ..steering import key_text
from ..worker.deadlines import Deadlines
from .command import FULL, JSON, TARGETS, Place, command, show, tell
from .database import PATIENCE, shown_url
from .options import flag, given, number, plain_command, seconds, text
from .printing import in_one_line, printable, right, say, table_of, whole, wide_console
from .targets import load_queues

R = TypeVar("R")


@command(JSON)
def status(
    at: Place,
    drain_in: timedelta | None = seconds("With --json: tell how many workers drain it in so long."),
) -> Any:
    """Count the jobs of queues.

    The command reads only indexes, and is fast on a big table. For one MODULE:QUEUE it also counts
    by status, and reads all rows; --json does not.
    """
    if drain_in is not None and not given("json"):
        raise click.UsageError("--drain-in needs --json")
    seen = _look(at)
    if given("json"):
        found = zip(at.queues, seen.values(), strict=True)
        return [_data(target, each, drain_in) for target, each in found]
    (target, queue), *others = at.queues.items()
    if not others and target in given("targets"):
        counts = at.read(queue.count_by_status)
        Console().print(table_of("status", right("jobs"), rows=counts.items()))
    Console().print(overview_table(seen))
    for name, each in seen.items():
        if each.paused is not None:
            _tell_paused(name, each.paused)
    for line in _waits(at):
        say(line)
    return None


def _waits(at: Place) -> Iterator[str]:
    """Tell for how many groups and signals jobs wait, in lines."""
    queues = at.queues.values()
    workflows = dict.fromkeys(getattr(queue, "workflow", None) for queue in queues)
    with Session(at.engine) as session:
        for queue in {queue.mapping.table.metadata: queue for queue in queues}.values():
            groups = beside(queue.mapping, GROUPS)
            if groups is None or not has_table(session.connection(), groups.table):
                continue
            number, progress = progress_of_all(session, queue.mapping.entity)
            if number:
                bad = f", {progress.failed:,} failed or cancelled" if progress.failed else ""
                done = f"{progress.done:,} of {progress.total:,} members are done"
                yield f"jobs wait for {count_text(number, 'group')}: {done}{bad}"
        for workflow in filter(None, workflows):
            counts = count_statuses(session, workflow.entity, workflow.signals)
            for status, count in counts.items():
                if count is None or count.number:
                    many = count or "not indexed"
                    yield f"{status!r} of {workflow.mapping}: {many}, until a signal"


#: From this width on, `top` draws how many jobs were due at its last looks, so many.
WIDE, LOOKS = 100, 20


@command(together=True)
def top(
    engines: dict[str, Engine],
    queues: dict[str, JobQueue[Any]],
    every: timedelta = seconds("The time between refreshes.", timedelta(seconds=2)),
) -> None:
    """Watch queues in the terminal until q or Ctrl-C."""
    seen: dict[str, QueueStats] = {}
    lately: dict[str, deque[int]] = {}
    waits: dict[str, list[str]] = {}
    where = ", ".join(name or shown_url(engine) for name, engine in engines.items())
    stop = THREADS.flag()
    with first_signal_stops(stop.set), q_stops(stop.set), Live(auto_refresh=False) as live:
        while True:
            problems = []
            for name, engine in engines.items():
                try:
                    with Deadlines(engine, PATIENCE):
                        looked = _look(at := Place(engine, queues))
                        found = {f"{name} {queue}".lstrip(): it for queue, it in looked.items()}
                        waits[name] = [f"{name} {line}".lstrip() for line in _waits(at)]
                except (DBAPIError, OSError) as error:  # a server that is away is asked again
                    problems.append(f"{name} not read, tried again: {in_one_line(error)}".lstrip())
                    continue
                seen |= found
                for queue, stats in found.items():
                    lately.setdefault(queue, deque(maxlen=LOOKS)).append(stats.due.number)
            drawn = lately if live.console.width >= WIDE else {}
            live.update(picture(seen, where, problems, drawn, waits), refresh=True)
            if stop.wait(every.total_seconds()):
                return


@contextmanager
def q_stops(stop: Callable[[], object]) -> Iterator[None]:
    """Have the key q call `stop`, if there is a terminal."""
    if os.name != "posix" or not sys.stdin.isatty():
        yield
        return
    import termios
    import tty

    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)

    def listen() -> None:
        while pressed := os.read(terminal, 1):
            if pressed in b"qQ":
                stop()

    tty.setcbreak(terminal)
    THREADS.start(listen, name="sa_jobqueue keys")
    try:
        yield
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)


@command(FULL, JSON)
def failed(at: Place, limit: int = number("List at most N jobs.", default=20)) -> Any:
    """List failed jobs, the newest first.

    Without the index of failed jobs, which __queue_args__ = {"failed_index": True} declares, only
    the 10,000 rows with the largest keys are looked at.
    """
    rows: list[tuple[object, ...]] = []
    data: list[dict[str, object]] = []
    for name, queue in at.named.items():
        jobs = at.read(partial(list_jobs, queue=queue, which=Listed.FAILED, limit=limit))
        incomplete = at.read(partial(why_incomplete, queue=queue))
        if incomplete is not None:
            say(f"this list may lack jobs: {incomplete}", err=True)
        for job in jobs:
            told = {"job": job.text, "attempts": job.attempts, "failed_at": job.owner_date}
            last = {"last_error": job.last_error}
            data.append({"queue": queue_name(queue), "key": job.key, **told, **last})
            rows.append((name, key_text(job.key), *told.values(), first_line(job.last_error)))
    columns = ("queue", whole("key"), "job", right("tries"), whole("failed at (UTC)"), "error")
    show(*columns, rows=rows)
    return data


def _look(at: Place) -> dict[str, QueueStats]:
    return dict(zip(at.named, at.read(partial(overview, queues=at.queues.values())), strict=True))


def picture(
    seen: Mapping[str, QueueStats],
    where: str,
    problems: Iterable[str] = (),
    lately: Mapping[str, Sequence[int]] | None = None,
    waits: Mapping[str, Iterable[str]] | None = None,
) -> RenderableType:
    """Lay out a refresh: where and when, the queues with trouble first, and what is wrong.

    Args:
        lately: how many jobs of a queue were due at the last looks, to be drawn.
        waits: for what jobs wait in a database, in lines.
    """
    when = f"{datetime.now(UTC):%H:%M:%S} UTC"
    head = Text(f"{when}  {where}", style="dim", no_wrap=True, overflow="ellipsis")
    sorted_seen = sorted(seen.items(), key=lambda each: -len(each[1].worries))
    table = overview_table(dict(sorted_seen), lately)
    lines = map(Text, chain.from_iterable((waits or {}).values()))
    return Group(head, table, *lines, *(Text(problem, style="red") for problem in problems))


#: The bars of a plot, from 0 to the most.
BARS = " \u2581\u2582\u2583\u2584\u2585\u2586\u2587\u2588"


def spark(numbers: Sequence[int]) -> str:
    """Draw numbers as bars; only 0 has none."""
    most = max(*numbers, 1)
    return "".join(BARS[-(-number * 8 // most)] for number in numbers)


#: What JSON calls the figures of a queue that have another name, or are lists, in QueueStats.
DATA = {"name": "queue", "oldest": "oldest_seconds", "rate": "finished_per_second"}


def _data(target: str, seen: QueueStats, drain_in: timedelta | None) -> dict[str, Any]:
    """Return a queue as JSON has it: null where nobody knows."""
    states = [worker.state for worker in seen.workers or ()]
    workers = {state.name.lower(): states.count(state) for state in OwnerState}
    figures = {DATA.get(name, name): value for name, value in vars(seen).items()}
    told = {"target": target, **figures, "workers": None if seen.workers is None else workers}
    return told if drain_in is None else {**told, "workers_needed": workers_needed(seen, drain_in)}


def overview_table(
    queues: Mapping[str, QueueStats], lately: Mapping[str, Sequence[int]] | None = None
) -> Table:
    """Lay out queues by their names."""
    figures = ("due", "oldest", "next", "claimed", "failed", "done/s", "workers")
    drawn = ["due lately"] if lately else []
    rows = (
        (name, *_figures(seen), *([spark(lately[name])] if lately else []))
        for name, seen in queues.items()
    )
    return table_of("queue", *map(right, figures), *drawn, rows=rows, gap=1)


def _figures(seen: QueueStats) -> Iterator[object]:
    """Yield what a line has of a queue behind its name."""
    yield from (seen.due, age_text(seen.oldest))
    yield age_text(None if seen.next_due is None else seen.next_due - datetime.now(UTC))
    yield from (seen.claimed, "not indexed" if seen.failed is None else seen.failed)
    yield from (rate_text(seen.rate), _workers_text(seen))


def _workers_text(seen: QueueStats) -> Text | None:
    """Count the workers, those that are dead apart; say that they rest."""
    if seen.workers is None:
        return None
    states = Counter(worker.state for worker in seen.workers)
    words = [f"{len(seen.workers) - states[OwnerState.DEAD]}"]
    for state, name in ((OwnerState.DEAD, "dead"), (OwnerState.STUCK, "stuck")):
        words += [f"[red]{states[state]} {name}[/]"] if states[state] else []
    words += ["[yellow]paused[/]"] if seen.paused else []
    return Text.from_markup(" ".join(words))


def _tell_paused(queue: str, since: datetime) -> None:
    tell(f"{queue} is paused since {time_text(since)} UTC")


@command(FULL, JSON)
def workers(at: Place) -> Any:
    """List workers and paused queues.

    They are those of the applications that the queues belong to.
    """
    pauses, found = listed(at, control.paused), listed(at, control.workers)
    columns = (whole("worker"), whole("state"), "host", right("pid"), "queues", right("jobs"))
    rows = (
        (it.name, it.state.name.lower(), it.host, str(it.pid), queues, it.jobs, f"{seen} ago")
        for it in found
        for queues in [", ".join(map(at.called, it.queues))]
        for seen in [rough_text(datetime.now(UTC) - it.seen_at)]
    )
    show(*columns, whole("seen"), rows=rows)
    for pause in pauses:
        _tell_paused(at.called(pause.queue), pause.since)
    data = [{**vars(it), "state": it.state.name.lower()} for it in found]
    return {"workers": data, "paused": list(map(vars, pauses))}


def listed(at: Place, in_tables: Callable[..., list[R]]) -> list[R]:
    """Read the control tables of the queues, each once; queues without them are an error."""
    each_once = dict.fromkeys(control.tables_for(None, it) for it in at.queues.values())
    return at.read(
        lambda session: [it for tables in each_once for it in in_tables(session, tables=tables)]
    )


def workers_of(at: Place) -> list[control.WorkerInfo]:
    """Return the workers that take jobs of the queues."""
    names = set(map(queue_name, at.queues.values()))
    return [it for it in listed(at, control.workers) if names.intersection(it.queues)]


#: A worker writes its row once in a minute, give or take a fifth.
WITHIN = timedelta(seconds=150)


@command()
def health(at: Place) -> None:
    """Tell by the exit code whether this host works on the queues.

    The database answers, the tables are there, and a worker of this host is at work: it has
    written its row within 150 seconds. Without control tables, nothing tells of workers.
    """
    known = {name: it for name, it in at.queues.items() if beside(it.mapping, CONTROL)}
    if not known:
        say("ok: the database answers, and the tables are there")
        return
    host, now = socket.gethostname()[: control.HOST_LENGTH], datetime.now(UTC)
    found = [it for it in workers_of(replace(at, queues=known)) if it.host == host]
    young = [it for it in found if now - it.seen_at <= WITHIN]
    alive = [it for it in young if it.state not in (OwnerState.DEAD, OwnerState.STUCK)]
    if not alive:
        stuck = next((f"; one is stuck in {it.stuck}" for it in young if it.stuck), "")
        raise click.ClickException(
            f"no worker of {host} is at work: {len(found)} listed, {len(young)} seen within "
            f"{duration_text(WITHIN)}{printable(stuck)}"
        )
    say(f"ok: {len(alive)} workers of {host} are at work")


# -- what a claim sends, what serves it, and what slows it down ---------------

STYLES = {Severity.ERROR: "bold red", Severity.WARNING: "yellow", Severity.OK: "green"}

_EXPANDING = re.compile(r"(?P<open>\()?__\[POSTCOMPILE_(?P<name>\w+)\](?(open)\))")


@command(tables=False)
def doctor(
    at: Place,
    locks: bool = flag("Only prove, by two connections, that row locks hold."),
    full: bool = flag("Print what is well, too."),
) -> None:
    """Find out what slows down claims.

    The doctor says whether an index serves the claim. Each finding names its fix. The exit code is
    0 if all is well, 1 if there are errors, and 3 if there are only warnings.

    The doctor changes nothing, and locks nothing. With --locks one connection locks a row, and a
    second connection tries to lock it too. This works also on a server that is refused as a
    look-alike.
    """
    found: set[Severity] = set()
    for name, queue in at.named.items():
        report = examine(at.engine, queue, checks=["locks"] if locks else None)
        _print_report(name, report, full=full or locks)
        found.update(each.severity for each in report.findings)
    code = 1 if Severity.ERROR in found else 3 if Severity.WARNING in found else 0
    click.get_current_context().exit(code)


def _print_report(name: str, report: Report, *, full: bool) -> None:
    """Print the findings with their fixes, then what is well in one line, then a summary."""
    console, lines = wide_console(), Table.grid(Column(width=8), Column(width=10), "")
    for it in (*report.findings, *(report.facts if full else ())):
        fix = f"\nfix: {printable(it.fix)}" if it.fix else ""
        severity, check = Text(it.severity, STYLES[it.severity]), Text(it.check, "dim")
        lines.add_row(severity, check, Text(f"{printable(it.message)}{fix}"))
    if report.facts and not full:
        well = ", ".join(dict.fromkeys(fact.check for fact in report.facts))
        lines.add_row(Text("ok", "green"), "", Text(well, "dim"))
    counts = (count_text(len(report.errors), "error"), count_text(len(report.warnings), "warning"))
    console.print(Text(f"{name}: {report.queue} on {report.database}", "bold"), lines)
    console.print(Text(", ".join(counts) if report.findings else "all is well"))


@plain_command(TARGETS)
def sql(targets: tuple[str, ...], dialect: str = text("The database.", required=True)) -> None:
    """Print the SQL that claims jobs, for the newest server.

    The databases are postgresql, mysql, mariadb and sqlite.
    """
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
