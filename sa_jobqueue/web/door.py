"""The door: each request comes in here, and each error goes out as a plain page.

A request that changes something is refused unless the browser says that it comes from our own
pages. Then the application says who asks, and what they may do. Only then a page is made, in a
thread.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeAlias
from urllib.parse import urlencode

from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import FormData, ImmutableMultiDict
from starlette.exceptions import HTTPException
from starlette.middleware.base import RequestResponseEndpoint
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from ..dialects import is_mistake, is_time_limit, is_transient
from ..errors import ArgumentError, MissingTable
from ..model.columns import first_line
from ..queue import JobQueue
from ..steering import Key, keys_text
from .rendering import Links, page
from .site import Site

log = logging.getLogger("sa_jobqueue.web")

#: The methods that change nothing.
SAFE = ("GET", "HEAD")

#: What a form may hold: 500 jobs, each with a key and an owner.
MOST_FIELDS, MOST_BYTES = 1_100, 16_384


#: What the browser may not do with any answer.
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; "
        "connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    # With no-referrer a browser sends `Origin: null` with our own forms, too.
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}


async def add_headers(request: Request, answer: RequestResponseEndpoint) -> Response:
    """Add HEADERS to every answer."""
    response = await answer(request)
    response.headers.update(HEADERS)
    return response


class Problem(Exception):
    """A page that says why there is no other.

    Attributes:
        status: of HTTP.
        title, text: what the page says.
    """

    def __init__(self, status: int, title: str, text: str) -> None:
        super().__init__(title)
        self.status, self.title, self.text = status, title, text


@dataclass(frozen=True)
class Visit:
    """A request of somebody who may see the site."""

    site: Site
    request: Request
    visitor: Visitor
    form: FormData = field(default_factory=FormData)

    @property
    def asked(self) -> ImmutableMultiDict[str, Any]:
        """What the visitor asks for: the query of a page, or a form."""
        return self.request.query_params if self.request.method in SAFE else self.form

    @property
    def links(self) -> Links:
        """The addresses of the site's pages."""
        return Links(self.request)

    @property
    def queue(self) -> tuple[str, JobQueue[Any]]:
        """The queue that the path names; another name raises a Problem."""
        name = self.parameter("name")
        if name not in self.site.queues:
            raise Problem(404, "No such queue", f"This site has no queue {name!r}.")
        return name, self.site.queues[name]

    def parameter(self, name: str) -> str:
        """Return a part of the path."""
        value: str = self.request.path_params[name]
        return value

    def value(self, name: str, default: str = "") -> str:
        """Return what the visitor asks for by a name."""
        return str(self.asked.get(name, default))

    def page(self, template: str, **values: Any) -> Response:
        """Render a page of the site."""
        return page(template, {"visitor": self.visitor, "links": self.links, **values})

    def redirect(self, address: str, **query: str) -> Response:
        """Send the browser to another page."""
        text = f"?{urlencode(query)}" if query else ""
        return RedirectResponse(f"{address}{text}", status_code=303)

    def log(self, verb: str, queue: str, keys: Sequence[Key], changed: Collection[Key]) -> None:
        """Log what the visitor has done, and to which jobs."""
        done = {"visitor": self.visitor.name, "verb": verb, "queue": queue}
        log.info(
            "%r: %s of %s: %s changed, of %r",
            *done.values(),
            len(changed),
            keys_text(keys) or "the queue itself",
            extra={**done, "keys": [list(key) for key in keys], "changed": len(changed)},
        )


View: TypeAlias = Callable[[Visit], Response]
Endpoint: TypeAlias = Callable[[Request], Awaitable[Response]]


def endpoint(site: Site, authorize: Authorize, view: View) -> Endpoint:
    """Return what answers the requests of a route."""

    async def answer(request: Request) -> Response:
        visitor: Visitor | None = None
        try:
            _refuse_other_sites(request)
            visitor = await _visitor(authorize, request)
            visit = Visit(site, request, visitor, await _form(request))
            return await run_in_threadpool(view, visit)
        except (ArgumentError, MissingTable) as error:  # a form asks for what cannot be done
            problem = Problem(400, "Nothing was done", f"{error}.")
            return _problem_page(request, visitor, problem if visitor else error)
        except HTTPException:
            raise  # authorize() answers by itself, such as by a redirect to its login
        except Exception as error:
            return _problem_page(request, visitor, error)

    return answer


