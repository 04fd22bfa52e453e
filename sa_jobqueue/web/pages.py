"""The pages: of a queue, of a job, and those with a line for each queue, worker or finding."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from concurrent.futures import wait
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, cast
from urllib.parse import urlencode

from sqlalchemy import Column, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session
from starlette.responses import Response

from ..control import workers as list_workers
from ..counts import Listed, ListedJob, QueueStats, failures_by_kind, list_jobs, why_incomplete
from ..counts.count import has_table, queues_there
from ..counts.jobs import count_listed, sorted_by
from ..counts.reading import TIME_LIMIT, Seen, reading
from ..counts.stats import count_statuses
from ..databases.clock import as_utc
from ..doctor import Report, examine
from ..errors import ArgumentError, MissingTable
from ..events import JobRecord, job_records
from ..groups import Group, GroupProgress, group_before, group_progress
from ..model.keys import CONTROL, HISTORY, beside
from ..model.status import CANCELLED, FAILED
from ..owners.alive import owner_state, owner_states
from ..queue import JobQueue
from ..steering import Key, key_from, key_text, statuses_left_by
from .actions import ACTIONS, FILTERS, WHOLE, list_schedules, listed_as
from .door import Problem, Visit, log_problem
from .rendering import Links, from_path, plot
from .site import SHOWN, Site

#: How many jobs a page lists.
PAGE = 50

#: So many kinds of failures are shown above their list.
KINDS = 5

#: A schedule is overdue when its tick is so old.
LATE = timedelta(minutes=1)

#: The title of each list, and the verbs for its ticked jobs.
TABS = {
    Listed.FAILED: ("Failed", ["retry", "prune"]),
    Listed.CLAIMED: ("Claimed", ["stop", "cancel", "release"]),
    Listed.DUE: ("Due", ["cancel", "reprioritize"]),
    Listed.LATER: ("Later", ["cancel", "reprioritize"]),
    Listed.CANCELLED: ("Cancelled", ["retry", "prune"]),
}


def show_queue(visit: Visit) -> Response:
    """Show a queue and a page of its jobs, or go to the job whose key was typed."""
    name, queue = visit.queue
    if text := visit.value("key").strip():
        return visit.redirect(visit.links.job(name, typed_key(queue, text)))
    seen = visit.site.overview(name)[name]
    if seen is None:
        return visit.page("no_table", name=name, table=queue.mapping.table.fullname)
    if isinstance(seen, DBAPIError):
        raise seen
    usual = Listed.DUE if seen.failed is None else Listed.FAILED
    which = listed_as(visit.value("show", usual.value))
    counts = {it: getattr(seen, it.value, None) for it in Listed}
    with reading(visit.site.engine) as session:
        counts[Listed.LATER] = count_listed(session, queue, Listed.LATER)
        graph, listed = _graph(visit, session, queue), _list(visit, session, queue, which)
    verbs = verbs_of(queue, TABS[which][1])
    return visit.page(
        "queue",
        name=name,
        seen=seen,
        graph=graph,
        plots=plots(visit.site, name, 480, 90),
        key_names=",".join(column.name for column in queue.mapping.keys),
        tabs={tab: (title, counts[tab]) for tab, (title, _) in TABS.items()},
        which=which,
        listed=listed,
        verbs=verbs,
        whole=[verb for verb in verbs if verb in WHOLE],
        first_page="after" not in visit.asked,
        filters=visit.values(FILTERS),
    )


def plots(site: Site, name: str, width: int, height: int) -> dict[str, Any]:
    """Draw the samples of a queue, for boxes of this size; tell the largest counts."""
    samples, now, span = site.sampled(name), time.monotonic(), SHOWN.total_seconds()
    due = [(now - each.taken, float(each.waiting.number)) for each in samples]
    rate = [(now - each.taken, each.rate) for each in samples]
    return {
        "due": plot(due, width, height, span=span),
        "rate": plot(rate, width, height, span=span),
        "most_due": max((each.waiting for each in samples), default=None),
    }


def _graph(visit: Visit, session: Session, queue: JobQueue[Any]) -> dict[str, Any] | None:
    """Return the ways through a step's workflow, with the jobs of each status and their lists."""
    workflow: Any = getattr(queue, "workflow", None)
    if workflow is None:
        return None
    ways = [(step.name, [step.ready, step.during], step.targets) for step in workflow]
    ways += [("signal", [word], targets) for word, targets in workflow.signals.items()]
    linked, word = dict[str, str](), queue.mapping.word
    for name, each in visit.site.queues.items():
        if getattr(each, "workflow", None) is workflow:
            lists = {"failed": word(FAILED), "cancelled": word(CANCELLED)}
            lists |= {"due": each.ready, "claimed": each.during}
            to = visit.links.queue(name)
            linked |= {status: f"{to}?show={show}" for show, status in lists.items()}
    words = dict.fromkeys([word for _, path, _ in ways for word in path] + [*workflow.final])
    counts = count_statuses(session, queue.entity, words)
    return {"ways": ways, "final": workflow.final, "counts": counts, "linked": linked}


