"""Actions: what the buttons of a queue, of a job and of a schedule do, after a preview.

A button sends a form, and is answered by the address of its preview: so the browser's Back shows
the preview again. A preview changes nothing. The answer to the button of a preview says what was
changed: somebody else may have been first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from itertools import islice
from typing import Any, NamedTuple
from urllib.parse import urlencode

from starlette.responses import Response

from ..control import pause, resume
from ..counts import Listed, count_failed, list_jobs
from ..dialects.clock import as_utc
from ..model.keys import SCHEDULES
from ..queue import JobQueue
from ..schedules import ScheduleInfo, Schedules
from ..steering import (
    BATCH,
    JobState,
    Key,
    Verb,
    key_from,
    key_text,
    keys_from,
    keys_without,
    release_jobs,
    states_of,
    unless_changed,
)
from .door import Problem, Visit, refuse_readers
from .rendering import reading

#: A priority is a small integer.
PRIORITIES = range(-(2**15), 2**15)

#: How many failed jobs one request retries; the page offers to go on.
MOST = 10_000

#: The longest address of a preview. Some servers refuse longer ones.
LONGEST = 4_000

#: The verb of the button for all failed jobs.
RETRY_FAILED = "retry_failed"


@dataclass(frozen=True)
class Action:
    """What can be done to ticked jobs.

    Attributes:
        done: the word for a job to which it was done.
        effect: what it means for a job.
        verb: makes the verb; it gets the visit and its queue.
    """

    done: str
    effect: str
    verb: Callable[[Visit, JobQueue[Any]], Verb]


ACTIONS = {
    "retry": Action(
        "retried",
        "Each can be claimed again at once, and its attempts count from 0.",
        lambda visit, queue: _as_previewed(visit, queue, "status", queue.retry),
    ),
    "cancel": Action(
        "cancelled",
        "Nobody claims a cancelled job. It can be retried.",
        lambda _, queue: queue.cancel,
    ),
    "release": Action(
        "released",
        "Each is taken from its owner, and can be claimed again at once. A handler that still "
        "runs goes on, and nothing that it finishes is written.",
        lambda visit, queue: _as_previewed(visit, queue, "owner", release_jobs(queue)),
    ),
    "reprioritize": Action(
        "reprioritized",
        "The smallest priority is claimed first.",
        lambda visit, queue: partial(queue.reprioritize, priority=_priority(visit)),
    ),
}


def act(visit: Visit) -> Response:
    """Do what a button of a queue's page asks for, or go to its preview."""
    verb, confirmed = visit.value("verb"), "confirm" in visit.form
    if verb in ("pause", "resume"):
        return _change_pause(visit, verb)
    if verb in ACTIONS:
        return _confirmed(visit, verb) if confirmed else _go_to_preview(visit, verb)
    if verb == RETRY_FAILED:
        return _retry_failed(visit) if confirmed else _go_to_preview(visit, verb)
    raise refused(f"There is no action {verb!r}.")


def refused(text: str) -> Problem:
    """Return the problem of a form that asks for what cannot be done."""
    return Problem(400, "Nothing was done", text)


# -- previews -----------------------------------------------------------------


def _go_to_preview(visit: Visit, verb: str) -> Response:
    """Answer a form by the address of its preview; where that is too long, by the preview."""
    name, queue = visit.queue
    query = [("verb", verb), ("show", visit.value("show"))]
    if verb != RETRY_FAILED:
        query += [("key", key_text(key)) for key in _keys(visit, queue)]
    if verb == "reprioritize":
        query.append(("priority", str(_priority(visit))))
    address = f"{visit.links('previews', name)}?{urlencode(query)}"
    return show_preview(visit) if len(address) > LONGEST else visit.redirect(address)


def show_preview(visit: Visit) -> Response:
    """Show what an action would do."""
    refuse_readers(visit)
    (name, queue), verb = visit.queue, visit.value("verb")
    if verb == RETRY_FAILED:
        return _preview_failed(visit)
    if verb not in ACTIONS:
        raise Problem(404, "Nothing is here", f"There is no action {verb!r}.")
    keys, priority = _keys(visit, queue), _priority(visit)
    states, leaves = _states(visit, queue, keys), queue.statuses_left_by(verb)
    return visit.page(
        "preview",
        name=name,
        verb=verb,
        action=ACTIONS[verb],
        priority=priority if verb == "reprioritize" else None,
        states={key: states.get(key) for key in keys},
        changes=[key for key in keys if key in states and states[key].status in leaves],
        show=visit.value("show"),
    )


def _preview_failed(visit: Visit) -> Response:
    """Show how many jobs have failed until the last failure, which the form will name."""
    name, queue = visit.queue
    with reading(visit.site.engine) as session:
        first = list_jobs(session, queue, Listed.FAILED, limit=10, complete=True)
        until = first[0].owner_date if first else None
        count = count_failed(session, queue, until=until) if until else 0
    return visit.page("preview_failed", name=name, first=first, until=until, count=count)


# -- what is done -------------------------------------------------------------


