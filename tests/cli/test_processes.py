"""``work`` as processes of its own: signals, the supervisor of ``--processes``, a late server."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

import pytest
from sqlalchemy import URL, Engine, make_url

from sa_jobqueue.cli.database import Databases
from tests.proxy import Proxy
from tests.support import until

from .bakery import Loaf
from .conftest import DRIVERS, Start, add, finished, read
from .records import PATIENCE, Listener

BREAD, AWAITED = "tests.cli.bakery:bread", "tests.cli.async_bakery"
TWO = ("--processes", 2)

Hear = Callable[..., "tuple[subprocess.Popen[str], Listener]"]

pytestmark = pytest.mark.only_on("sqlite")


@pytest.fixture
def hear(start: Start, shop_url: str) -> Hear:
    """Start to work, and listen."""

    def hear(
        *options: object, target: str = BREAD, url: str = shop_url, python: str = ""
    ) -> tuple[subprocess.Popen[str], Listener]:
        main = "from sa_jobqueue.__main__ import main; main()"
        command = ("-c", f"{python}\n{main}") if python else ("-m", "sa_jobqueue")
        arguments = ("work", target, "--log-json", "--poll", 0.1, "--url", url, *options)
        process = start(*arguments, python=command)
        return process, Listener(process)

    return hear


def add_loaves(engine: Engine, *seconds: float | None, kind: str = "bread") -> None:
    add(engine, *(Loaf(seconds=number, kind=kind) for number in seconds))


@pytest.mark.only_on("sqlite", "postgresql")
@pytest.mark.parametrize("whom", ["the supervisor", "all processes"])
def test_a_child_that_is_killed_is_replaced_and_sigterm_has_all_finish_their_jobs(
    bakery: Engine, hear: Hear, whom: str
) -> None:
    supervisor, listener = hear(*TWO)
    first, second = listener.wait_for("a worker begins", times=2)
    os.kill(first["process"], signal.SIGKILL)
    (replaced,) = listener.wait_for("has ended with signal 9 (Killed), and is replaced")
    assert f"(process {first['process']})" in replaced["message"]
    (third,) = listener.wait_for("a worker begins")
    add_loaves(bakery, 0.1, 0.1)
    listener.wait_for("in the oven", times=2)
    add_loaves(bakery, None)

    for child in (second, third) if whom == "all processes" else ():  # as a service manager does
        os.kill(child["process"], signal.SIGTERM)
    supervisor.send_signal(signal.SIGTERM)

    assert supervisor.wait(PATIENCE) == 0
    assert sorted(read(bakery, Loaf.status)) == ["done", "done", "unclaimed"]


@pytest.mark.parametrize("processes", [(), TWO], ids=["alone", "two"])
def test_a_second_signal_ends_all_at_once(
    bakery: Engine, hear: Hear, processes: tuple[object, ...]
) -> None:
    add_loaves(bakery, 1000)
    process, listener = hear(*processes, "--grace", 1000)
    listener.wait_for("in the oven")
    process.send_signal(signal.SIGTERM)
    listener.wait_for("the baker is asked to stop")

    process.send_signal(signal.SIGTERM)

    assert process.wait(PATIENCE) != 0
    listener.wait_for_silence()
    assert read(bakery, Loaf.status) == ["claimed"]


@pytest.mark.parametrize("processes", [(), ("--processes", 1)], ids=["alone", "one"])
def test_a_thread_that_nobody_can_stop_does_not_hold_up_the_end(
    bakery: Engine, hear: Hear, async_url: str, processes: tuple[object, ...]
) -> None:
    add_loaves(bakery, 1000, kind="pie")
    process, listener = hear("--grace", 0.1, *processes, target=f"{AWAITED}:pies", url=async_url)
    listener.wait_for("in the oven")

    process.send_signal(signal.SIGTERM if processes else signal.SIGINT)

    assert process.wait(30) == 0
    listener.wait_for_silence()
    listener.wait_for("its job is released, and its handler is cancelled")
    (ended,) = listener.wait_for("its process is ended, although these run: ")
    assert "asyncio_0" in ended["message"]
    assert read(bakery, Loaf.status) == ["unclaimed"]


def answer(port: int, path: str) -> tuple[int, str]:
    try:
        with urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as found:
            return found.status, found.read().decode()
    except HTTPError as refused:
        return refused.code, refused.read().decode()
    except URLError:  # nobody listens yet
        return 0, ""


@pytest.mark.parametrize("processes", [(), TWO], ids=["alone", "two"])
def test_probes_are_answered_and_a_process_ends_after_so_many_jobs(
    bakery: Engine, hear: Hear, processes: tuple[object, ...]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    setup = ("--setup", "tests.cli.bakery:light_the_fire")
    process, listener = hear("--health-port", port, "--max-jobs", 2, *setup, *processes)
    listener.wait_for("the fire burns")
    until(lambda: answer(port, "/ready") == (200, "ok\n"), PATIENCE)
    assert answer(port, "/live") == (200, "ok\n")
    assert answer(port, "/")[0] == 404

    add_loaves(bakery, None, None, None, None, None)

    listener.wait_for("has done 2 jobs, and ends")
    if processes:
        until(lambda: set(read(bakery, Loaf.status)) == {"done"}, PATIENCE)
        process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE) == 0
    assert sorted(set(read(bakery, Loaf.attempts))) in ([0, 1], [1])  # none was lost, or counted


@pytest.mark.usefixtures("bakery")
def test_a_child_that_does_not_end_is_killed(hear: Hear) -> None:
    impatient = "from sa_jobqueue.cli import processes; processes.LAST_SECONDS = 0.5"
    process, listener = hear("--processes", 1, "--grace", 0.1, python=impatient)
    (child,) = listener.wait_for("a worker begins")

    os.kill(child["process"], signal.SIGSTOP)  # nothing runs in it any more
    process.send_signal(signal.SIGTERM)

    (killed,) = listener.wait_for("and is killed")
    assert f"(process {child['process']}) has not ended 0.6 s after" in killed["message"]
    assert process.wait(PATIENCE) == 128 + signal.SIGKILL


#: The system refuses to start some processes.
REFUSING = """
from multiprocessing.context import SpawnProcess

