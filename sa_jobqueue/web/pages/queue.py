"""The page of a queue: its figures, and its jobs by their state."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any
from urllib.parse import urlencode

from starlette.responses import Response

from ...counts import Listed, ListedJob, QueueStats, list_jobs, why_incomplete
from ...counts.jobs import sorted_by
from ...dialects.clock import as_utc
from ...errors import ArgumentError
from ...owners.alive import owner_states
from ...queue import JobQueue
from ...steering import key_from, key_text
from ..door import Problem, Visit
from ..reading import reading
from ..rendering import Plot, plot

#: How many jobs a page lists.
PAGE = 50

#: The largest number of a position: that of a round.
LARGEST = 2**31 - 1

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
    visit.site.samples.look()
    which = _listed(visit.asked.get("show"), seen)
    has_priority = queue.mapping.has("priority")
    return visit.page(
        "queue",
        name=name,
        seen=seen,
        plots=plots(visit, name, 480, 90),
        key_names=",".join(column.name for column in queue.mapping.keys),
        tabs={tab: title for tab, (title, _) in TABS.items()},
        which=which,
        listed=_list(visit, queue, which),
        verbs=[verb for verb in TABS[which][1] if verb != "reprioritize" or has_priority],
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
    plain = [value.isoformat() if isinstance(value, datetime) else value for value in values]
    after = json.dumps([*plain, key_text(job.key)])
    return "?" + urlencode({"show": which.value, "after": after})


def _job_before(queue: JobQueue[Any], which: Listed, text: str | None) -> ListedJob | None:
    """Read the last job of the page before; what is none of this list raises a Problem."""
    if text is None:
        return None
    try:
        *values, key = json.loads(text)
        if not isinstance(key, str):
            raise TypeError(key)
        named = zip(sorted_by(queue, which), values, strict=True)
        read = {role: _value(role, value) for role, value in named}
        return ListedJob(key_from(queue.mapping, key), **read)
    except (ValueError, TypeError, OverflowError, RecursionError, ArgumentError) as error:
        raise Problem(404, "Nothing is here", "There is no such page of the list.") from error


def _value(role: str, value: Any) -> Any:
    if role in ("owner_date", "run_at"):
        return as_utc(datetime.fromisoformat(value))
    if type(value) is not int or abs(value) > LARGEST:
        raise ValueError(value)
    return value
