"""A page in a process of its own, as users run it: uvicorn, and visitors by a header.

    python -m tests.browser.served PORT URL [past]

With "past" the plots have samples of half an hour.

It ends when its standard input does, or at a line.
"""

from __future__ import annotations

import math
import socket
import sys
import threading
import urllib.request
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from time import monotonic, sleep

import uvicorn
from sqlalchemy import URL
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Mount

from sa_jobqueue.counts import Count
from sa_jobqueue.web import Access, Visitor, app

# Inner: to sample half an hour would take half an hour.
from sa_jobqueue.web.site import EVERY, KEPT, Sample
from tests.servers.companion import Companion
from tests.servers.given import REPOSITORY
from tests.support import make_engine
from tests.web.models import ELSEWHERE, QUEUES

#: Stands for a login: in every request of a browser context, also those that other sites cause.
HEADER = "X-Visitor"

VISITORS = {"ann": Access.ADMIN, "bob": Access.ADMIN, "cy": Access.READ}

#: Where no database is.
AWAY = "sqlite:////nowhere/at/all.db"

#: Seconds until a process answers.
PATIENCE = 20


def authorize(request: Request) -> Visitor | None:
    """Believe the header."""
    name = request.headers.get(HEADER, "")
    return Visitor(name, VISITORS[name]) if name in VISITORS else None


@contextmanager
def served(url: URL, *, past: bool = False) -> Iterator[str]:
    """Serve the page of the models from a process; give its address without a path."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    text = url.render_as_string(hide_password=False)
    command = [sys.executable, "-m", __name__, str(port), text, *(["past"] if past else [])]
    process = Companion(*command, folder=REPOSITORY)
    try:
        _wait_for(process, port)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.end()


def _wait_for(process: Companion, port: int) -> None:
    """Wait until the process answers with a file, which needs no database."""
    begun = monotonic()
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/static/icon.svg", headers={HEADER: "ann"}
    )
    while True:
        with suppress(OSError), urllib.request.urlopen(request, timeout=5):
            return
        if not process.running or monotonic() - begun > PATIENCE:
            raise RuntimeError("the process of the page does not answer")
        sleep(0.05)


def main(port: str, url: str, past: str = "") -> None:
    """Serve until told to end."""
    engine = make_engine(url)
    site = app(engine, QUEUES, authorize=authorize)
    # Another page of several databases; one of them has no tables, and one is away.
    several = {"eu": engine, "us": make_engine("sqlite://"), "asia": make_engine(AWAY)}
    both = app(several, ELSEWHERE, authorize=authorize)
    for shown in (site.state.sites[""], both.state.sites["eu"]) if past else ():
        add_past(shown.samples)
        shown.place = "shop on db.example"
    whole = Starlette(routes=[Mount("/both", both), Mount("/", site)])
    config = uvicorn.Config(whole, port=int(port), log_level="error", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)

    def wait() -> None:
        sys.stdin.readline()
        server.should_exit = True

    threading.Thread(target=wait, daemon=True).start()
    server.run()
    engine.dispose()


def add_past(samples: dict[str, deque[Sample]]) -> None:
    """Pretend that somebody has looked for half an hour, while a queue filled and was emptied."""
    for name, due in {"emails": 3, "send": 2, "visits": 1, "scans": 1, "plain": 1}.items():
        kept = samples.setdefault(name, deque(maxlen=KEPT))
        now = monotonic()
        for moment in range(1 - KEPT, 0):
            swell = math.sin(moment / 41) * math.sin(moment / 23 / due)
            rate = 0.013 * (1 - 0.8 * swell) if name == "emails" else None
            number = Count(round(due * (1 + 9 * swell**2)))
            kept.append(Sample(number, rate, taken=now + moment * EVERY.total_seconds()))


if __name__ == "__main__":
    main(*sys.argv[1:])
