"""The search for database servers, without any server."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
from sqlalchemy import make_url

from tests.servers import Server, ServerUnavailable
from tests.servers.errors import NotHere
from tests.servers.given import find_given
from tests.servers.search import search
from tests.servers.sqlite import SQLite


class Scripted(SQLite):
    """A provider that has a server only in the named places, and records where it searched."""

    name = "postgresql"
    packages = ("the-package",)

    def __init__(self, *has: str) -> None:
        self.has = has
        self.looked: list[str] = []

    def running(self) -> Server:
        return self.look("running")

    def started(self) -> Server:
        return self.look("started")

    def installed(self) -> Server:
        return self.look("installed")

    def look(self, place: str) -> Server:
        self.looked.append(place)
        if place not in self.has:
            raise NotHere(f"not {place}")
        return self.found(make_url("sqlite:///x.db"), origin="running")


def setup_cfg(folder: Path, *lines: str) -> Path:
    path = folder / "setup.cfg"
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("has", "looked"),
    [
        (["running", "started"], ["running"]),
        (["started", "installed"], ["running", "started"]),
        (["installed"], ["running", "started", "installed"]),
    ],
)
def test_the_first_place_that_has_a_server_ends_the_search(
    has: list[str], looked: list[str]
) -> None:
    provider = Scripted(*has)

    search(provider)

    assert provider.looked == looked


def test_a_failed_search_tells_every_reason_and_the_way_out() -> None:
    with pytest.raises(ServerUnavailable) as raised:
        search(Scripted())

    error = raised.value
    assert error.database == "postgresql"
    assert error.why == "not running; not started; not installed"
    assert "--dburi postgresql+psycopg2://" in error.way_out
    assert "SA_JOBQUEUE_POSTGRESQL_URL" in error.way_out
    assert "[db] postgresql =" in error.way_out
    assert "the-package" in error.way_out
    assert str(error) == f"postgresql: {error.why}. {error.way_out}"


def test_the_environment_comes_before_setup_cfg(tmp_path: Path) -> None:
    path = setup_cfg(tmp_path, "[db]", "mysql = mysql://from-setup-cfg/x")
    environ = {"SA_JOBQUEUE_MYSQL_URL": "mysql://from-environment/x"}

    assert find_given("mysql", environ=environ, setup_cfg=path) == "mysql://from-environment/x"
    assert find_given("mysql", environ={}, setup_cfg=path) == "mysql://from-setup-cfg/x"


def test_a_keeper_stops_its_command_when_its_starter_is_gone(tmp_path: Path) -> None:
    folder = tmp_path / "server"
    folder.mkdir()
    keeper = Path(__file__).parents[1] / "servers" / "_keeper.py"
    command = (sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)")

    with subprocess.Popen(
        (sys.executable, str(keeper), str(folder), "", "15", *command), stdin=subprocess.PIPE
    ) as process:
        wait_until_written(folder / "log")
        assert process.stdin is not None
        process.stdin.close()

        assert process.wait(timeout=10) == 0
    assert not folder.exists()


def wait_until_written(path: Path) -> None:
    deadline = time.monotonic() + 10
    while not (path.exists() and path.read_bytes()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
