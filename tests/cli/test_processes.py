"""``work --processes``: children are replaced, and end together; also a process alone."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Sequence

import pytest
from sqlalchemy import URL, Engine, select
from sqlalchemy.orm import Session

from sa_jobqueue.cli.supervisor import LONGEST_PAUSE, SHORT_LIFE, Post

from .bakery import Loaf
from .conftest import Start, finished
from .records import PATIENCE, Listener
from .test_async import DRIVERS

WORK = ("work", "tests.cli.bakery:bread", "--log-json", "--poll", 0.1, "--reap-every", 0.2)

pytestmark = pytest.mark.only_on("sqlite", "postgresql")

Hear = Callable[..., "tuple[subprocess.Popen[str], Listener]"]


@pytest.fixture
def hear(start: Start, shop_url: str) -> Hear:
    """Start to work, and listen."""

    def hear(*options: object) -> tuple[subprocess.Popen[str], Listener]:
        process = start(*WORK, "--url", shop_url, *options)
        return process, Listener(process)

    return hear


@pytest.fixture
def async_url(db_url: URL) -> str:
    """Name the database of the test with a driver for asyncio."""
    url = db_url.set(drivername=DRIVERS[db_url.get_backend_name()])
    return url.render_as_string(hide_password=False)


def add_loaves(engine: Engine, *seconds: float | None) -> None:
    with Session(engine) as session, session.begin():
        session.add_all([Loaf(seconds=number) for number in seconds])


def statuses(engine: Engine) -> Sequence[str]:
    with Session(engine) as session:
        return session.scalars(select(Loaf.status).order_by(Loaf.id)).all()


def test_a_child_that_is_killed_is_replaced_and_its_job_is_done(bakery: Engine, hear: Hear) -> None:
    supervisor, listener = hear("--processes", 2)
    listener.wait_for("a worker begins", times=2)
    add_loaves(bakery, 0.1)
    (baking,) = listener.wait_for("in the oven")

    os.kill(baking["process"], signal.SIGKILL)

    (replaced,) = listener.wait_for("has ended with SIGKILL, and is replaced")
    assert f"(process {baking['process']})" in replaced["message"]
    while not listener.heard_of("a worker begins")[2:] or not listener.heard_of("oven")[1:]:
        listener.wait_for("")
    supervisor.send_signal(signal.SIGTERM)
    assert supervisor.wait(PATIENCE) == 0
    assert statuses(bakery) == ["done"]


@pytest.mark.parametrize("whom", ["the supervisor", "all processes"])
def test_sigterm_has_all_children_finish_their_jobs(bakery: Engine, hear: Hear, whom: str) -> None:
    supervisor, listener = hear("--processes", 2)
    children = listener.wait_for("a worker begins", times=2)
    add_loaves(bakery, 0.1, 0.1)
    listener.wait_for("in the oven", times=2)
    add_loaves(bakery, None)

    for child in children if whom == "all processes" else ():  # as a service manager does
        os.kill(child["process"], signal.SIGTERM)
    supervisor.send_signal(signal.SIGTERM)

    assert supervisor.wait(PATIENCE) == 0
    assert statuses(bakery) == ["done", "done", "unclaimed"]


@pytest.mark.parametrize("processes", [(), ("--processes", 2)], ids=["alone", "two"])
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
    assert statuses(bakery) == ["claimed"]


def test_what_runs_beyond_the_grace_is_released(bakery: Engine, hear: Hear) -> None:
    add_loaves(bakery, 1000)
    process, listener = hear("--grace", 0.1)
    listener.wait_for("in the oven")

    process.send_signal(signal.SIGTERM)

    assert process.wait(PATIENCE) == 0
    listener.wait_for_silence()
    assert statuses(bakery) == ["unclaimed"]


@pytest.mark.parametrize("processes", [(), ("--processes", 1)], ids=["alone", "one"])
def test_a_thread_that_nobody_can_stop_does_not_hold_up_the_end(
    bakery: Engine, start: Start, async_url: str, processes: tuple[object, ...]
) -> None:
    with Session(bakery) as session, session.begin():
        session.add(Loaf(kind="pie", seconds=1000))
    pies = ("tests.cli.async_bakery:pies", "--url", async_url, "--log-json", "--grace", 0.1)
    process = start("work", *pies, *processes)
    listener = Listener(process)
    listener.wait_for("in the oven")

    process.send_signal(signal.SIGTERM)

    assert process.wait(30) == 0
    listener.wait_for_silence()
    listener.wait_for("its handler is cancelled, and its job is released")
    listener.wait_for("it is ended, although threads still run: asyncio_0")
    assert statuses(bakery) == ["unclaimed"]


def test_a_child_that_does_not_end_is_killed(bakery: Engine, start: Start, shop_url: str) -> None:
    add_loaves(bakery, None)
    soon = "from sa_jobqueue.cli import supervisor; supervisor.LAST_SECONDS = 0.5"
    impatient = f"{soon}; from sa_jobqueue.__main__ import main; main()"
    working = (*WORK, "--url", shop_url, "--processes", 1, "--grace", 0.1)
    process = start(*working, python=("-c", impatient))
    listener = Listener(process)
    (child,) = listener.wait_for("a worker begins")

    os.kill(child["process"], signal.SIGSTOP)  # nothing runs in it any more
    process.send_signal(signal.SIGTERM)

    (killed,) = listener.wait_for("and is killed")
    assert f"(process {child['process']}) has not ended 0.6 s after" in killed["message"]
    assert process.wait(PATIENCE) == 128 + signal.SIGKILL


#: The command, where the system refuses to start some processes.
REFUSING = """
from multiprocessing.context import SpawnProcess