def refuse_readers(visit: Visit) -> None:
    """Refuse the preview of a change to who may read only."""
    if not visit.visitor.may_change:
        raise _read_only()


def _read_only() -> Problem:
    return Problem(403, "You may read only", "You may see this page, and change nothing.")


def _refuse_other_sites(request: Request) -> None:
    """Refuse a request that changes something, and is not from our own pages.

    Raises:
        Problem: another site has sent it, or nobody knows which.
    """
    if request.method in SAFE:
        return
    origin, host = request.headers.get("origin", ""), request.headers.get("host", "")
    by_host = host != "" and origin.lower().partition("://")[2] == host.lower()
    fetch_site = request.headers.get("sec-fetch-site")
    if fetch_site == "same-origin" or (fetch_site is None and by_host):
        return
    log.warning("refused: %s %r from another site: %r", request.method, request.url.path, origin)
    raise Problem(403, "Refused", "This request does not come from a page of this site.")


async def _visitor(authorize: Authorize, request: Request) -> Visitor:
    plain = not inspect.iscoroutinefunction(authorize)
    found = await run_in_threadpool(authorize, request) if plain else authorize(request)
    if inspect.isawaitable(found):
        found = await found
    if found is None:
        raise Problem(403, "Not for you", "This page is not open to you.")
    if not isinstance(found, Visitor):
        raise TypeError(f"authorize() returns a Visitor or None, not {type(found).__name__}")
    if request.method not in SAFE and not found.may_change:
        log.warning("refused: %r may read only: %r", found.name, request.url.path)
        raise _read_only()
    return found


async def _form(request: Request) -> FormData:
    if request.method in SAFE:
        return FormData()
    return await request.form(max_files=0, max_fields=MOST_FIELDS, max_part_size=MOST_BYTES)


def _problem_page(request: Request, visitor: Visitor | None, error: Exception) -> Response:
    problem = error if isinstance(error, Problem) else _problem_of(error)
    if problem.status >= 500:
        _log(problem, error)
    recovers = problem.status == 503 and request.method in SAFE
    values = {"visitor": visitor, "links": Links(request), "problem": problem}
    return page("problem", {**values, "recovers": recovers}, status=problem.status)


def _log(problem: Problem, error: Exception) -> None:
    """Log an error: of the database without the statement's parameters, else with its traceback."""
    if isinstance(error, DBAPIError):
        log.warning("%s: %s", problem.title, first_line(error.orig))
    else:
        log.warning("%s: %s", problem.title, first_line(error), exc_info=problem.status == 500)


def _problem_of(error: Exception) -> Problem:
    """Say in plain words what an error means."""
    if is_time_limit(error):
        return Problem(503, "This took too long", "The database needed more than 5 seconds.")
    if is_transient(error):
        return Problem(503, "Somebody else is writing", "Rows are locked: try again soon.")
    if is_mistake(error) and isinstance(error, DBAPIError):
        text = "A table, a column or a right is missing: the log says which."
        return Problem(500, "The database refuses", text)
    if isinstance(error, OperationalError | InterfaceError | PoolTimeout | OSError):
        return Problem(503, "The database does not answer", "The next request asks it again.")
    return Problem(500, "Something is wrong here", "The log of the server says what.")


class Access(Enum):
    """What a visitor may do."""

    READ = "read"
    ADMIN = "admin"


@dataclass(frozen=True)
class Visitor:
    """Somebody who may see the page.

    Attributes:
        name: stands in the log beside all that the visitor changes.
        access: READ sees everything; ADMIN may also change jobs, queues and schedules.
    """

    name: str
    access: Access

    @property
    def may_change(self) -> bool:
        """Whether the visitor may change anything."""
        return self.access is Access.ADMIN


#: Says who asks; None: nobody whom the page is for. A plain function runs in a thread.
Authorize: TypeAlias = Callable[[Request], Visitor | Awaitable[Visitor | None] | None]
