"""The page of a queue: its figures, and its jobs by their state."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from urllib.parse import urlencode

from sqlalchemy.orm import Session
from starlette.responses import RedirectResponse, Response

from ...dialects.clock import as_utc
from ...errors import ArgumentError
from ...model.status import CANCELLED, FAILED
from ...overview import (
    Listed,
    ListedJob,
    Position,
    QueueOverview,
    list_jobs,
    why_incomplete,
)
from ...overview.listing import position_types
from ...owners.alive import OwnerState, owner_states
from ...queue import JobQueue
from ...steering import key_from, key_text
from ..door import Problem, Visit
from ..plots import Plot, plot
from ..reading import reading

#: How many jobs a page lists.
PAGE = 50

#: The largest number of a position: that of a smallint, or of jobs in an order of one's own.
LARGEST = 2**31 - 1

#: Width and height of a plot on this page, in its own units.
PLOT = (480, 90)

TABS = {
    Listed.FAILED: "Failed",
    Listed.CLAIMED: "Claimed",
    Listed.DUE: "Due",
    Listed.LATER: "Later",
    Listed.CANCELLED: "Cancelled",
}

#: The verbs for ticked jobs, by what is listed.
VERBS = {
    Listed.FAILED: ("retry",),
    Listed.CANCELLED: ("retry",),
    Listed.CLAIMED: ("release",),
    Listed.DUE: ("cancel", "reprioritize"),
    Listed.LATER: ("cancel", "reprioritize"),
}


#: The lists that an index of their own finds.
UNSUCCESSFUL = {Listed.FAILED: FAILED, Listed.CANCELLED: CANCELLED}


def show_queue(visit: Visit) -> Response:
    """Show a queue and a page of its jobs, or go to the job whose key was typed."""
    name, queue = named_queue(visit)
    asked = visit.request.query_params
    if asked.get("key"):
        key = typed_key(queue, asked["key"].strip())
        return RedirectResponse(visit.links.job(name, key), status_code=303)
    seen = visit.site.overview(name).get(name)
    if seen is None:
        return visit.page("no_table", name=name, table=queue.mapping.table.fullname)
    visit.site.samples.look()
    which = _listed(asked.get("show"), seen)
    listed = _list(visit, queue, which)
    return visit.page(
        "queue",
        name=name,
        seen=seen,
        plots=_plots(visit, name),
        key_names=key_names(queue),
        tabs=TABS,
        which=which,
        listed=listed,
        verbs=_verbs(queue, which),
        first_page="after" not in asked,
    )


@dataclass(frozen=True)
class JobList:
    """A page of jobs.

    Attributes:
        states: of the owners, by their names.
        next_page: the query of the next page; None: there is none.
        incomplete: why it may lack jobs; None: it has all.
    """

    jobs: Sequence[ListedJob] = ()
    states: Mapping[str, OwnerState] = field(default_factory=dict)
    next_page: str | None = None
    incomplete: str | None = None


def named_queue(visit: Visit) -> tuple[str, JobQueue[Any]]:
    """Return the queue that the path names.

    Raises:
        Problem: the site has no such queue.
    """
    name = visit.parameter("name")
    queue = visit.site.queues.get(name)
    if queue is None:
        raise Problem(404, "No such queue", f"This site has no queue {name!r}.")
    return name, queue


def key_names(queue: JobQueue[Any]) -> str:
    """Name the columns of a queue's key, as they are typed."""
    return ",".join(column.name for column in queue.mapping.keys)


def typed_key(queue: JobQueue[Any], text: str) -> tuple[Any, ...]:
    """Read a key.

    Raises:
        Problem: it cannot be a key of the queue.
    """
    try:
        return key_from(queue.mapping, text)
    except ArgumentError as error:
        raise Problem(404, "No such job", f"{error}.") from error


def _listed(word: str | None, seen: QueueOverview) -> Listed:
    """Return what is asked for; else failed jobs, if an index finds them."""
    if word is None:
        return Listed.DUE if seen.failed is None else Listed.FAILED
    try:
        return Listed(word)
    except ValueError:
        raise Problem(404, "Nothing is here", f"No jobs are listed as {word!r}.") from None


def _list(visit: Visit, queue: JobQueue[Any], which: Listed) -> JobList:
    """Read a page of jobs, and whether their owners live."""
    after = _position(queue, which, visit.request.query_params.get("after"))
    with reading(visit.site.engine) as session:
        jobs = list_jobs(session, queue, which, limit=PAGE + 1, after=after)
        shown, status = jobs[:PAGE], UNSUCCESSFUL.get(which)
        why = None if status is None else why_incomplete(session, queue, status)
        return JobList(shown, _states(session, shown), _next_page(which, jobs), why)


def _states(session: Session, jobs: Sequence[ListedJob]) -> dict[str, OwnerState]:
    return owner_states(session.connection(), {job.owner for job in jobs if job.owner})


def _verbs(queue: JobQueue[Any], which: Listed) -> list[str]:
    has_priority = queue.mapping.has("priority")
    return [verb for verb in VERBS[which] if verb != "reprioritize" or has_priority]


def _plots(visit: Visit, name: str) -> dict[str, Plot | None]:
    width, height = PLOT
    samples = visit.site.samples.of(name)
    due, rate = [each.due for each in samples], [each.rate for each in samples]
    return {
        "due": plot(due, width=width, height=height),
        "rate": plot(rate, width=width, height=height),
    }


# -- pages by key -------------------------------------------------------------


def _next_page(which: Listed, jobs: Sequence[ListedJob]) -> str | None:
    """Return the query of the page behind the last job that is shown."""
    if len(jobs) <= PAGE:
        return None
    after = _position_text(jobs[PAGE - 1])
    return "?" + urlencode({"show": which.value, "after": after})


def _position_text(job: ListedJob) -> str:
    values = job.position[: -len(job.key)]
    plain = [value.isoformat() if isinstance(value, datetime) else value for value in values]
    return json.dumps([*plain, key_text(job.key)])


def _position(queue: JobQueue[Any], which: Listed, text: str | None) -> Position | None:
    """Read a position.

    Raises:
        Problem: it is not one of this list.
    """
    if text is None:
        return None
    try:
        *values, key = json.loads(text)
        if not isinstance(key, str):
            raise TypeError(key)
        types = position_types(queue, which)
        read = [_value(*each) for each in zip(types, values, strict=True)]
        return (*read, *key_from(queue.mapping, key))
    except (ValueError, TypeError, OverflowError, RecursionError, ArgumentError) as error:
        raise Problem(404, "Nothing is here", "There is no such page of the list.") from error


def _value(kind: type[Any], value: Any) -> Any:
    """Read a value of a position.

    Raises:
        ValueError, TypeError, OverflowError: it is not of this type.
    """
    if kind is datetime:
        return as_utc(datetime.fromisoformat(value))
    if type(value) is not int or abs(value) > LARGEST:
        raise ValueError(value)
    return value
