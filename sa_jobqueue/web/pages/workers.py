"""The page of workers: who works on the queues, and whether they are alive."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from sqlalchemy.orm import Session
from starlette.responses import Response

from ...control import ControlTables, WorkerInfo
from ...control import workers as list_workers
from ...model.beside import CONTROL, beside
from ...overview.schema import has_table
from ..door import Visit
from ..reading import reading
from ..site import Site


def show_workers(visit: Visit) -> Response:
    """Show the workers that have a queue of the site."""
    site = visit.site
    tables = _tables(site)
    with reading(site.engine) as session:
        connection = session.connection()
        there = [each for each in tables if has_table(connection, each.workers)]
        found = list(_workers(session, there, set(site.names_of)))
    missing = [each.workers.fullname for each in tables if each not in there]
    return visit.page(
        "workers",
        workers=found,
        names=site.names_of,
        declared=bool(tables),
        missing=missing,
    )


def _tables(site: Site) -> list[ControlTables]:
    """List the control tables beside the queues, each once."""
    found: dict[int, Any] = {}
    for queue in site.queues.values():
        tables = beside(queue.mapping, CONTROL)
        if tables is not None:
            found[id(tables)] = tables
    return list(found.values())


def _workers(
    session: Session, tables: Iterable[ControlTables], names: set[str]
) -> Iterator[WorkerInfo]:
    """Yield the workers of these queues; those of other queues are not shown."""
    for each in tables:
        for worker in list_workers(session, tables=each):
            if names.intersection(worker.queues):
                yield worker
