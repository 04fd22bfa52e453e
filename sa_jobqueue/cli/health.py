"""``health``, and what ``work --health-port`` answers to the probes of an orchestrator."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import click

from ..ages import duration_text
from ..control import HOST_LENGTH, WorkerInfo, tables_for
from ..control import workers as list_workers
from ..model.keys import CONTROL, beside, queue_name
from ..owners.alive import OwnerState
from .command import Place, command, seconds

#: A worker writes its row once in a minute, give or take a fifth.
WITHIN = timedelta(seconds=150)


@command(
    seconds(
        "--within",
        "A worker of this host wrote its row in this time.",
        default=WITHIN.total_seconds(),
    )
)
def health(at: Place, within: timedelta) -> None:
    """Tell by the exit code whether this host works on the queues.

    The database answers, the tables are there, and a worker of this host is at work. Without
    control tables, nothing tells of workers.
    """
    if not any(beside(queue.mapping, CONTROL) for queue in at.queues.values()):
        click.echo("ok: the database answers, and the tables are there")
        return
    found = _of_this_host(at)
    young = [it for it in found if datetime.now(UTC) - it.seen_at <= within]
    alive = [it for it in young if it.state not in (OwnerState.DEAD, OwnerState.STUCK)]
    if not alive:
        stuck = next((f"; one is stuck in {it.stuck}" for it in young if it.stuck), "")
        raise click.ClickException(
            f"no worker of {socket.gethostname()} is at work: {len(found)} listed, "
            f"{len(young)} seen within {duration_text(within)}{stuck}"
        )
    click.echo(f"ok: {len(alive)} workers of {socket.gethostname()} are at work")


def _of_this_host(at: Place) -> list[WorkerInfo]:
    """Return the workers of this host on any of the queues."""
    queues = at.queues.values()
    names, host = set(map(queue_name, queues)), socket.gethostname()[:HOST_LENGTH]
    each_once = {
        id(tables): tables
        for tables in (beside(queue.mapping, CONTROL) for queue in queues)
        if tables is not None
    }
    listed = at.read(
        lambda session: [
            it
            for tables in each_once.values()
            for it in list_workers(session, tables=tables_for(tables))
        ]
    )
    return [it for it in listed if it.host == host and names.intersection(it.queues)]


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
