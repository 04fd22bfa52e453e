"""The command line in this process, and in one of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from sqlalchemy import URL, Engine, create_engine, select
from sqlalchemy.orm import Session, sessionmaker

import sa_jobqueue
from sa_jobqueue.cli import cli
from tests.support import log_kept, make_engine, with_empty_tables

from . import depot, films, shop
from .bakery import Base

REPOSITORY = Path(sa_jobqueue.__file__).parents[1]

DRIVERS = {
    "sqlite": "sqlite+aiosqlite",
    "postgresql": "postgresql+asyncpg",
    "mysql": "mysql+aiomysql",
    "mariadb": "mariadb+aiomysql",
}

Run = Callable[..., Result]
Start = Callable[..., "subprocess.Popen[str]"]


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark a test that starts commands, but not on the databases of the run."""
    names = getattr(item, "fixturenames", ())
    if "start" in names and "db_alias" not in names:
        item.add_marker("process")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in an empty folder, where no environment names a database."""
    monkeypatch.delenv("SA_JOBQUEUE_URL", raising=False)
    monkeypatch.chdir(tmp_path)
    # Its engines keep the folder in which they were made.
    monkeypatch.delitem(sys.modules, "tests.cli.engines", raising=False)
    return tmp_path


@pytest.fixture
def url(folder: Path) -> str:
    """Name an SQLite file that does not exist yet."""
    return f"sqlite:///{folder / 'jobs.db'}"


@pytest.fixture
def engine(url: str) -> Iterator[Engine]:
    """Connect to that file."""
    engine = create_engine(url)
    yield engine
    engine.dispose()


@pytest.fixture
def run(folder: Path) -> Iterator[Run]:
    """Run a command in this process; `answer` is what the user types."""

    def run(*arguments: object, answer: str = "") -> Result:
        return CliRunner().invoke(cli, [str(part) for part in arguments], input=answer)

    with log_kept():
        yield run


@pytest.fixture
def start(folder: Path) -> Iterator[Start]:
    """Start a command in its own process, which is killed if the test leaves it running."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: object, python: tuple[str, ...] = ("-m", "sa_jobqueue")) -> object:
        process = subprocess.Popen(
            [sys.executable, *python, *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY), "PYTHONUNBUFFERED": "1"},
        )
        started.append(process)
        return process

    yield start  # type: ignore[misc]  # Callable[..., object] as seen from inside
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def tables(engine: Engine) -> None:
    """Create the tables of the depot, the shop, the bakery and the studio."""
    for base in (depot.Base, shop.Base, Base, films.Base):
        base.metadata.create_all(engine)


def add(engine: Engine, *jobs: object) -> None:
    """Insert jobs."""
    with Session(engine) as session, session.begin():
        session.add_all(jobs)


def read(engine: Engine, column: Any) -> list[Any]:
    """Read a column."""
    with Session(engine) as session:
        return list(session.scalars(select(column)))


class Shell:
    """Runs commands on the database of the test, whose tables are there."""

    def __init__(self, run: Run, url: str, engine: Engine) -> None:
        self._run = run
        self.url, self.engine = url, engine

    def __call__(self, *arguments: object, answer: str = "") -> Result:
        """Run a command in this process, with our URL unless an engine is named."""
        where = () if "--engine" in arguments else ("--url", self.url)
        return self._run(*arguments, *where, answer=answer)

    def session(self) -> AbstractContextManager[Session]:
        """Open a session, whose transaction is committed in the end."""
        return sessionmaker(self.engine, expire_on_commit=False).begin()

    def add(self, *jobs: object) -> None:
        """Insert jobs."""
        add(self.engine, *jobs)

    def read(self, column: Any) -> list[Any]:
        """Read a column."""
        return read(self.engine, column)


@pytest.fixture
def shell(run: Run, url: str, engine: Engine, tables: None) -> Shell:
    """Run commands on the database of the test."""
    return Shell(run, url, engine)


def finished(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Wait for a command; return its exit code, its output and its errors."""
    output, errors = process.communicate(timeout=120)
    return process.returncode, output, errors


def plain(output: str) -> str:
    """Return the text of tables without their lines."""
    return re.sub(r"[^\w.,\n-]+", " ", output)


@pytest.fixture
def shop_url(db_url: URL) -> str:
    """Name the database of the test, as a user does."""
    return db_url.render_as_string(hide_password=False)


@pytest.fixture
def async_url(db_url: URL) -> str:
    """Name the database of the test with a driver for asyncio."""
    url = db_url.set(drivername=DRIVERS[db_url.get_backend_name()])
    return url.render_as_string(hide_password=False)


@pytest.fixture
def bakery(db_url: URL, folder: Path) -> Iterator[Engine]:
    """An engine with the empty tables of the bakery."""
    engine = make_engine(db_url)
    with_empty_tables(engine, Base.metadata)
    with_empty_tables(engine, films.Base.metadata)
    yield engine
    engine.dispose()


def words(result: Result) -> str:
    """Return what a command has printed, without line breaks and boxes."""
    return " ".join(result.output.replace("│", " ").split())