def _confirmed(visit: Visit, verb: str) -> Response:
    name, queue = visit.queue
    keys, action = _keys(visit, queue), ACTIONS[verb]
    changed = visit.site.steering(name).change(keys, action.verb(visit, queue))
    visit.log(verb, name, keys, changed)
    left = keys_without(keys, changed)
    states = _states(visit, queue, left) if left else {}
    return visit.page(
        "result",
        name=name,
        action=action,
        changed=changed,
        left={key: states.get(key) for key in left},
        show=visit.value("show"),
    )


def _retry_failed(visit: Visit) -> Response:
    """Retry the jobs that the preview has counted: those that failed until a moment."""
    name, _ = visit.queue
    try:
        until = as_utc(datetime.fromisoformat(visit.value("until")))
    except (ValueError, OverflowError) as error:
        raise refused("The form names no preview.") from error
    text = visit.value("count")
    count = min(int(text), MOST) if text.isdecimal() and len(text) < 10 else 0
    changed: list[Key] = []
    try:
        for key in islice(visit.site.steering(name).retry_failed(until), MOST):
            changed.append(key)
    finally:  # what was changed before an error stays changed
        visit.log("retry", name, changed, changed)
    return visit.page(
        "result_failed",
        name=name,
        changed=len(changed),
        left=max(count - len(changed), 0),
        more=len(changed) == MOST,
        until=until,
    )


def _change_pause(visit: Visit, verb: str) -> Response:
    """Pause or resume; each undoes the other, so nobody is asked."""
    (name, queue), change = visit.queue, {"pause": pause, "resume": resume}[verb]
    changed = visit.site.steering(name).run(partial(change, queue=queue))
    visit.log(verb, name, (), [()] if changed else [])
    return visit.redirect(visit.links.queue(name))


# -- how a form or an address names jobs --------------------------------------


def _keys(visit: Visit, queue: JobQueue[Any]) -> list[Key]:
    keys = keys_from(queue.mapping, map(str, visit.asked.getlist("key")))
    if not keys:
        raise Problem(400, "No job is ticked", "Go back, tick some jobs, and press again.")
    if len(keys) > BATCH:
        raise refused(f"These are more than {BATCH} jobs.")
    return keys


def _priority(visit: Visit) -> int:
    try:
        priority = int(visit.value("priority", "0"))
    except ValueError:
        priority = PRIORITIES.stop
    if priority not in PRIORITIES:
        raise refused("A priority is a number from -32768 to 32767.")
    return priority


def _states(visit: Visit, queue: JobQueue[Any], keys: Sequence[Key]) -> dict[Key, JobState]:
    """Read the state of each of these jobs that is in the queue."""
    with reading(visit.site.engine) as session:
        return states_of(session, queue, keys)


def _as_previewed(visit: Visit, queue: JobQueue[Any], role: str, verb: Verb) -> Verb:
    """Have a verb leave jobs alone that are not as the preview has shown them."""
    keys, values = visit.form.getlist("key"), visit.form.getlist(role)
    if not values:
        return verb
    if len(values) != len(keys):
        raise refused(f"The form does not tell the {role} of each job.")
    texts = [key_text(key_from(queue.mapping, str(key))) for key in keys]
    seen = dict(zip(texts, map(str, values), strict=True))
    return unless_changed(queue.mapping, role, seen, verb)


class ListedSchedule(NamedTuple):
    """A schedule of a queue of the site; `queue` is the queue's name on the site."""

    queue: str
    info: ScheduleInfo
    schedules: Schedules


def show_schedules(visit: Visit) -> Response:
    """Show the schedules of the site's queues."""
    declared = bool(visit.site.beside(SCHEDULES))
    return visit.page("schedules", listed=_list(visit), declared=declared)


def show_run(visit: Visit) -> Response:
    """Show which job a schedule would insert now."""
    refuse_readers(visit)
    return visit.page("preview_schedule", listed=_named(visit, visit.value("name")))


def change_schedule(visit: Visit) -> Response:
    """Do what a button asks for; before a job is inserted, go to a preview."""
    verb, name = visit.value("verb"), visit.value("name")
    if verb not in ("run", "pause", "resume"):
        raise refused(f"There is no action {verb!r}.")
    queue, _, schedules = _named(visit, name)
    if verb == "run" and "confirm" not in visit.form:
        return visit.redirect(visit.links("schedules", "run"), name=name)

    def change(session: Any) -> bool:
        if verb == "run":
            schedules.run_now(session, name, visit.site.queues[queue])
            return True
        return (
            schedules.pause(session, name) if verb == "pause" else schedules.resume(session, name)
        )

    changed = visit.site.steering(queue).run(change)
    visit.log(f"{verb} schedule", queue, [(name,)], [(name,)] if changed else [])
    return visit.redirect(visit.links("schedules"))


def _named(visit: Visit, name: str) -> ListedSchedule:
    found = [each for each in _list(visit) if each.info.name == name]
    if not found:
        raise Problem(404, "No such schedule", f"The queues have no schedule {name!r}.")
    return found[0]


def _list(visit: Visit) -> list[ListedSchedule]:
    """Read the schedules beside the queues."""
    site = visit.site
    with reading(site.engine) as session:
        return [
            ListedSchedule(name, info, schedules)
            for schedules in site.beside(SCHEDULES)
            for info in schedules.all(session)
            for name in site.names_of.get(info.queue, ())[:1]
        ]
