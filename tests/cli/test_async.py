"""``work`` with handlers that are awaited."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import Engine, make_url, select
from sqlalchemy.orm import Session

from .bakery import Loaf
from .conftest import Run, Start
from .records import PATIENCE, Listener, ends

ASYNC_BAKERY = "tests.cli.async_bakery"
BAKERY = "tests.cli.bakery:bread"
NOWHERE = "127.0.0.1:1"

DRIVERS = {
    "sqlite": "sqlite+aiosqlite",
    "postgresql": "postgresql+asyncpg",
    "mysql": "mysql+aiomysql",
    "mariadb": "mariadb+aiomysql",
}

ENGINES = """
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import scoped_session, sessionmaker

engine = create_engine({url!r})
Session = sessionmaker(engine)
async_engine = create_async_engine({url_async!r})
AsyncSession = async_sessionmaker(async_engine)
Scoped = scoped_session(Session)
"""


@pytest.fixture
def async_url(shop_url: str) -> str:
    """Name the database of the test with a driver for asyncio."""
    url = make_url(shop_url)
    url = url.set(drivername=DRIVERS[url.get_backend_name()])
    return url.render_as_string(hide_password=False)


@pytest.fixture
def loaves(bakery: Engine) -> Engine:
    """A bread and a cake; return their engine."""
    with Session(bakery) as session, session.begin():
        session.add_all([Loaf(kind="bread"), Loaf(kind="cake")])
    return bakery


@pytest.fixture
def engines(folder: Path, shop_url: str, async_url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Write a user's module with engines and sessionmakers; return its name."""
    name = "engines_of_the_bakery"
    (folder / f"{name}.py").write_text(ENGINES.format(url=shop_url, url_async=async_url))
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, name, raising=False)
    return name


def statuses(engine: Engine, kind: str) -> Sequence[str]:
    with Session(engine) as session:
        return session.scalars(select(Loaf.status).where(Loaf.kind == kind).order_by(Loaf.id)).all()


def test_an_async_url_serves_async_handlers(run: Run, loaves: Engine, async_url: str) -> None:
    result = run("work", ASYNC_BAKERY, "--url", async_url, "--drain", "--log-json")

    assert sorted(status for _, status in ends(result)) == ["done", "done"]
    assert statuses(loaves, "idea") == ["unclaimed"]


@pytest.mark.only_on("sqlite", "postgresql")
@pytest.mark.parametrize(
    ("target", "name"),
    [
        (BAKERY, "engine"),
        (BAKERY, "Session"),
        (f"{ASYNC_BAKERY}:awaited_bread", "async_engine"),
        (f"{ASYNC_BAKERY}:bread", "AsyncSession"),
    ],
)
def test_the_applications_engine_or_sessionmaker_is_used(
    run: Run, loaves: Engine, engines: str, target: str, name: str
) -> None:
    result = run("work", target, "--engine", f"{engines}:{name}", "--drain", "--log-json")

    assert [status for _, status in ends(result)] == ["done"]


@pytest.mark.only_on("postgresql")
def test_a_driver_for_both_serves_the_handlers_that_there_are(
    run: Run, loaves: Engine, shop_url: str
) -> None:
    pytest.importorskip("psycopg")
    url = make_url(shop_url).set(drivername="postgresql+psycopg")
    written = url.render_as_string(hide_password=False)

    awaited = run("work", f"{ASYNC_BAKERY}:bread", "--url", written, "--drain", "--log-json")
    called = run("work", "tests.cli.bakery:cakes", "--url", written, "--drain", "--log-json")

    assert [status for _, status in ends(awaited) + ends(called)] == ["done", "done"]


@pytest.mark.only_on("sqlite")
@pytest.mark.parametrize(
    ("target", "database", "said"),
    [
        (ASYNC_BAKERY, ("--url", "{url}"), "name one in the URL, as in postgresql+asyncpg://"),
        (BAKERY, ("--url", "{async_url}"), "sqlite+aiosqlite is for asyncio, and bake is a plain"),
        (ASYNC_BAKERY, ("--engine", "{engines}:Session"), "name an AsyncEngine or an async_sess"),
        (BAKERY, ("--engine", "{engines}:AsyncSession"), "make it async def, or name a synchro"),
        (BAKERY, ("--engine", "{engines}:Scoped"), "is no Engine, sessionmaker, AsyncEngine or"),
        (ASYNC_BAKERY, ("--url", f"postgresql+asyncpg://{NOWHERE}/x"), "onnect"),
        (ASYNC_BAKERY, ("--url", f"mysql+aiomysql://{NOWHERE}/x"), "Can't connect"),
        (ASYNC_BAKERY, ("--url", "sqlite+aiosqlite:///missing.db"), "there is no file missing.db"),
        (ASYNC_BAKERY, ("--url", "postgresql+no_such://x"), "no_such"),
    ],
)
def test_a_database_that_does_not_suit_is_one_line(
    run: Run,
    engines: str,
    shop_url: str,
    async_url: str,
    target: str,
    database: tuple[str, str],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sa_jobqueue.worker.transactions.PATIENCE", timedelta(0))
    option, written = database
    named = written.format(url=shop_url, async_url=async_url, engines=engines)

    result = run("work", target, option, named, "--drain")

    assert result.exit_code == 1
    assert said in result.output
    assert result.output.startswith("Error: ")
    assert len(result.output.splitlines()) == 1


@pytest.mark.only_on("sqlite", "postgresql")
def test_sigterm_has_running_tasks_finish(start: Start, bakery: Engine, async_url: str) -> None:
    with Session(bakery) as session, session.begin():
        session.add_all([Loaf(seconds=0.1), Loaf(seconds=0.1)])
    bread = ("work", f"{ASYNC_BAKERY}:bread", "--url", async_url, "--log-json")
    working = start(*bread, "--concurrency", 2)
    Listener(working).wait_for("in the oven", times=2)
    with Session(bakery) as session, session.begin():
        session.add(Loaf())

    working.send_signal(signal.SIGTERM)

    assert working.wait(PATIENCE) == 0
    assert statuses(bakery, "bread") == ["done", "done", "unclaimed"]
