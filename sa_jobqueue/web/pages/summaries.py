"""Pages with a line for each queue, each worker, or each finding of the doctor."""

from __future__ import annotations

from starlette.responses import Response

from ...control import workers as list_workers
from ...counts.count import has_table
from ...model.keys import CONTROL
from ..door import Visit
from ..reading import reading
from .queue import plots


def show_overview(visit: Visit) -> Response:
    """Show how full and how late the queues are."""
    site = visit.site
    seen = site.overview()
    site.samples.look(seen)
    drawn = {name: plots(visit, name, 120, 28) for name in seen}
    missing = [name for name in site.queues if name not in seen]
    return visit.page("overview", seen=seen, plots=drawn, missing=missing)


def show_workers(visit: Visit) -> Response:
    """Show the workers that have a queue of the site; those of other queues are not shown."""
    site = visit.site
    tables = site.beside(CONTROL)
    with reading(site.engine) as session:
        there = [each for each in tables if has_table(session.connection(), each.workers)]
        found = [worker for each in there for worker in list_workers(session, tables=each)]
    return visit.page(
        "workers",
        workers=[worker for worker in found if {*site.names_of}.intersection(worker.queues)],
        names=site.names_of,
        declared=bool(tables),
        missing=[each.workers.fullname for each in tables if each not in there],
    )


def show_doctor(visit: Visit) -> Response:
    """Show what the doctor finds; it claims nothing and locks nothing."""
    site, again = visit.site, "again" in visit.asked
    with reading(site.engine) as session:
        tables = {name: queue.mapping.table for name, queue in site.queues.items()}
        connection = session.connection()
        there = [name for name, table in tables.items() if has_table(connection, table)]
    return visit.page("doctor", reports={name: site.report(name, again=again) for name in there})