def typed_key(queue: JobQueue[Any], text: str) -> tuple[Any, ...]:
    """Read a key; a text that cannot be a key of the queue raises a Problem."""
    try:
        return key_from(queue.mapping, text)
    except ArgumentError as error:
        raise Problem(404, "No such job", f"{error}.") from error


def _list(visit: Visit, session: Session, queue: JobQueue[Any], which: Listed) -> dict[str, Any]:
    """Read a page of jobs, whether their owners live, and the query of the next page."""
    after, filters = _job_before(queue, which, visit.asked.get("after")), visit.values(FILTERS)
    in_own_order = which in (Listed.DUE, Listed.LATER) and not queue.plan.spec.own_order
    jobs = list_jobs(session, queue, which, limit=PAGE + 1, after=after, **filters)
    shown, why = jobs[:PAGE], why_incomplete(session, queue, which)
    states = owner_states(session.connection(), {job.owner for job in shown if job.owner})
    by_kind = which is Listed.FAILED and after is None and not filters
    kinds = failures_by_kind(session, queue) if by_kind else []
    more = len(jobs) > PAGE and not in_own_order
    expired = datetime.now(UTC) - queue.mapping.args.lease
    return {
        "incomplete": why,
        "jobs": shown,
        "states": states,
        "kinds": kinds[:KINDS] if len(kinds) > 1 else [],
        "has_text": any(job.text for job in shown),
        "next_page": _query_of(queue, which, shown[-1], filters) if more else None,
        "late": {job.key for job in shown if job.owner_date and job.owner_date < expired},
    }


# -- pages by key -------------------------------------------------------------


def _query_of(queue: JobQueue[Any], which: Listed, job: ListedJob, filters: dict[str, str]) -> str:
    """Return the query of the page behind a job."""
    values = [getattr(job, role) for role in sorted_by(queue, which)]
    query = {"show": which.value, **filters, "after": key_text((*values, *job.key))}
    return "?" + urlencode(query)


def _job_before(queue: JobQueue[Any], which: Listed, text: str | None) -> ListedJob | None:
    """Read the last job of the page before; what is none of this list raises a Problem."""
    if text is None:
        return None
    roles = sorted_by(queue, which)
    try:
        read = key_from(queue.mapping, text, *map(queue.mapping.column, roles))
        values: list[Any] = [as_utc(it) if isinstance(it, datetime) else it for it in read]
    except (ArgumentError, OverflowError) as error:
        raise Problem(404, "Nothing is here", "There is no such page of the list.") from error
    return ListedJob(read[len(roles) :], **dict(zip(roles, values, strict=False)))


#: How many records of the history are shown.
RECORDS = 100


