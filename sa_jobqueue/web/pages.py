"""The pages: of a queue, of a job, and those with a line for each queue, worker or finding."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any
from urllib.parse import urlencode

from sqlalchemy import Column, select
from sqlalchemy.orm import Session
from starlette.responses import Response

from ..control import workers as list_workers
from ..counts import Listed, ListedJob, QueueStats, list_jobs, why_incomplete
from ..counts.count import has_table, queues_there
from ..counts.jobs import sorted_by
from ..dialects.clock import as_utc
from ..doctor import Report, examine
from ..errors import ArgumentError
from ..events import JobRecord, job_records
from ..model.keys import CONTROL, HISTORY, beside
from ..owners.alive import owner_state, owner_states
from ..queue import JobQueue
from ..steering import Key, key_from, key_text
from .actions import ACTIONS
from .door import Problem, Visit
from .rendering import Plot, from_path, plot, reading

#: How many jobs a page lists.
PAGE = 50

#: The title of each list, and the verbs for its ticked jobs.
TABS = {
    Listed.FAILED: ("Failed", ["retry"]),
    Listed.CLAIMED: ("Claimed", ["release"]),
    Listed.DUE: ("Due", ["cancel", "reprioritize"]),
    Listed.LATER: ("Later", ["cancel", "reprioritize"]),
    Listed.CANCELLED: ("Cancelled", ["retry"]),
}


def show_queue(visit: Visit) -> Response:
    """Show a queue and a page of its jobs, or go to the job whose key was typed."""
    name, queue = visit.queue
    if visit.value("key"):
        key = typed_key(queue, visit.value("key").strip())
        return visit.redirect(visit.links.job(name, key))
    seen = visit.site.overview(name).get(name)
    if seen is None:
        return visit.page("no_table", name=name, table=queue.mapping.table.fullname)
    which = _listed(visit.asked.get("show"), seen)
    return visit.page(
        "queue",
        name=name,
        seen=seen,
        plots=plots(visit, name, 480, 90),
        key_names=",".join(column.name for column in queue.mapping.keys),
        tabs={tab: title for tab, (title, _) in TABS.items()},
        which=which,
        listed=_list(visit, queue, which),
        verbs=verbs_of(queue, TABS[which][1]),
        first_page="after" not in visit.asked,
    )


def plots(visit: Visit, name: str, width: int, height: int) -> dict[str, Plot | None]:
    """Draw the samples of a queue, for boxes of this size."""
    samples = visit.site.samples.of(name)
    due, rate = [each.due for each in samples], [each.rate for each in samples]
    return {"due": plot(due, width, height), "rate": plot(rate, width, height)}


def typed_key(queue: JobQueue[Any], text: str) -> tuple[Any, ...]:
    """Read a key; a text that cannot be a key of the queue raises a Problem."""
    try:
        return key_from(queue.mapping, text)
    except ArgumentError as error:
        raise Problem(404, "No such job", f"{error}.") from error


def _listed(word: str | None, seen: QueueStats) -> Listed:
    """Return what is asked for; else failed jobs, if an index finds them."""
    if word is None:
        return Listed.DUE if seen.failed is None else Listed.FAILED
    try:
        return Listed(word)
    except ValueError:
        raise Problem(404, "Nothing is here", f"No jobs are listed as {word!r}.") from None


def _list(visit: Visit, queue: JobQueue[Any], which: Listed) -> dict[str, Any]:
    """Read a page of jobs, whether their owners live, and the query of the next page."""
    after = _job_before(queue, which, visit.asked.get("after"))
    in_own_order = which in (Listed.DUE, Listed.LATER) and not queue.plan.spec.own_order
    with reading(visit.site.engine) as session:
        jobs = list_jobs(session, queue, which, limit=PAGE + 1, after=after)
        shown, why = jobs[:PAGE], why_incomplete(session, queue, which)
        states = owner_states(session.connection(), {job.owner for job in shown if job.owner})
    more = len(jobs) > PAGE and not in_own_order
    next_page = _next_page(queue, which, shown[-1]) if more else None
    return {"incomplete": why, "jobs": shown, "states": states, "next_page": next_page}


# -- pages by key -------------------------------------------------------------


def _next_page(queue: JobQueue[Any], which: Listed, job: ListedJob) -> str:
    """Return the query of the page behind a job."""
    values = [getattr(job, role) for role in sorted_by(queue, which)]
    return "?" + urlencode({"show": which.value, "after": key_text((*values, *job.key))})


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
    """Show the whole story of a job."""
    name, queue = visit.queue
    asked = typed_key(queue, from_path(visit.parameter("key")))
    with reading(visit.site.engine) as session:
        values = _read(session, queue, asked)
        mapping = queue.mapping
        key = tuple(values[each.key] for each in mapping.key_attributes)  # as the database has it
        roles = {role: values[each] for role, each in mapping.attributes.items() if each in values}
        roles["status"] = mapping.told(roles["status"])
        owner = roles.get("owner")
        return visit.page(
            "job",
            name=name,
            key=key,
            row={"roles": roles, **_other_values(queue, values)},
            key_names=[column.name for column in mapping.keys],
            owner_state=None if owner is None else owner_state(session, owner),
            records=_records(session, queue, key),
            verbs=_verbs(queue, roles["status"]),
        )


def _read(session: Session, queue: JobQueue[Any], key: Key) -> dict[str, Any]:
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
    if found is None:
        raise Problem(404, "No such job", "The queue has no job with this key, or not any more.")
    return dict(zip(columns, found, strict=True))


def _other_values(queue: JobQueue[Any], values: dict[str, Any]) -> dict[str, Any]:
    """Sort what is no column of the queue's own: serial keys, the trace, and all others."""
    mapping = queue.mapping
    serial = {column.key for limit in queue.plan.spec.limits for column in limit.columns}
    known = {*mapping.attributes.values(), *(each.key for each in mapping.key_attributes)}
    known.update(mapping.text_keys)  # the text hides what is to be hidden
    parts = str(values.get("traceparent")).split("-")  # of TraceMixin; the second is its id
    return {
        "serial_keys": {name: values[name] for name in sorted(serial) if name in values},
        "trace": parts[1] if len(parts) == 4 else None,
        "text": mapping.text_of(values),
        "others": {name: value for name, value in values.items() if name not in known},
        "not_read": [each.key for each in mapping.mapper.column_attrs if each.deferred],
    }


def _records(session: Session, queue: JobQueue[Any], key: Key) -> list[JobRecord] | None:
    """Return what the history knows; None: there is no history."""
    table, connection = beside(queue.mapping, HISTORY), session.connection()
    if table is None or not has_table(connection, table):
        return None
    return job_records(connection, table, queue, key, limit=RECORDS)


def _verbs(queue: JobQueue[Any], status: str) -> list[str]:
    """List the verbs for a job of this status."""
    return [verb for verb in verbs_of(queue, ACTIONS) if status in queue.statuses_left_by(verb)]


def verbs_of(queue: JobQueue[Any], verbs: Iterable[str]) -> list[str]:
    """Return those of the verbs that the queue's class has columns for."""
    return [verb for verb in verbs if verb != "reprioritize" or queue.mapping.has("priority")]


def show_overview(visit: Visit) -> Response:
    """Show how full and how late the queues are."""
    site = visit.site
    seen = site.overview()
    drawn = {name: plots(visit, name, 120, 28) for name in seen}
    missing = [name for name in site.queues if name not in seen]
    return visit.page("overview", seen=seen, plots=drawn, missing=missing)


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
    return visit.page("doctor", reports=reports)
