"""What is served by HTTP until a signal comes: ``web``, ``metrics``, and probes of a worker."""

from __future__ import annotations

import os
import socket
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from secrets import token_urlsafe
from typing import Any
from urllib.parse import urlencode

import click

from ..counts import overview, workers_needed
from ..model.keys import queue_name
from ..process import THREADS, first_signal_stops
from .command import Place, command, flag, host_option, number, seconds
from .logs import log_options, set_up_logging
from .printing import print_json

#: Names the folder where processes count; the name is that of prometheus_client.
COUNTS = "PROMETHEUS_MULTIPROC_DIR"


@command(
    host_option,
    number("--port", "The port; 0: any that is free.", least=0, most=65535, default=8000),
    flag("--read-only", "Show the queues, but allow no changes."),
    log_options,
    tables=False,
    threads=True,
)
def web(
    at: Place, host: str, port: int, read_only: bool, log_level: str | None, log_json: bool
) -> None:
    """Serve a web page with queues until Ctrl-C.

    Open the address that the command prints. Everybody who has this address can see and change the
    queues. The log has each change.
    """
    set_up_logging(log_level, as_json=log_json)
    try:
        import uvicorn

        from ..web import Access
        from ..web.application import TOKEN, local_app
    except ImportError as error:
        raise click.ClickException(
            "the web page needs more packages: pip install 'sa_jobqueue[web]'"
        ) from error
    token, access = token_urlsafe(24), Access.READ if read_only else Access.ADMIN
    site = local_app(at.engine, at.queues, token=token, access=access, host=host)
    config = uvicorn.Config(
        site, host, port, log_level="warning", access_log=False, proxy_headers=False
    )
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:  # whoever reads the address may come at once
        listening = socket.create_server((host, port), family=family)
    except OSError as error:
        raise click.ClickException(f"cannot listen on {host}:{port}: {error}") from error
    if host not in ("127.0.0.1", "::1", "localhost"):  # other machines can reach it
        click.echo(
            f"Listening on {host}: everybody who gets the address below can come in.", err=True
        )
    found = listening.getsockname()[1]
    click.echo(f"http://{in_address(host)}:{found}/?{urlencode({TOKEN: token})}")
    with suppress(KeyboardInterrupt):  # uvicorn has stopped, and raises the signal again
        uvicorn.Server(config).run([listening])


@command(
    host_option,
    number("--port", "The port to listen on.", most=65535, default=9100),
    seconds("--drain-in", "Print, as JSON, how many workers finish the due jobs in this time."),
    threads=True,
)
def metrics(at: Place, host: str, port: int, drain_in: timedelta | None) -> None:
    """Serve metrics of queues to Prometheus until Ctrl-C.

    Each scrape reads the depth and age of the queues and their workers from the database, by
    indexes alone. If PROMETHEUS_MULTIPROC_DIR names a folder, each scrape also has what other
    processes count there.
    """
    if drain_in is not None:
        seen = at.read(partial(overview, queues=at.queues.values()))
        needed = (workers_needed(each, drain_in) for each in seen)
        print_json(dict(zip(at.queues, needed, strict=True)))
        return
    try:
        from prometheus_client import CollectorRegistry, start_http_server
        from prometheus_client.multiprocess import MultiProcessCollector
    except ImportError as error:
        raise click.ClickException(
            "prometheus_client is missing: pip install 'sa_jobqueue[prometheus]'"
        ) from error
    from ..prometheus import QueueCollector

    shared = Counter(map(queue_name, at.queues.values()))
    labelled = {  # by names, as count_events has them; by targets if these are equal
        target if shared[queue_name(queue)] > 1 else queue_name(queue): queue
        for target, queue in at.queues.items()
    }
    registry = CollectorRegistry()
    registry.register(QueueCollector(at.engine, labelled))
    if COUNTS in os.environ:
        try:
            MultiProcessCollector(registry)  # type: ignore[no-untyped-call]  # theirs
        except ValueError as error:
            raise click.ClickException(f"{COUNTS}={os.environ[COUNTS]} is no folder") from error
    stop = THREADS.flag()
    with first_signal_stops(stop.set):
        try:
            server, thread = start_http_server(port, host, registry)
        except OSError as error:
            raise click.ClickException(f"cannot listen on {host}:{port}: {error}") from error
        click.echo(f"http://{host}:{port}/metrics")
        stop.wait()
        server.shutdown()
        server.server_close()
        thread.join()


def in_address(host: str) -> str:
    """Write a host as an address has it."""
    if host in ("0.0.0.0", "::"):  # where everybody listens who has no name for it
        return "127.0.0.1"
    return f"[{host}]" if ":" in host else host


#: Tells what is wrong; None: nothing is.
Trouble = Callable[[], str | None]


def answer_probes(port: int, *, live: Trouble, ready: Trouble) -> None:
    """Answer ``/live`` and ``/ready`` with 200, or with 503 and what is wrong, in a thread.

    Raises:
        ClickException: nobody can listen on this port.
    """
    asked = {"/live": live, "/ready": ready}

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            """Answer."""
            trouble = asked[self.path]() if self.path in asked else "ask for /live or /ready"
            status = 404 if self.path not in asked else 503 if trouble else 200
            self.send_response(status)
            self.send_header("Content-Type", "text/plain; charset=utf-8")
            self.end_headers()
            self.wfile.write(f"{trouble or 'ok'}\n".encode())

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # as its parent has it
            """Log nothing: a probe comes every few seconds."""

    try:
        server = ThreadingHTTPServer(("", port), Answers)
    except OSError as error:
        raise click.ClickException(f"--health-port: cannot listen on {port}: {error}") from error
    threading.Thread(target=server.serve_forever, name="sa_jobqueue health", daemon=True).start()
