"""The page of schedules: when they run, what was missed; to run one now, and to pause it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from sqlalchemy.orm import Session
from starlette.responses import RedirectResponse, Response

from ...model.beside import SCHEDULES, beside
from ...model.mapping import mapping_of
from ...overview.schema import has_table
from ...queue import JobQueue
from ...schedules import ScheduleInfo, Schedules
from ..door import Problem, Visit, read_only
from ..reading import reading
from ..site import Site
from .actions import log_action


@dataclass(frozen=True)
class Listed:
    """A schedule of a queue of the site.

    Attributes:
        queue: the queue's name on the site.
    """

    queue: str
    info: ScheduleInfo
    schedules: Schedules


def show_schedules(visit: Visit) -> Response:
    """Show the schedules of the site's queues."""
    sets = _schedules(visit.site)
    with reading(visit.site.engine) as session:
        there = [each for each in sets if _has_table(session, each)]
        listed = list(_listed(session, visit.site, there))
    missing = [_table(each).fullname for each in sets if each not in there]
    return visit.page("schedules", listed=listed, declared=bool(sets), missing=missing)


def show_run(visit: Visit) -> Response:
    """Show which job a schedule would insert now.

    Raises:
        Problem: there is no such schedule, or the visitor may not change anything.
    """
    if not visit.visitor.may_change:
        raise read_only()
    found = _named(visit, visit.request.query_params.get("name", ""))
    return visit.page("preview_schedule", listed=found)


def change_schedule(visit: Visit) -> Response:
    """Do what a button asks for; before a job is inserted, go to a preview."""
    verb, name = str(visit.form.get("verb", "")), str(visit.form.get("name", ""))
    change = _CHANGES.get(verb)
    if change is None:
        raise Problem(400, "Nothing was done", f"There is no action {verb!r}.")
    found = _named(visit, name)
    if verb == "run" and "confirm" not in visit.form:
        address = f"{visit.links('schedules', 'run')}?{urlencode({'name': name})}"
        return RedirectResponse(address, status_code=303)
    queue = visit.site.queues[found.queue]
    changed = visit.site.steering(found.queue).run(
        lambda session: change(session, found.schedules, name, queue)
    )
    log_action(visit, f"{verb} schedule", found.queue, [(name,)], [(name,)] if changed else [])
    return RedirectResponse(visit.links("schedules"), status_code=303)


def _run(session: Session, schedules: Schedules, name: str, queue: JobQueue[Any]) -> bool:
    schedules.run_now(session, name, queue)
    return True


def _pause(session: Session, schedules: Schedules, name: str, queue: JobQueue[Any]) -> bool:
    return schedules.pause(session, name)


def _resume(session: Session, schedules: Schedules, name: str, queue: JobQueue[Any]) -> bool:
    return schedules.resume(session, name)


_CHANGES: dict[str, Callable[[Session, Schedules, str, JobQueue[Any]], bool]] = {
    "run": _run,
    "pause": _pause,
    "resume": _resume,
}


def _named(visit: Visit, name: str) -> Listed:
    """Find a schedule of the site's queues.

    Raises:
        Problem: there is none of this name.
    """
    with reading(visit.site.engine) as session:
        there = [each for each in _schedules(visit.site) if _has_table(session, each)]
        found = [each for each in _listed(session, visit.site, there) if each.info.name == name]
    if not found:
        raise Problem(404, "No such schedule", f"The queues have no schedule {name!r}.")
    return found[0]


def _schedules(site: Site) -> list[Schedules]:
    """List the schedules beside the queues, each set once."""
    found: dict[int, Schedules] = {}
    for queue in site.queues.values():
        schedules = beside(queue.mapping, SCHEDULES)
        if schedules is not None:
            found[id(schedules)] = schedules
    return list(found.values())


def _listed(session: Session, site: Site, sets: list[Schedules]) -> Iterator[Listed]:
    for schedules in sets:
        for info in schedules.all(session):
            for name in site.names_of.get(info.queue, ())[:1]:
                yield Listed(name, info, schedules)


def _table(schedules: Schedules) -> Any:
    return mapping_of(schedules.entity).table


def _has_table(session: Session, schedules: Schedules) -> bool:
    return has_table(session.connection(), _table(schedules))
