"""What is served by HTTP until a signal comes: ``web``, ``metrics``, and probes of a worker."""

from __future__ import annotations

import ipaddress
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from secrets import token_urlsafe
from typing import Any
from urllib.parse import urlencode, urlsplit

import click
from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError

from ..model.columns import first_line
from ..process import THREADS, first_signal_stops
from ..queue import JobQueue
from . import logs
from .command import command
from .options import flag, number, text
from .printing import say

HOST = text("The address to listen on.", default="127.0.0.1")
ALLOW_HOST = text("Another name of this server, beside its own.", multiple=True)


@command(threads=True, together=True)
def web(
    engines: dict[str, Engine],
    queues: dict[str, JobQueue[Any]],
    host: str = HOST,
    port: int = number("The port; 0: any that is free.", least=0, most=65535, default=8000),
    read_only: bool = flag("Show the queues, but allow no changes."),
    allow_host: tuple[str, ...] = ALLOW_HOST,
    proxy: tuple[str, ...] = text("A proxy whose X-Forwarded headers are true.", multiple=True),
    root_path: str = text("The path that a proxy has removed, such as /jobs.", default=""),
    log_level: str | None = logs.LEVEL,
    log_json: bool = logs.AS_JSON,
) -> None:
    """Serve a web page with queues until Ctrl-C.

    Open the address that the command prints. Everybody who has this address can see and change the
    queues. The log has each change.
    """
    logs.set_up_logging(log_level, as_json=log_json)
    with extra("web"):
        import uvicorn

        from ..web import Access
        from ..web.application import TOKEN, local_app
    token, access = token_urlsafe(24), Access.READ if read_only else Access.ADMIN
    is_ours = hosts(host, *allow_host)
    config = uvicorn.Config(
        local_app(engines.get("", engines), queues, token=token, access=access, is_ours=is_ours),
        log_level="warning",
        access_log=False,
        root_path=root_path.rstrip("/"),
        forwarded_allow_ips=list(proxy),
    )
    listening = listen(host, port)  # whoever reads the address may come at once
    if host not in ("127.0.0.1", "::1", "localhost"):  # other machines can reach it
        say(f"Listening on {host}: everybody who gets the address below can come in.", err=True)
    found = listening.getsockname()[1]
    click.echo(f"http://{in_address(host)}:{found}/?{urlencode({TOKEN: token})}")
    with suppress(KeyboardInterrupt):  # uvicorn has stopped, and raises the signal again
        uvicorn.Server(config).run([listening])


@command(threads=True, together=True)
def metrics(
    engines: dict[str, Engine],
    queues: dict[str, JobQueue[Any]],
    host: str = HOST,
    port: int = number("The port to listen on.", most=65535, default=9100),
    allow_host: tuple[str, ...] = ALLOW_HOST,
) -> None:
    """Serve metrics of queues to Prometheus until Ctrl-C.

    Each scrape reads the depth and age of the queues and their workers from the database, by
    indexes alone. If PROMETHEUS_MULTIPROC_DIR names a folder, each scrape also has what other
    processes count there.
    """
    with extra("prometheus"):
        from prometheus_client import exposition

        from ..prometheus import registry_of
    registry = registry_of(engines.get("", engines), queues)
    is_ours, reads = hosts(host, *allow_host), threading.Lock()

    def scrape(headers: Message, _path: str) -> Answer:
        if not is_ours(headers.get("Host", "")):
            return 400, PLAIN, b"This server has another name: see --allow-host.\n"
        if not reads.acquire(timeout=QUIET):
            return 503, PLAIN, b"Another scrape waits for the database.\n"
        try:
            encode, kind = exposition.choose_encoder(headers.get("Accept", ""))
            return 200, kind, encode(registry)
        except DBAPIError as error:
            return 503, PLAIN, f"The database cannot be read: {first_line(error.orig)}\n".encode()
        finally:
            reads.release()

    stop = THREADS.flag()
    with first_signal_stops(stop.set):
        answer(host, port, scrape)
        click.echo(f"http://{in_address(host)}:{port}/metrics")
        stop.wait()


@contextmanager
def extra(name: str) -> Iterator[None]:
    """Name the extra that has the packages which a block imports."""
    try:
        yield
    except ImportError as error:
        way = f"pip install 'sa_jobqueue[{name}]'"
        raise click.ClickException(f"{error.name} is missing: {way}") from error


def listen(host: str, port: int) -> socket.socket:
    """Listen there, for all connections.

    Raises:
        ClickException: nobody can; says why.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise click.ClickException(f"cannot listen on {host}:{port}: {error}") from error


def in_address(host: str) -> str:
    """Write a host as an address has it."""
    if host in ("0.0.0.0", "::"):  # where everybody listens who has no name for it
        return "127.0.0.1"
    return f"[{host}]" if ":" in host else host


def hosts(*names: str) -> Callable[[str], bool]:
    """Return what tells whether the Host of a request is a name of this server, or an address.

    A page of another site may have its own name resolve to this machine, and would then be of the
    same origin as we are. It cannot do so with an address.
    """
    known = {name.lower() for name in (*names, "localhost", socket.gethostname())}

    def is_ours(host: str) -> bool:
        try:
            name = urlsplit(f"//{host}").hostname or ""
            return name in known or bool(ipaddress.ip_address(name))
        except ValueError:
            return False

    return is_ours


#: The status, the type and the body.
Answer = tuple[int, str, bytes]

PLAIN = "text/plain; charset=utf-8"

#: How many seconds a client may be silent, and a scrape waits for another.
QUIET = 5.0


def answer(host: str, port: int, find: Callable[[Message, str], Answer]) -> None:
    """Answer each GET by its headers and its path, in threads of this process.

    Raises:
        ClickException: nobody can listen there.
    """

    class Answers(BaseHTTPRequestHandler):
        timeout = QUIET

        def do_GET(self) -> None:
            """Answer."""
            status, kind, body = find(self.headers, self.path)
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # as its parent has it
            """Log nothing: somebody asks every few seconds."""

    server = ThreadingHTTPServer((host, port), Answers, bind_and_activate=False)
    server.socket.close()  # it has the family of IPv4
    server.socket = listen(host, port)
    THREADS.start(server.serve_forever, name="sa_jobqueue http")


#: Tells what is wrong; None: nothing is.
Trouble = Callable[[], str | None]


def answer_probes(port: int, *, live: Trouble, ready: Trouble) -> None:
    """Answer ``/live`` and ``/ready`` with 200, or with 503 and what is wrong.

    Raises:
        ClickException: nobody can listen there.
    """
    asked = {"/live": live, "/ready": ready}

    def probe(_headers: Message, path: str) -> Answer:
        if path not in asked:
            return 404, PLAIN, b"ask for /live or /ready\n"
        trouble = asked[path]()
        return 503 if trouble else 200, PLAIN, f"{trouble or 'ok'}\n".encode()

    answer("", port, probe)
