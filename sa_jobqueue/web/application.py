"""app(): the ASGI application and its routes."""

from __future__ import annotations

import getpass
import ipaddress
import secrets
import socket
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from sqlalchemy import Engine
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import Scope

from ..errors import ArgumentError
from .actions import act, change_schedule, show_preview, show_run, show_schedules
from .door import Access, Authorize, Problem, View, Visit, Visitor, add_headers, endpoint
from .pages import show_doctor, show_job, show_overview, show_queue, show_workers
from .site import Site

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
    made = Starlette(
        routes=routes, middleware=[Middleware(BaseHTTPMiddleware, dispatch=add_headers)]
    )
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


# The page of the command line: for whoever has the token, on hosts that we know.
#
# The address that is printed has a random token. The first visit makes it a cookie and takes it out
# of the address, so that it is in no history and in no log of another server.

TOKEN = "token"


def local_app(
    engine: Engine, queues: Mapping[str, Any], *, token: str, access: Access, host: str
) -> Starlette:
    """Return the page for this machine's user.

    Args:
        token: who has it, may come in.
        host: where the server listens, which is also a name by which it may be called.
    """
    visitor = Visitor(user_name(), access)

    def authorize(request: Request) -> Visitor | None:
        given = request.cookies.get(cookie_name(request.scope), "")
        return visitor if _equal(given, token) else None

    names = {name.lower() for name in (host, "localhost", socket.gethostname())}

    async def guard(request: Request, answer: RequestResponseEndpoint) -> Response:
        """Refuse a name that is not ours, and make the token in an address a cookie.

        A page of another site may have its own name resolve to this machine, and would then be of
        the same origin as we are. It cannot do so with an address.
        """
        if not _is_known(request.headers.get("host", ""), names):
            return PlainTextResponse("This server has another name.", 400)
        if request.method == "GET" and _equal(request.query_params.get(TOKEN, ""), token):
            return _without_token(request, token)
        return await answer(request)

    made = app(engine, queues, authorize=authorize)
    made.user_middleware.append(Middleware(BaseHTTPMiddleware, dispatch=guard))
    return made


def user_name() -> str:
    """Return the name of the user whose process this is."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        return "local user"


def _is_known(host: str, names: Collection[str]) -> bool:
    try:
        name = urlsplit(f"//{host}").hostname or ""
        return name in names or bool(ipaddress.ip_address(name))
    except ValueError:
        return False


def _without_token(request: Request, token: str) -> RedirectResponse:
    here = "/" + request.url.path.lstrip("/")  # two slashes would begin another host's address
    answer, name = RedirectResponse(here, status_code=303), cookie_name(request.scope)
    answer.set_cookie(name, token, httponly=True, samesite="strict", path="/")
    return answer


def cookie_name(scope: Scope) -> str:
    """Name the cookie by the port: browsers send cookies to all ports of a host."""
    server = scope.get("server") or ("", "")
    return f"sa_jobqueue_{server[1]}"


def _equal(given: str, token: str) -> bool:
    return secrets.compare_digest(given.encode(), token.encode())
