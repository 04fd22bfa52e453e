"""app(): the ASGI application and its routes."""

from __future__ import annotations

import getpass
import secrets
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from sqlalchemy import Engine
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import Scope

from ..errors import ArgumentError
from .actions import act, change_schedule, show_preview, show_run, show_schedules
from .door import Access, Authorize, Problem, View, Visit, Visitor, add_headers, endpoint
from .pages import show_doctor, show_job, show_overview, show_queue, show_workers
from .site import Site

#: The files that pages load, with their types.
FILES = {"style.css": "text/css", "refresh.js": "text/javascript", "icon.svg": "image/svg+xml"}

STATIC = {name: (Path(__file__).parent / "static" / name).read_bytes() for name in FILES}


def app(
    engine: Engine | Mapping[str, Engine],
    queues: Mapping[str, Any] | Iterable[Any],
    *,
    authorize: Authorize,
) -> Starlette:
    """Return the page of some queues, to mount in a Starlette or FastAPI application.

    Args:
        engine: a synchronous one; each request takes a connection of its pool. Or several, by the
            names of their databases: the first page shows all of them, and the pages of ``eu``
            are below ``/eu/``.
        queues: mapped classes, JobQueues or steps of workflows; or these by names of your own.
            Nothing else can be reached.
        authorize: gets the request, and returns a Visitor, or None for those who may see nothing.
            It may be async. An HTTPException that it raises, such as a redirect to your login, is
            the answer.

    Raises:
        ArgumentError: something is no queue, two have one name, an engine is asynchronous, or a
            name makes no address.
    """
    named = engine if isinstance(engine, Mapping) else {"": engine}
    for name, each in named.items():
        if not isinstance(each, Engine):
            raise ArgumentError(
                f"the page needs an Engine, not {type(each).__name__}; beside an AsyncEngine make "
                "one by create_engine() with a synchronous driver"
            )
        if each is not engine and (name in ("", ".", "..", "static") or "/" in name):
            raise ArgumentError(f"{name!r} makes no address: name the database otherwise")
    if not named:
        raise ArgumentError("the page needs an Engine: the mapping has none")
    sites = {name: Site.of(each, queues) for name, each in named.items()}
    below = "" if "" in sites else "/{database}"
    paths = [*_TOP, *((below + path, view, methods) for path, view, methods in _ROUTES), _REST]
    routes = [
        Route(path, endpoint(sites, authorize, view), methods=methods)
        for path, view, methods in paths
    ]
    outermost = Middleware(BaseHTTPMiddleware, dispatch=add_headers)
    made = Starlette(routes=routes, middleware=[outermost])
    made.router.redirect_slashes = False
    made.state.sites = sites
    return made


def show_file(visit: Visit) -> Response:
    """Send a file that pages load."""
    name = visit.parameter("name")
    if name not in FILES:
        show_nothing(visit)
    return Response(STATIC[name], media_type=FILES[name])


def show_nothing(visit: Visit) -> Response:
    """Say that there is no such page."""
    raise Problem(404, "Nothing is here", "There is no such page.")


_GET, _POST, _BOTH = ["GET"], ["POST"], ["GET", "POST"]

#: For all databases together.
_TOP: list[tuple[str, View, list[str]]] = [
    ("/", show_overview, _GET),
    ("/static/{name}", show_file, _GET),
]

_REST: tuple[str, View, list[str]] = ("/{path:path}", show_nothing, _BOTH)

#: For each database.
_ROUTES: list[tuple[str, View, list[str]]] = [
    *_TOP,
    ("/queues/{name:path}/jobs/{key}", show_job, _GET),
    ("/queues/{name:path}", show_queue, _GET),
    ("/queues/{name:path}", act, _POST),
    ("/previews/{name:path}", show_preview, _GET),
    ("/workers", show_workers, _GET),
    ("/schedules", show_schedules, _GET),
    ("/schedules", change_schedule, _POST),
    ("/schedules/run", show_run, _GET),
    ("/doctor", show_doctor, _GET),
]


# The page of the command line: for whoever has the token, on hosts that we know.
#
# The address that is printed has a random token. The first visit makes it a cookie and takes it out
# of the address, so that it is in no history and in no log of another server.

TOKEN = "token"


def local_app(
    engine: Engine | Mapping[str, Engine],
    queues: Mapping[str, Any],
    *,
    token: str,
    access: Access,
    is_ours: Callable[[str], bool],
) -> Starlette:
    """Return the page for this machine's user.

    Args:
        token: who has it, may come in.
        is_ours: tells whether the Host of a request is a name of this server.
    """
    visitor = Visitor(user_name(), access)

    def authorize(request: Request) -> Visitor | None:
        given = request.cookies.get(cookie_name(request.scope), "")
        return visitor if _equal(given, token) else None

    async def guard(request: Request, answer: RequestResponseEndpoint) -> Response:
        """Refuse a name that is not ours, and make the token in an address a cookie."""
        if not is_ours(request.headers.get("host", "")):
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


def _without_token(request: Request, token: str) -> RedirectResponse:
    # Not request.url: its path is of the Host, too. Two slashes would begin another host's address.
    here = "/" + quote(request.scope["path"].lstrip("/"))
    query = urlencode([each for each in request.query_params.multi_items() if each[0] != TOKEN])
    answer = RedirectResponse(f"{here}?{query}" if query else here, status_code=303)
    # A link from a chat or a ticket opens the page, too: no GET changes anything.
    name, secure = cookie_name(request.scope), request.scope["scheme"] == "https"
    answer.set_cookie(name, token, httponly=True, samesite="lax", secure=secure)
    return answer


def cookie_name(scope: Scope) -> str:
    """Name the cookie by the port: browsers send cookies to all ports of a host."""
    server = scope.get("server") or ("", "")
    return f"sa_jobqueue_{server[1]}"


def _equal(given: str, token: str) -> bool:
    return secrets.compare_digest(given.encode(), token.encode())
