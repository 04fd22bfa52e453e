"""Actions: what the buttons of a queue, of a job and of a schedule do, after a preview.

A button sends a form, and is answered by the address of its preview: so the browser's Back shows
the preview again. A preview changes nothing. The answer to the button of a preview says what was
changed: somebody else may have been first.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import urlencode

from starlette.responses import Response

from .. import steering
from ..control import pause, resume
from ..counts import Listed, list_jobs
from ..counts.jobs import count_listed
from ..counts.reading import reading
from ..databases.clock import as_utc, time_of
from ..model.keys import SCHEDULES
from ..queue import JobQueue
from ..schedules import ScheduleInfo, Schedules
from ..steering import BATCH, JobState, Key, Verb
from .door import Problem, Visit, refuse_reader
from .site import Site

#: A priority is a small integer.
PRIORITIES = range(-(2**15), 2**15)

#: How many jobs of a list one request changes; the page goes on with the next ones.
MOST = 10_000

#: So many jobs of a list are shown before all are changed.
FIRST = 10

#: The longest address of a preview. Some servers refuse longer ones.
LONGEST = 4_000

#: The verbs for all jobs of a list: those that take jobs out of it.
WHOLE = ("retry", "cancel", "release", "prune")


#: By what a list is filtered: an owner of claims, or the first line of errors.
FILTERS = ("owner", "error")

#: What a form asks for, besides its jobs.
FIELDS = ("verb", "all", "show", "priority", *FILTERS)

#: What can be done to ticked jobs, and the word for a job to which it was done.
ACTIONS = {
    "retry": "retried",
    "cancel": "cancelled",
    "stop": "asked to stop",
    "release": "released",
    "reprioritize": "reprioritized",
    "prune": "deleted",
}


def act(visit: Visit) -> Response:
    """Do what a button of a queue's page asks for, or go to its preview."""
    verb, confirmed = visit.value("verb"), "confirm" in visit.form
    if verb in ("pause", "resume"):
        return _change_pause(visit, verb)
    if visit.value("all") in WHOLE:
        return _change_all(visit) if confirmed else _go_to_preview(visit)
    if verb in ACTIONS:
        return _change(visit, verb) if confirmed else _go_to_preview(visit)
    raise refused(f"There is no action {visit.value('all') or verb!r}.")


def refused(text: str) -> Problem:
    """Return the problem of a form that asks for what cannot be done."""
    return Problem(400, "Nothing was done", text)


# -- previews -----------------------------------------------------------------


def _go_to_preview(visit: Visit) -> Response:
    """Answer a form by the address of its preview; where that is too long, by the preview."""
    (name, queue), query = visit.queue, visit.values(FIELDS)
    if "all" not in query:
        query["key"] = list(map(steering.key_text, _keys(visit, queue)))
        _verb(visit, queue, visit.value("verb"))  # refuses what makes no sense
    address = f"{visit.links('previews', name)}?{urlencode(query, doseq=True)}"
    return show_preview(visit) if len(address) > LONGEST else visit.redirect(address)


def show_preview(visit: Visit) -> Response:
    """Show what an action would do; of all jobs of a list, to the first ones."""
    refuse_reader(visit.request, visit.visitor)
    (name, queue), fields, count = visit.queue, visit.values(FIELDS), None
    verb = fields.get("all", visit.value("verb"))
    if verb not in (WHOLE if "all" in fields else ACTIONS):
        raise Problem(404, "Nothing is here", f"There is no action {verb!r}.")
    if "all" in fields:
        which = listed_as(visit.value("show"))
        with reading(visit.site.engine) as session:
            now = time_of(session)
            options: dict[str, Any] = {"until": now, **visit.values(FILTERS)}
            count = count_listed(session, queue, which, **options)
            first = list_jobs(session, queue, which, limit=FIRST, complete=True, **options)
        keys = [job.key for job in first]
        fields |= {"until": now.isoformat(), "count": "" if count.more else count.number}
    else:
        keys = _keys(visit, queue)
    states, leaves = _states(visit, queue, keys), steering.statuses_left_by(queue, verb)
    return visit.page(
        "preview",
        name=name,
        verb=verb,
        done=ACTIONS[verb],
        fields=fields,
        count=count,
        states={key: states.get(key) for key in keys},
        changes=[key for key in keys if key in states and states[key].status in leaves],
    )


def listed_as(word: str) -> Listed:
    """Return which list a word names; another word raises a Problem."""
    try:
        return Listed(word)
    except ValueError:
        raise Problem(404, "Nothing is here", f"No jobs are listed as {word!r}.") from None


# -- what is done -------------------------------------------------------------


def _change(visit: Visit, verb: str) -> Response:
    """Change the jobs that a form names."""
    name, queue = visit.queue
    keys = _keys(visit, queue)
    changed = visit.site.steering(name).change(keys, _verb(visit, queue, verb))
    visit.log(verb, name, keys, changed)
    left = steering.keys_without(keys, changed)
    states = _states(visit, queue, left)
    return visit.page(
        "result",
        name=name,
        done=ACTIONS[verb],
        changed=changed,
        left={key: states.get(key) for key in left},
        fields=visit.values(FIELDS),
    )