start, refused = SpawnProcess.start, iter({refused})

def start_or_refuse(process):
    if next(refused, False):
        raise BlockingIOError(11, "Resource temporarily unavailable")
    start(process)

SpawnProcess.start = start_or_refuse
"""


@pytest.mark.usefixtures("bakery")
def test_a_child_that_cannot_be_started_is_tried_again_later_and_later_while_others_work(
    hear: Hear,
) -> None:
    process, listener = hear(*TWO, python=REFUSING.format(refused=[False, True, True]))
    listener.wait_for("a worker begins")

    for pause in (1, 2):  # it grows
        (refusal, _) = (
            *listener.wait_for("worker 2 cannot be started"),
            *listener.wait_for(f"and is replaced in {pause} s"),
        )
        assert "Resource temporarily unavailable" in refusal["message"]
    listener.wait_for("a worker begins")
    process.send_signal(signal.SIGTERM)

    assert process.wait(PATIENCE) == 0


def test_the_children_of_a_supervisor_that_is_killed_finish_their_jobs_and_end(
    bakery: Engine, hear: Hear
) -> None:
    supervisor, listener = hear(*TWO)
    listener.wait_for("a worker begins", times=2)
    add_loaves(bakery, 0.1)
    listener.wait_for("in the oven")

    supervisor.kill()

    listener.wait_for_silence()
    assert read(bakery, Loaf.status) == ["done"]


def test_a_drain_ends_when_each_child_finds_nothing_more(bakery: Engine, hear: Hear) -> None:
    add_loaves(bakery, *[None] * 20)

    supervisor, listener = hear(*TWO, "--concurrency", 2, "--drain")

    assert supervisor.wait(PATIENCE) == 0
    listener.wait_for_silence()
    assert set(read(bakery, Loaf.status)) == {"done"}


def test_a_mistake_ends_the_supervisor_with_one_error(start: Start) -> None:
    code, output, errors = finished(start("work", "no_such_module", *TWO, "--log-level", "warning"))

    assert (code, output) == (1, "")
    assert "No module named 'no_such_module'" in errors
    assert len(errors.splitlines()) == 1


@pytest.fixture
def port() -> int:
    """A port where nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        number: int = taken.getsockname()[1]
        return number


@pytest.mark.only_on("postgresql", "mysql")
@pytest.mark.parametrize("processes", [(), TWO], ids=["awaited", "two"])
def test_a_worker_waits_for_a_server_that_is_away(
    bakery: Engine, hear: Hear, db_url: URL, port: int, processes: tuple[object, ...]
) -> None:
    add_loaves(bakery, None)
    target = BREAD if processes else f"{AWAITED}:bread"
    driver = db_url.drivername if processes else DRIVERS[db_url.get_backend_name()]
    late = db_url.set(drivername=driver, host="127.0.0.1", port=port)
    url = late.render_as_string(hide_password=False)
    working, listener = hear(*processes, target=target, url=url)
    listener.wait_for("and is run again", times=2)

    with Proxy(db_url, port=port):
        listener.wait_for("in the oven")
        until(lambda: read(bakery, Loaf.status) == ["done"])
    listener.wait_for("and is run again")
    working.send_signal(signal.SIGTERM)  # while it waits again

    assert working.wait(PATIENCE) == 0


@pytest.mark.only_on("postgresql")
def test_a_command_ends_though_its_connection_is_silent(
    async_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sa_jobqueue.cli.database.FAREWELL", timedelta(milliseconds=500))
    with Proxy(make_url(async_url)) as proxy:

        def work(_: Any, engines: dict[str, Engine]) -> None:
            engines[""].connect().close()
            proxy.go_silent()
            proxy.speak()

        Databases((proxy.url.render_as_string(hide_password=False),)).open(work)
