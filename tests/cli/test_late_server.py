"""``work`` waits for a server that is away at the start, as the worker itself does later."""

from __future__ import annotations

import signal
import socket

import pytest
from sqlalchemy import URL, Engine, make_url, select
from sqlalchemy.orm import Session

from tests.proxy import Proxy
from tests.support import SERVERS

from .bakery import Loaf
from .conftest import Start, finished
from .records import PATIENCE, Listener
from .test_async import DRIVERS

pytestmark = pytest.mark.only_on(*SERVERS)

BREADS = {False: "tests.cli.bakery:bread", True: "tests.cli.async_bakery:bread"}


@pytest.fixture
def port() -> int:
    """A port where nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        number: int = taken.getsockname()[1]
        return number


@pytest.fixture(params=[False, True], ids=["plain", "awaited"])
def work(request: pytest.FixtureRequest, db_url: URL, port: int) -> tuple[object, ...]:
    """The arguments that work on bread by that port."""
    url = db_url.set(host="127.0.0.1", port=port)
    if request.param:
        url = url.set(drivername=DRIVERS[url.get_backend_name()])
    written = url.render_as_string(hide_password=False)
    return ("work", BREADS[request.param], "--url", written, "--log-json", "--drain")


@pytest.mark.parametrize("processes", [(), ("--processes", 2)], ids=["alone", "two"])
def test_a_worker_waits_for_a_server_that_is_away(
    bakery: Engine,
    start: Start,
    work: tuple[object, ...],
    db_url: URL,
    port: int,
    processes: tuple[object, ...],
) -> None:
    with Session(bakery) as session, session.begin():
        session.add(Loaf())
    working = start(*work, *processes)
    Listener(working).wait_for("and is run again", times=2)

    with Proxy(db_url, port=port):
        assert working.wait(PATIENCE) == 0

    with Session(bakery) as session:
        assert session.scalars(select(Loaf.status)).all() == ["done"]


@pytest.mark.usefixtures("bakery")
def test_sigterm_ends_a_worker_that_waits(start: Start, work: tuple[object, ...]) -> None:
    working = start(*work)
    listener = Listener(working)
    listener.wait_for("and is run again")

    working.send_signal(signal.SIGTERM)

    listener.wait_for("the worker was stopped")
    assert working.wait(PATIENCE) == 0


@pytest.mark.parametrize("processes", [(), ("--processes", 2)], ids=["alone", "two"])
@pytest.mark.usefixtures("bakery")
def test_a_missing_database_ends_the_command_at_once(
    start: Start, work: tuple[object, ...], db_url: URL, port: int, processes: tuple[object, ...]
) -> None:
    url = make_url(str(work[3])).set(database="no_such_database")
    written = url.render_as_string(hide_password=False)

    with Proxy(db_url, port=port):
        code, _, errors = finished(start(*work[:3], written, *processes))

    assert code == 1
    assert "no_such_database" in errors
    assert len(errors.splitlines()) == 1
