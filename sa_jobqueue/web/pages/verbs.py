"""What can be done to ticked jobs, and how a form or an address names them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ...queue import JobQueue
from ...steering import (
    BATCH,
    JobState,
    Key,
    Verb,
    key_from,
    key_text,
    keys_from,
    release_jobs,
    retry_jobs,
    states_of,
)
from ..door import Problem, Visit
from ..reading import reading

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
        lambda visit, queue: _retry(queue, _previewed(visit, queue, "status")),
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
        lambda visit, queue: release_jobs(queue, _previewed(visit, queue, "owner")),
    ),
    "reprioritize": Action(
        "reprioritized",
        "The smallest priority is claimed first.",
        lambda visit, queue: _reprioritize(queue, asked_priority(visit)),
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


def asked_keys(visit: Visit, queue: JobQueue[Any]) -> list[Key]:
    """Read the keys of the ticked jobs.

    Raises:
        ArgumentError: a text is no key.
        Problem: none is ticked, or too many are.
    """
    keys = keys_from(queue.mapping, map(str, visit.asked.getlist("key")))
    if not keys:
        raise Problem(400, "No job is ticked", "Go back, tick some jobs, and press again.")
    if len(keys) > BATCH:
        raise Problem(400, "Nothing was done", f"These are more than {BATCH} jobs.")
    return keys


def asked_priority(visit: Visit) -> int:
    """Read the priority that ticked jobs are to get.

    Raises:
        Problem: it is no small integer.
    """
    try:
        priority = int(str(visit.asked.get("priority", "0")))
    except ValueError:
        priority = PRIORITIES.stop
    if priority not in PRIORITIES:
        raise Problem(400, "Nothing was done", "A priority is a number from -32768 to 32767.")
    return priority


def asked_states(visit: Visit, queue: JobQueue[Any], keys: Sequence[Key]) -> dict[Key, JobState]:
    """Read the state of each of these jobs that is in the queue."""
    with reading(visit.site.engine) as session:
        return states_of(session, queue, keys)


def _retry(queue: JobQueue[Any], statuses: dict[str, str] | None) -> Verb:
    return queue.retry if statuses is None else retry_jobs(queue, statuses)


def _reprioritize(queue: JobQueue[Any], priority: int) -> Verb:
    return lambda session, jobs: queue.reprioritize(session, jobs, priority)


def _previewed(visit: Visit, queue: JobQueue[Any], what: str) -> dict[str, str] | None:
    """Read what the preview said of the jobs, by the texts of their keys: others are left alone.

    Raises:
        Problem: the form lacks it for some jobs.
    """
    keys, values = visit.form.getlist("key"), visit.form.getlist(what)
    if not values:
        return None
    if len(values) != len(keys):
        raise Problem(400, "Nothing was done", f"The form does not tell the {what} of each job.")
    pairs = zip(keys, values, strict=True)
    return {key_text(key_from(queue.mapping, str(key))): str(text) for key, text in pairs}
