"""The page of the command line: for whoever has the token, on hosts that we know.

The address that is printed has a random token. The first visit makes it a cookie and takes it out
of the address, so that it is in no history and in no log of another server.
"""

from __future__ import annotations

import getpass
import ipaddress
import secrets
import socket
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from sqlalchemy import Engine
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from .application import app
from .visitors import Access, Visitor

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

    made = app(engine, queues, authorize=authorize)
    names = {name.lower() for name in (host, "localhost", socket.gethostname())}
    made.user_middleware.append(Middleware(Guard, names=names, token=token))
    return made


def new_token() -> str:
    """Return a token that nobody guesses."""
    return secrets.token_urlsafe(24)


def user_name() -> str:
    """Return the name of the user whose process this is."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        return "local user"


class Guard:
    """Refuse requests to a name that is not ours, and make the token in an address a cookie.

    A page of another site may have its own name resolve to this machine, and would then be of the
    same origin as we are. It cannot do so with an address.
    """

    def __init__(self, app: ASGIApp, names: set[str], token: str) -> None:
        self._app, self._names, self._token = app, names, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        answer = self._app
        if scope["type"] == "http":
            request = Request(scope)
            given = request.query_params.get(TOKEN, "")
            if not self._is_known(request.headers.get("host", "")):
                answer = PlainTextResponse("This server has another name.", 400)
            elif request.method == "GET" and _equal(given, self._token):
                answer = self._without_token(request)
        await answer(scope, receive, send)

    def _is_known(self, host: str) -> bool:
        try:
            name = urlsplit(f"//{host}").hostname or ""
            return name in self._names or bool(ipaddress.ip_address(name))
        except ValueError:
            return False

    def _without_token(self, request: Request) -> RedirectResponse:
        here = "/" + request.url.path.lstrip("/")  # two slashes would begin another host's address
        answer, name = RedirectResponse(here, status_code=303), cookie_name(request.scope)
        answer.set_cookie(name, self._token, httponly=True, samesite="strict", path="/")
        return answer


def cookie_name(scope: Scope) -> str:
    """Name the cookie by the port: browsers send cookies to all ports of a host."""
    server = scope.get("server") or ("", "")
    return f"sa_jobqueue_{server[1]}"


def _equal(given: str, token: str) -> bool:
    return secrets.compare_digest(given.encode(), token.encode())
