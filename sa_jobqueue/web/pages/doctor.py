"""The page of the doctor: what is wrong with indexes, plans and the server, and how to mend it."""

from __future__ import annotations

from starlette.responses import Response

from ...overview.schema import has_table
from ..door import Visit
from ..reading import reading


def show_doctor(visit: Visit) -> Response:
    """Show what the doctor finds; it claims nothing and locks nothing."""
    site = visit.site
    with reading(site.engine) as session:
        connection = session.connection()
        there = [
            name
            for name, queue in site.queues.items()
            if has_table(connection, queue.mapping.table)
        ]
    again = "again" in visit.request.query_params
    reports = {name: site.reports.of(name, again=again) for name in there}
    return visit.page("doctor", reports=reports)
