"""Actions: what the buttons of a queue and of a job do, after a preview.

A preview says which jobs will be changed and which left alone, and changes nothing. The answer to
its button says what was changed: somebody else may have been first.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from starlette.responses import RedirectResponse, Response

from ...control import pause, resume
from ...control.tables import tables_for
from ...overview import failed_jobs
from ...queue import JobQueue
from ...steering import (
    BATCH,
    JobState,
    Key,
    Verb,
    key_from,
    keys_from,
    keys_text,
    release_jobs,
    states_of,
)
from ..door import Problem, Visit
from ..reading import reading
from .queue import named_queue

log = logging.getLogger("sa_jobqueue.web")

#: How many failed jobs one request retries; the page offers to go on.
MOST = 10_000

#: How many of them its preview names.
NAMED = 10

#: A priority is a small integer.
PRIORITIES = range(-(2**15), 2**15)


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
        lambda _, queue: queue.retry,
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
        lambda visit, queue: release_jobs(queue, _owners(visit, queue)),
    ),
    "reprioritize": Action(
        "reprioritized",
        "The smallest priority is claimed first.",
        lambda visit, queue: _reprioritize(queue, _priority(visit)),
    ),
}


def verbs_for(queue: JobQueue[Any], status: str) -> list[str]:
    """List the verbs for a job of this status."""
    return [
        verb
        for verb in ACTIONS
        if status in queue.statuses_left_by(verb)
        and (verb != "reprioritize" or queue.mapping.has("priority"))
    ]


def act(visit: Visit) -> Response:
    """Do what a button of a queue's page asks for, or show what it would do."""
    verb = str(visit.form.get("verb", ""))
    if verb in ACTIONS:
        return _confirmed(visit, verb) if "confirm" in visit.form else _preview(visit, verb)
    view = _OTHERS.get(verb)
    if view is None:
        raise Problem(400, "Nothing was done", f"There is no action {verb!r}.")
    return view(visit)


# -- ticked jobs --------------------------------------------------------------


def _preview(visit: Visit, verb: str) -> Response:
    name, queue = named_queue(visit)
    keys, priority = _keys(visit, queue), _priority(visit)
    states = _states(visit, queue, keys)
    leaves = queue.statuses_left_by(verb)
    return visit.page(
        "preview",
        name=name,
        verb=verb,
        action=ACTIONS[verb],
        priority=priority if verb == "reprioritize" else None,
        states={key: states.get(key) for key in keys},
        changes=[key for key in keys if key in states and states[key].status in leaves],
        show=str(visit.form.get("show", "")),
    )


def _confirmed(visit: Visit, verb: str) -> Response:
    name, queue = named_queue(visit)
    keys, action = _keys(visit, queue), ACTIONS[verb]
    changed = visit.site.steering(name).change(keys, action.verb(visit, queue))
    log_action(visit, verb, name, keys, changed)
    left = [key for key in keys if key not in set(changed)]
    states = _states(visit, queue, left) if left else {}
    return visit.page(
        "result",
        name=name,
        action=action,
        changed=changed,
        left={key: states.get(key) for key in left},
        show=str(visit.form.get("show", "")),
    )


def _keys(visit: Visit, queue: JobQueue[Any]) -> list[Key]:
    """Read the keys of the ticked jobs.

    Raises:
        ArgumentError: a text is no key.
        Problem: none is ticked, or too many are.
    """
    keys = keys_from(queue.mapping, map(str, visit.form.getlist("key")))
    if not keys:
        raise Problem(400, "No job is ticked", "Go back, tick some jobs, and press again.")
    if len(keys) > BATCH:
        raise Problem(400, "Nothing was done", f"These are more than {BATCH} jobs.")
    return keys


def _priority(visit: Visit) -> int:
    try:
        priority = int(str(visit.form.get("priority", "0")))
    except ValueError:
        priority = PRIORITIES.stop
    if priority not in PRIORITIES:
        raise Problem(400, "Nothing was done", "A priority is a number from -32768 to 32767.")
    return priority


def _reprioritize(queue: JobQueue[Any], priority: int) -> Verb:
    return lambda session, jobs: queue.reprioritize(session, jobs, priority)


def _owners(visit: Visit, queue: JobQueue[Any]) -> dict[Key, str] | None:
    """Read who had the jobs when the preview was made: claims of others are not released.

    Raises:
        Problem: some jobs have no owner in the form.
    """
    keys, owners = visit.form.getlist("key"), visit.form.getlist("owner")
    if not owners:
        return None
    if len(owners) != len(keys):
        raise Problem(400, "Nothing was done", "The form names other owners than jobs.")
    pairs = zip(keys, owners, strict=True)
    return {key_from(queue.mapping, str(key)): str(owner) for key, owner in pairs}


def _states(visit: Visit, queue: JobQueue[Any], keys: Sequence[Key]) -> dict[Key, JobState]:
    with reading(visit.site.engine) as session:
        return states_of(session, queue, keys)


# -- all failed jobs ------------------------------------------------------------


def _retry_failed(visit: Visit) -> Response:
    name, queue = named_queue(visit)
    if "confirm" not in visit.form:
        return _preview_failed(visit, name, queue)
    changed: list[Key] = []
    try:
        for key in islice(visit.site.steering(name).retry_failed(), MOST):
            changed.append(key)
    finally:  # what was changed before an error stays changed
        log_action(visit, "retry", name, changed, changed)
    more = len(changed) == MOST
    return visit.page("result_failed", name=name, changed=len(changed), more=more)


def _preview_failed(visit: Visit, name: str, queue: JobQueue[Any]) -> Response:
    with reading(visit.site.engine) as session:
        first = failed_jobs(session, queue, limit=NAMED)
    count = visit.site.overview(name)[name].failed
    return visit.page("preview_failed", name=name, count=count, first=first)


# -- pauses ---------------------------------------------------------------------


def _pause(visit: Visit) -> Response:
    return _change_pause(visit, "pause", pause)


def _resume(visit: Visit) -> Response:
    return _change_pause(visit, "resume", resume)


def _change_pause(visit: Visit, verb: str, change: Callable[..., bool]) -> Response:
    """Pause or resume; each undoes the other, so nobody is asked."""
    name, queue = named_queue(visit)
    tables = tables_for(None, queue.mapping)
    steering = visit.site.steering(name)
    changed = steering.run(lambda session: change(session, queue, tables=tables))
    log_action(visit, verb, name, (), [()] if changed else ())
    return RedirectResponse(visit.links.queue(name), status_code=303)


_OTHERS = {"retry_failed": _retry_failed, "pause": _pause, "resume": _resume}


def log_action(
    visit: Visit, verb: str, queue: str, keys: Sequence[Key], changed: Iterable[Key]
) -> None:
    """Log who has done what, to which jobs."""
    count = len(list(changed))
    log.info(
        "%r: %s of %s: %s changed, of %r",
        visit.visitor.name,
        verb,
        queue,
        count,
        keys_text(keys) or "the queue itself",
        extra={
            "visitor": visit.visitor.name,
            "verb": verb,
            "queue": queue,
            "keys": [list(key) for key in keys],
            "changed": count,
        },
    )
