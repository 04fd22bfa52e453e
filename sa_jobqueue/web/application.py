"""app(): the ASGI application and its routes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from sqlalchemy import Engine
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import FileResponse, Response
from starlette.routing import Route

from ..errors import ArgumentError
from .door import Problem, StrictHeaders, View, Visit, endpoint
from .pages.actions import act, show_preview
from .pages.job import show_job
from .pages.queue import show_queue
from .pages.schedules import change_schedule, show_run, show_schedules
from .pages.summaries import show_doctor, show_overview, show_workers
from .site import Site
from .visitors import Authorize

STATIC = Path(__file__).parent / "static"

#: The files that pages load, with their types.
FILES = {"style.css": "text/css", "refresh.js": "text/javascript", "icon.svg": "image/svg+xml"}


def app(
    engine: Engine, queues: Mapping[str, Any] | Iterable[Any], *, authorize: Authorize
) -> Starlette:
    """Return the page of some queues, to mount in a Starlette or FastAPI application.

    Args:
        engine: a synchronous one; each request takes a connection of its pool.
        queues: mapped classes, JobQueues or steps of workflows; or these by names of your own.
            Nothing else can be reached.
        authorize: gets the request, and returns a Visitor, or None for those who may see nothing.
            It may be async. An HTTPException that it raises, such as a redirect to your login, is
            the answer.

    Raises:
        ArgumentError: something is no queue, two have one name, or the engine is asynchronous.
    """
    if not isinstance(engine, Engine):
        raise ArgumentError(
            f"the page needs an Engine, not {type(engine).__name__}; beside an AsyncEngine make "
            "one by create_engine() with a synchronous driver"
        )
    site = Site.of(engine, queues)
    routes = [
        Route(path, endpoint(site, authorize, view), methods=methods)
        for path, view, methods in _ROUTES
    ]
    made = Starlette(routes=routes, middleware=[Middleware(StrictHeaders)])
    made.router.redirect_slashes = False
    made.state.site = site
    return made


def show_file(visit: Visit) -> Response:
    """Send a file that pages load."""
    name = visit.parameter("name")
    if name not in FILES:
        show_nothing(visit)
    return FileResponse(STATIC / name, media_type=FILES[name])


def show_nothing(visit: Visit) -> Response:
    """Say that there is no such page."""
    raise Problem(404, "Nothing is here", "There is no such page.")


_GET, _POST, _BOTH = ["GET"], ["POST"], ["GET", "POST"]

_ROUTES: list[tuple[str, View, list[str]]] = [
    ("/", show_overview, _GET),
    ("/static/{name}", show_file, _GET),
    ("/queues/{name:path}/jobs/{key}", show_job, _GET),
    ("/queues/{name:path}", show_queue, _GET),
    ("/queues/{name:path}", act, _POST),
    ("/previews/{name:path}", show_preview, _GET),
    ("/workers", show_workers, _GET),
    ("/schedules", show_schedules, _GET),
    ("/schedules", change_schedule, _POST),
    ("/schedules/run", show_run, _GET),
    ("/doctor", show_doctor, _GET),
    ("/{path:path}", show_nothing, _BOTH),
]