def show_job(visit: Visit) -> Response:
    """Show the whole story of a job, or what the history knows of one that is deleted."""
    name, queue = visit.queue
    asked, mapping = typed_key(queue, from_path(visit.parameter("key"))), queue.mapping
    with reading(visit.site.engine) as session:
        values = _read(session, queue, asked)
        if values is None:
            records = _records(session, queue, asked)
            if not records:
                text = "The queue has no job with this key, or not any more."
                raise Problem(404, "No such job", text)
            return visit.page("gone", name=name, key=asked, records=records)
        key = tuple(values[each.key] for each in mapping.key_attributes)  # as the database has it
        roles = {role: values[each] for role, each in mapping.attributes.items() if each in values}
        roles["status"] = status = mapping.told(roles["status"])
        owner, claimed = roles.get("owner"), status in queue.plan.spec.in_progress
        possible = verbs_of(queue, ACTIONS)
        return visit.page(
            "job",
            name=name,
            key=key,
            row={"roles": roles, **_other_values(queue, values)},
            key_names=[column.name for column in mapping.keys],
            owner_state=owner_state(session, owner) if owner and claimed else None,
            claimed=claimed,
            groups=_groups(session, queue, roles, key),
            records=_records(session, queue, key),
            verbs=[verb for verb in possible if status in statuses_left_by(queue, verb)],
        )


def _groups(
    session: Session, queue: JobQueue[Any], roles: Mapping[str, Any], key: Key
) -> dict[str, GroupProgress]:
    """Tell how far the job's own group is, and the one that the job waits for."""
    entity, found = queue.entity, dict[str, GroupProgress]()
    if roles.get("group_id") is not None:
        with suppress(ArgumentError):  # it is forgotten
            group = Group(entity, roles["group_id"])
            found[f"Member of group {group.id}"] = group_progress(session, group)
    waits = roles["status"] in queue.mapping.waiting
    if waits and (before := group_before(session, entity, key)) is not None:
        found[f"Waits for group {before.id}"] = group_progress(session, before)
    return found


def _read(session: Session, queue: JobQueue[Any], key: Key) -> dict[str, Any] | None:
    """Read the columns of a job by their attributes, but for the deferred ones."""
    columns = {
        attribute.key: getattr(queue.entity, attribute.key)
        for attribute in queue.mapping.mapper.column_attrs
        if isinstance(attribute.columns[0], Column) and not attribute.deferred
    }
    attributes = queue.mapping.key_attributes
    is_it = [column == value for column, value in zip(attributes, key, strict=True)]
    wanted = select(*columns.values()).where(*is_it, *queue.plan.spec.where)
    found = session.execute(wanted).first()
    return None if found is None else dict(zip(columns, found, strict=True))


def _other_values(queue: JobQueue[Any], values: dict[str, Any]) -> dict[str, Any]:
    """Sort what is no column of the queue's own: serial keys, the trace, and all others."""
    mapping = queue.mapping
    serial = {*(limit.names if (limit := queue.plan.spec.key_limit) else ())}
    known = {*mapping.attributes.values(), *(each.key for each in mapping.key_attributes)}
    known.update(mapping.text_keys)  # the text hides what is to be hidden
    parts = str(values.get("traceparent")).split("-")  # of TraceMixin; the second is its id
    return {
        "serial_keys": {name: values[name] for name in sorted(serial) if name in values},
        "trace": parts[1] if len(parts) == 4 else None,
        "text": mapping.shown_text(values),
        "others": {name: value for name, value in values.items() if name not in known},
        "not_read": [each.key for each in mapping.mapper.column_attrs if each.deferred],
    }


def _records(session: Session, queue: JobQueue[Any], key: Key) -> list[JobRecord] | None:
    """Return what the history knows; None: there is no history."""
    table, connection = beside(queue.mapping, HISTORY), session.connection()
    if table is None or not has_table(connection, table):
        return None
    return job_records(connection, table, queue, key, limit=RECORDS)


