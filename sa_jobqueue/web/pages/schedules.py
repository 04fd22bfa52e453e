"""The page of schedules: when they run, what was missed; to run one now, and to pause it."""

from __future__ import annotations

from typing import Any, NamedTuple

from sqlalchemy import Table
from starlette.responses import Response

from ...counts.count import has_table
from ...model.keys import SCHEDULES
from ...model.mapping import mapping_of
from ...schedules import ScheduleInfo, Schedules
from ..door import Problem, Visit, refuse_readers
from ..reading import reading
from .actions import refused


class Listed(NamedTuple):
    """A schedule of a queue of the site; `queue` is the queue's name on the site."""

    queue: str
    info: ScheduleInfo
    schedules: Schedules


def show_schedules(visit: Visit) -> Response:
    """Show the schedules of the site's queues."""
    listed, missing = _list(visit)
    declared = bool(visit.site.beside(SCHEDULES))
    return visit.page("schedules", listed=listed, declared=declared, missing=missing)


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


def _named(visit: Visit, name: str) -> Listed:
    found = [each for each in _list(visit)[0] if each.info.name == name]
    if not found:
        raise Problem(404, "No such schedule", f"The queues have no schedule {name!r}.")
    return found[0]


def _list(visit: Visit) -> tuple[list[Listed], list[str]]:
    """Read the schedules beside the queues, and name the tables that are not there."""
    site = visit.site
    listed, missing = [], []
    with reading(site.engine) as session:
        for schedules in site.beside(SCHEDULES):
            table: Table = mapping_of(schedules.entity).table
            if not has_table(session.connection(), table):
                missing.append(table.fullname)
                continue
            for info in schedules.all(session):
                names = site.names_of.get(info.queue, ())[:1]
                listed += [Listed(name, info, schedules) for name in names]
    return listed, missing
