"""The door: each request comes in here, and each error goes out as a plain page.

A request that changes something is refused unless the browser says that it comes from our own
pages. Then the application says who asks, and what they may do. Only then a page is made, in a
thread.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from hashlib import sha256
from typing import Any, TypeAlias
from urllib.parse import parse_qsl

from anyio import CapacityLimiter, move_on_after, to_thread
from anyio.lowlevel import RunVar
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from starlette.datastructures import FormData, ImmutableMultiDict
from starlette.exceptions import HTTPException
from starlette.middleware.base import RequestResponseEndpoint
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from ..databases import is_mistake, is_time_limit, is_transient
from ..errors import ArgumentError, MissingTable
from ..model.columns import first_line
from ..queue import JobQueue
from ..steering import Key, keys_text
from .rendering import Links, from_field, page
from .site import Site

log = logging.getLogger("sa_jobqueue.web")

#: The methods that change nothing.
SAFE = ("GET", "HEAD")

#: So many requests at once, for each database, have a thread and a connection; others wait for so
#: many seconds.
AT_ONCE, PATIENCE = 4, 2.0

#: What a form may hold: 500 jobs, each with a key and an owner.
MOST_FIELDS, MOST_BYTES = 1_100, 1_000_000


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


@dataclass(frozen=True, eq=False)
class Visit:
    """A request of somebody who may see the site."""

    sites: Mapping[str, Site]
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
        return Links.of(self.request)

    @property
    def shown(self) -> Mapping[str, Site]:
        """The databases that the page is about: the one of the path, else all."""
        name = self.links.database
        if not name:
            return self.sites
        if name not in self.sites:
            raise Problem(404, "No such database", f"This site has no database {name!r}.")
        return {name: self.sites[name]}

    @property
    def site(self) -> Site:
        """The database that the page is about."""
        (site,) = self.shown.values()
        return site

    @property
    def queue(self) -> tuple[str, JobQueue[Any]]:
        """The queue that the path names; another name raises a Problem."""
        name = self.parameter("name")
        if name not in self.site.queues:
            raise Problem(404, "No such queue", f"This site has no queue {name!r}.")
        return name, self.site.queues[name]

    def parameter(self, name: str) -> str:
        """Return a part of the path."""
        return str(self.request.path_params[name])

    def value(self, name: str, default: str = "") -> str:
        """Return what the visitor asks for by a name."""
        return str(self.asked.get(name, default))

    def values(self, names: Iterable[str]) -> dict[str, Any]:
        """Return what the visitor asks for by these names, but for what is empty."""
        return {name: self.value(name) for name in names if self.value(name)}

    def page(self, template: str, **values: Any) -> Response:
        """Render a page of the site."""
        shown = [site.place for site in self.shown.values()]
        place = shown[0] if len(shown) == 1 else f"{len(shown)} databases"
        shared = {"visitor": self.visitor, "links": self.links, "place": place}
        return page(template, {**shared, **values})

    def redirect(self, address: str) -> Response:
        """Send the browser to another page."""
        return RedirectResponse(address, status_code=303)

    def log(self, verb: str, queue: str, keys: Sequence[Key], changed: Collection[Key]) -> None:
        """Log what the visitor has done, and to which jobs."""
        at = "/".join(filter(None, (self.links.database, queue)))
        done = {"visitor": self.visitor.name, "verb": verb, "queue": at, "changed": len(changed)}
        told = (*done.values(), keys_text(keys) or "the queue itself")
        extra = {**done, "keys": [list(key) for key in keys]}
        log.info("%r: %s of %s: %s changed, of %r", *told, extra=extra)


View: TypeAlias = Callable[[Visit], Response]
Endpoint: TypeAlias = Callable[[Request], Awaitable[Response]]


def endpoint(sites: Mapping[str, Site], authorize: Authorize, view: View) -> Endpoint:
    """Return what answers the requests of a route."""

    async def answer(request: Request) -> Response:
        visitor: Visitor | None = None
        try:
            _refuse_other_sites(request)
            visitor = await _visitor(authorize, request)
            visit = Visit(sites, request, visitor, await _form(request))
            return _unless_known(request, await _in_thread(view, visit))
        except (ArgumentError, MissingTable) as error:  # a form asks for what cannot be done
            problem = Problem(400, "Nothing was done", f"{error}.")
            return _problem_page(request, visitor, problem if visitor else error)
        except HTTPException:
            raise  # authorize() answers by itself, such as by a redirect to its login
        except Exception as error:
            return _problem_page(request, visitor, error)

    return answer


#: The places for requests of each event loop: the threads of the application stay its own. They are
#: by the names of databases, so that one that is silent holds up the pages of no other.
_places: RunVar[dict[str, CapacityLimiter]] = RunVar("sa_jobqueue.web")


async def _in_thread(view: View, visit: Visit) -> Response:
    """Call a view in a thread, as soon as there is a place."""
    by_name = _places.get({})
    _places.set(by_name)
    name = visit.links.database if visit.links.database in visit.sites else ""
    places = by_name.setdefault(name, CapacityLimiter(AT_ONCE))
    with move_on_after(PATIENCE) as waiting:
        await places.acquire_on_behalf_of(visit)
    if waiting.cancelled_caught:
        text = f"{AT_ONCE} other requests wait for the database. Try again soon."
        raise Problem(503, "This page is busy", text)
    try:
        return await to_thread.run_sync(view, visit, limiter=CapacityLimiter(1))
    finally:
        places.release_on_behalf_of(visit)


def _unless_known(request: Request, answer: Response) -> Response:
    """Answer 304 to who has this page already, as a refresh mostly has."""
    if request.method not in SAFE or answer.status_code != 200:
        return answer
    answer.headers["ETag"] = tag = f'"{sha256(answer.body).hexdigest()}"'
    if request.headers.get("if-none-match") != tag:
        return answer
    return Response(status_code=304, headers={"ETag": tag})


def refuse_reader(request: Request, visitor: Visitor) -> None:
    """Refuse a change, or its preview, to who may read only."""
    if not visitor.may_change:
        log.warning("refused: %r may read only: %r", visitor.name, request.scope["path"])
        raise Problem(403, "You may read only", "You may see this page, and change nothing.")


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
    path = request.scope["path"]
    log.warning("refused: %s %r from another site: %r", request.method, path, origin)
    raise Problem(403, "Refused", "This request does not come from a page of this site.")


async def _visitor(authorize: Authorize, request: Request) -> Visitor:
    plain = not inspect.iscoroutinefunction(authorize)
    found = await to_thread.run_sync(authorize, request) if plain else authorize(request)
    if inspect.isawaitable(found):
        found = await found
    if found is None:
        raise Problem(403, "Not for you", "This page is not open to you.")
    if not isinstance(found, Visitor):
        raise TypeError(f"authorize() returns a Visitor or None, not {type(found).__name__}")
    if request.method not in SAFE:
        refuse_reader(request, found)
    return found


async def _form(request: Request) -> FormData:
    """Read a form as our own pages send it, and no more of it than it may hold."""
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > MOST_BYTES:
            raise Problem(413, "Nothing was done", "The form is too large.")
    try:
        fields = parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=MOST_FIELDS)
    except ValueError as error:
        raise Problem(400, "Nothing was done", "The form cannot be read.") from error
    return FormData([(name, from_field(value)) for name, value in fields])


def _problem_page(request: Request, visitor: Visitor | None, error: Exception) -> Response:
    database = Links.of(request).database if visitor else ""
    problem = error if isinstance(error, Problem) else log_problem(error, database)
    recovers = problem.status == 503 and request.method in SAFE
    values = {"visitor": visitor, "links": Links.of(request), "problem": problem, "place": ""}
    return page("problem", {**values, "recovers": recovers}, status=problem.status)


def log_problem(error: Exception, database: str = "") -> Problem:
    """Log an error: of the database without the statement's parameters, else with its traceback."""
    problem = _problem_of(error)
    what = ": ".join(filter(None, (database, problem.title)))
    cause = error.orig if isinstance(error, DBAPIError) else error
    with_traceback = problem.status == 500 and cause is error
    log.warning("%s: %s", what, first_line(cause), exc_info=with_traceback)
    return problem


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