def verbs_of(queue: JobQueue[Any], verbs: Iterable[str]) -> list[str]:
    """Return those of the verbs that the queue's class has columns and tables for."""
    mapping = queue.mapping
    lacks = [] if mapping.has("priority") else ["reprioritize"]
    lacks += [] if beside(mapping, CONTROL) else ["stop"]
    return [verb for verb in verbs if verb not in lacks]


class Line(NamedTuple):
    """A queue on the first page, or a database that cannot be read.

    Attributes:
        links: to the pages of its database.
        seen: what it holds; None: there is no table, or `trouble` says why it cannot be read.
    """

    database: str
    links: Links
    name: str = ""
    seen: QueueStats | None = None
    trouble: str = ""


def show_overview(visit: Visit) -> Response:
    """Show how full and how late the queues are, those with trouble first."""
    lines, overdue, findings = list[Line](), dict[str, list[str]](), dict[str, int]()
    for database, found in _looks(visit.shown).items():
        to = visit.links.within(database)
        if isinstance(found, Problem):
            lines.append(Line(database, to, trouble=f"{found.title}."))
            continue
        seen, overdue[database] = found
        findings[database] = sum(visit.sites[database].findings.values())
        for name, it in seen.items():
            trouble = log_problem(it, database).text if isinstance(it, DBAPIError) else ""
            stats = it if isinstance(it, QueueStats) else None
            lines.append(Line(database, to, name, stats, trouble))
    return visit.page(
        "overview",
        lines=sorted(lines, key=lambda line: -len(line.seen.worries) if line.seen else 0),
        plot=lambda line: plots(visit.sites[line.database], line.name, 120, 28),
        overdue={name: names for name, names in overdue.items() if names},
        findings={name: number for name, number in findings.items() if number},
    )


#: What the first page reads of a database: its queues, and the schedules that are overdue.
Look = tuple[dict[str, Seen], list[str]]


def _looks(sites: Mapping[str, Site]) -> dict[str, Look | Problem]:
    """Look at databases at once; one that is away or silent spoils none of the others."""
    if len(sites) == 1:
        return {name: _look(site) for name, site in sites.items()}
    asked = {name: site.ask(_look) for name, site in sites.items()}
    found: dict[str, Look | Problem] = {}
    for name, (future, begun) in asked.items():
        # One whose table is locked needs a little more than TIME_LIMIT for all of its queues.
        left = begun + 2 * TIME_LIMIT.total_seconds() - time.monotonic()
        if not wait([future], max(left, 0)).done:
            found[name] = Problem(503, "The database does not answer", "")
        elif (error := future.exception()) is not None:
            found[name] = log_problem(cast("Exception", error), name)
        else:
            found[name] = future.result()
    return found


def _look(site: Site) -> Look:
    return site.overview(), _overdue(site)


def _overdue(site: Site) -> list[str]:
    """Name the schedules whose tick should have been handled a minute ago."""
    then = datetime.now(UTC) - LATE
    try:
        listed = list_schedules(site)
    except (MissingTable, DBAPIError):  # the page of schedules says so
        return []
    return [it.info.name for it in listed if not it.info.paused and it.info.next_tick < then]


def show_workers(visit: Visit) -> Response:
    """Show the workers that have a queue of the site; those of other queues are not shown."""
    site, tables = visit.site, visit.site.beside(CONTROL)
    with reading(site.engine) as session:
        found = [worker for each in tables for worker in list_workers(session, tables=each)]
    return visit.page(
        "workers",
        workers=[worker for worker in found if {*site.names_of}.intersection(worker.queues)],
        names=site.names_of,
        declared=bool(tables),
    )


def show_doctor(visit: Visit) -> Response:
    """Show what the doctor finds; it claims nothing and locks nothing."""
    site, reports = visit.site, dict[str, Report]()
    with reading(site.engine) as session:
        there = queues_there(session.connection(), site.queues)
    for name, queue in there.items():
        with reading(site.engine) as session:
            reports[name] = examine(session, queue)
        site.findings[name] = len(reports[name].findings)
    return visit.page("doctor", reports=reports)