def _change_all(visit: Visit) -> Response:
    """Change the jobs that the preview has counted, so many at a time."""
    (name, queue), verb = visit.queue, visit.value("all")
    try:
        until = as_utc(datetime.fromisoformat(visit.value("until")))
    except (ValueError, OverflowError) as error:
        raise refused("The form names no preview.") from error
    options: dict[str, Any] = {"until": until, **visit.values(FILTERS)}
    which, changed = listed_as(visit.value("show")), list[Key]()
    pages = visit.site.steering(name).change_listed(which, steering.verb_of(queue, verb), **options)
    try:
        while len(changed) < MOST and (keys := next(pages, None)) is not None:
            changed += keys
    finally:  # what was changed before an error stays changed
        visit.log(verb, name, changed, changed)
    done, count = _number(visit, "done") + len(changed), _number(visit, "count")
    numbers = {"until": until.isoformat(), "count": count or "", "done": done}
    return visit.page(
        "result_all",
        name=name,
        done=ACTIONS[verb],
        fields=visit.values(FIELDS) | numbers,
        more=len(changed) >= MOST,
        left=max(count - done, 0),
    )


def _number(visit: Visit, name: str) -> int:
    """Read a number of jobs of a form; what is none counts as 0."""
    text = visit.value(name)
    return int(text) if text.isdecimal() and len(text) < 10 else 0


def _change_pause(visit: Visit, verb: str) -> Response:
    """Pause or resume; each undoes the other, so nobody is asked."""
    (name, queue), change = visit.queue, {"pause": pause, "resume": resume}[verb]
    changed = visit.site.steering(name).run(partial(change, queue=queue))
    visit.log(verb, name, (), [()] if changed else [])
    return visit.redirect(visit.links.queue(name))


# -- how a form or an address names jobs --------------------------------------


def _keys(visit: Visit, queue: JobQueue[Any]) -> list[Key]:
    keys = steering.keys_from(queue.mapping, map(str, visit.asked.getlist("key")))
    if not keys:
        raise Problem(400, "No job is ticked", "Go back, tick some jobs, and press again.")
    if len(keys) > BATCH:
        raise refused(f"These are more than {BATCH} jobs.")
    return keys


def _priority(visit: Visit) -> int:
    text = visit.value("priority", "0")
    digits = text.removeprefix("-")
    if not digits.isdecimal() or len(digits) > 5 or int(text) not in PRIORITIES:
        raise refused("A priority is a number from -32768 to 32767.")
    return int(text)


def _states(visit: Visit, queue: JobQueue[Any], keys: Sequence[Key]) -> dict[Key, JobState]:
    """Read the state of each of these jobs that is in the queue."""
    with reading(visit.site.engine) as session:
        return steering.states_of(session, queue, keys) if keys else {}


def _verb(visit: Visit, queue: JobQueue[Any], verb: str) -> Verb:
    """Return a verb that leaves jobs alone which are not as the preview has shown them."""
    if verb == "reprioritize":
        return partial(queue.reprioritize, priority=_priority(visit))
    keys, values = visit.form.getlist("key"), visit.form.getlist("was")
    if not values:
        return steering.verb_of(queue, verb)
    if len(values) != len(keys):
        raise refused("The form does not tell what each job was.")
    role = "owner" if verb == "release" else "status"
    texts = [steering.key_text(steering.key_from(queue.mapping, str(key))) for key in keys]
    seen = dict(zip(texts, map(str, values), strict=True))
    return steering.unless_changed(queue.mapping, role, seen, steering.verb_of(queue, verb))


class ListedSchedule(NamedTuple):
    """A schedule of a queue of the site; `queue` is the queue's name on the site."""

    queue: str
    info: ScheduleInfo
    schedules: Schedules


def show_schedules(visit: Visit) -> Response:
    """Show the schedules of the site's queues."""
    declared = bool(visit.site.beside(SCHEDULES))
    return visit.page("schedules", listed=list_schedules(visit.site), declared=declared)


def show_run(visit: Visit) -> Response:
    """Show which job a schedule would insert now."""
    refuse_reader(visit.request, visit.visitor)
    return visit.page("preview_schedule", listed=_named(visit, visit.value("name")))


def change_schedule(visit: Visit) -> Response:
    """Do what a button asks for; before a job is inserted, go to a preview."""
    verb, name = visit.value("verb"), visit.value("name")
    if verb not in ("run", "pause", "resume"):
        raise refused(f"There is no action {verb!r}.")
    queue, _, schedules = _named(visit, name)
    if verb == "run" and "confirm" not in visit.form:
        return visit.redirect(f"{visit.links('schedules', 'run')}?{urlencode({'name': name})}")

    run = partial(schedules.run_now, queue=visit.site.queues[queue])
    change: Any = {"run": run, "pause": schedules.pause, "resume": schedules.resume}[verb]
    changed = visit.site.steering(queue).run(lambda session: change(session, name)) is not False
    visit.log(f"{verb} schedule", queue, [(name,)], [(name,)] if changed else [])
    return visit.redirect(visit.links("schedules"))


def _named(visit: Visit, name: str) -> ListedSchedule:
    found = [each for each in list_schedules(visit.site) if each.info.name == name]
    if not found:
        raise Problem(404, "No such schedule", f"The queues have no schedule {name!r}.")
    return found[0]


def list_schedules(site: Site) -> list[ListedSchedule]:
    """Read the schedules beside the queues."""
    with reading(site.engine) as session:
        return [
            ListedSchedule(name, info, schedules)
            for schedules in site.beside(SCHEDULES)
            for info in schedules.all(session)
            for name in site.names_of.get(info.queue, ())[:1]
        ]