start, refused = SpawnProcess.start, iter({refused})

def start_or_refuse(process):
    if next(refused, False):
        raise BlockingIOError(11, "Resource temporarily unavailable")
    start(process)

SpawnProcess.start = start_or_refuse
from sa_jobqueue.__main__ import main
main()
"""


def test_a_child_that_cannot_be_started_is_tried_again_while_the_others_work(
    bakery: Engine, start: Start, shop_url: str
) -> None:
    refusing = REFUSING.format(refused=[False, False, True])
    working = (*WORK, "--url", shop_url, "--processes", 2)
    process = start(*working, python=("-c", refusing))
    listener = Listener(process)
    (first, _) = listener.wait_for("a worker begins", times=2)

    os.kill(first["process"], signal.SIGKILL)

    (refusal,) = listener.wait_for("cannot be started, and is tried again in")
    assert "Resource temporarily unavailable" in refusal["message"]
    listener.wait_for("a worker begins")
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE) == 0


def test_a_first_child_that_cannot_be_started_ends_the_command(
    bakery: Engine, start: Start, shop_url: str
) -> None:
    refusing = REFUSING.format(refused=[True])

    code, _, errors = finished(
        start(*WORK, "--url", shop_url, "--processes", 2, python=("-c", refusing))
    )

    assert code == 1
    assert "Resource temporarily unavailable" in errors


def test_the_children_of_a_supervisor_that_is_killed_finish_their_jobs_and_end(
    bakery: Engine, hear: Hear
) -> None:
    supervisor, listener = hear("--processes", 2)
    listener.wait_for("a worker begins", times=2)
    add_loaves(bakery, 0.1)
    listener.wait_for("in the oven")

    supervisor.kill()

    listener.wait_for_silence()
    assert statuses(bakery) == ["done"]


def test_a_drain_ends_when_each_child_finds_nothing_more(bakery: Engine, hear: Hear) -> None:
    add_loaves(bakery, *[None] * 20)

    supervisor, listener = hear("--processes", 2, "--concurrency", 2, "--drain")

    assert supervisor.wait(PATIENCE) == 0
    listener.wait_for_silence()
    assert set(statuses(bakery)) == {"done"}


@pytest.mark.only_on("sqlite")
@pytest.mark.parametrize(
    ("target", "url", "said"),
    [
        ("no_such_module", "sqlite:///missing.db", "No module named 'no_such_module'"),
        ("tests.cli.bakery", "sqlite:///missing.db", "there is no file missing.db"),
        ("tests.cli.bakery", "postgresql+no_such://127.0.0.1:1/x", "no_such"),
    ],
)
@pytest.mark.usefixtures("bakery")
def test_a_mistake_ends_the_supervisor_with_one_error(
    start: Start, target: str, url: str, said: str
) -> None:
    working = start("work", target, "--url", url, "--processes", 3, "--log-level", "warning")

    code, output, errors = finished(working)

    assert (code, output) == (1, "")
    assert said in errors
    assert len(errors.splitlines()) == 1


@pytest.mark.only_on("sqlite")
def test_the_pause_before_a_child_is_replaced_grows_while_they_die_at_once(db_alias: str) -> None:
    post = Post(1)

    pauses = [post.pause_after(0.1) for _ in range(9)]
    post.pause_after(SHORT_LIFE + 1)

    assert pauses == [1, 2, 4, 8, 16, 32, *[LONGEST_PAUSE] * 3]
    assert post.pause_after(0.1) == 1
