"""Commands on several databases: which is which, and what becomes of one that is away."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import socket
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from urllib.request import urlopen

import pytest
from click.testing import Result
from sqlalchemy import URL, Engine, create_engine
from sqlalchemy.orm import Session

from sa_jobqueue.control import pause
from tests.support import make_engine, with_empty_tables

from .conftest import REPOSITORY, Run, Start, add, read
from .depot import TABLES, Base, Crate
from .test_serve import Served

DEPOT, CRATES = "tests.cli.depot", "tests.cli.depot:crates"
AWAY = "postgresql+psycopg2://127.0.0.1:1/x"

pytestmark = pytest.mark.by_turns("postgresql", "mysql", "mariadb", "sqlite")


@pytest.fixture
def eu(db_url: URL, folder: Path) -> Iterator[Engine]:
    """A database of the test, with a due and a failed crate."""
    engine = make_engine(db_url)
    with_empty_tables(engine, Base.metadata)
    add(engine, Crate(id=1), failed(2))
    yield engine
    engine.dispose()


@pytest.fixture
def us(folder: Path) -> Iterator[Engine]:
    """A file with two failed crates, one of which has the key of another in `eu`."""
    engine = create_engine(f"sqlite:///{folder / 'us.db'}")
    Base.metadata.create_all(engine)
    add(engine, failed(2), failed(3))
    yield engine
    engine.dispose()


def failed(key: int) -> Crate:
    return Crate(id=key, status="failed", attempts=1, owner_date=datetime.now(UTC), last_error="no")


class Several:
    """Runs commands on both databases."""

    def __init__(self, run: Run, *urls: str) -> None:
        self._run, self.options = run, [part for url in urls for part in ("--url", url)]

    def __call__(self, *arguments: object, answer: str = "") -> Result:
        return self._run(*arguments, *self.options, answer=answer)


@pytest.fixture
def both(run: Run, eu: Engine, us: Engine) -> Several:
    return Several(run, *(f"{name}={shown(it)}" for name, it in (("eu", eu), ("us", us))))


def shown(engine: Engine) -> str:
    return engine.url.render_as_string(hide_password=False)


def under_headings(result: Result) -> dict[str, str]:
    """Divide what was printed by the headings."""
    parts: dict[str, str] = {}
    for line in result.stdout.splitlines():
        if line in ("eu:", "us:"):
            parts[line[:-1]] = ""
        else:
            parts[[*parts][-1]] += line + "\n"
    return parts


@pytest.mark.parametrize("command", ["status", "failed", "workers", "schedules", "doctor"])
def test_what_is_seen_stands_under_the_name_of_its_database(both: Several, command: str) -> None:
    pytest.importorskip("cronsim")

    parts = under_headings(both(command, CRATES))

    assert list(parts) == ["eu", "us"]
    if command == "status":
        assert [part.split("unclaimed")[1].split()[0] for part in parts.values()] == ["1", "0"]
    if command == "failed":
        assert [part.count("crates") for part in parts.values()] == [1, 2]


def test_json_has_the_names_as_keys(both: Several) -> None:
    found = json.loads(both("failed", CRATES, "--json").stdout)

    assert {name: [job["key"] for job in jobs] for name, jobs in found.items()} == {
        "eu": [[2]],
        "us": [[3], [2]],
    }


def test_a_database_that_is_away_is_one_line_and_the_others_are_shown(
    both: Several, run: Run
) -> None:
    both.options += ["--url", f"ap={AWAY}", "--url", "old=sqlite:///missing.db"]

    seen = both("failed", CRATES)
    told = json.loads(both("status", CRATES, "--json").stdout)
    changed = both("retry", CRATES, "--failed", "--yes")

    lines = seen.stderr.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["ap", "old"]
    assert ("Connection refused" in lines[0], "no file" in lines[1]) == (True, True)
    assert list(under_headings(seen)) == ["eu", "us"]
    assert (told["ap"], told["us"][0]["due"]["number"]) == (None, 0)
    assert [each.exit_code for each in (seen, changed)] == [1, 1]
    assert changed.stdout == "eu:\nretry: 1 job\nus:\nretry: 2 jobs\n"


def test_keys_are_of_one_database_which_is_named(both: Several, eu: Engine, us: Engine) -> None:
    refused = both("retry", CRATES, 2, "--yes")
    told = both("retry", CRATES, 2, "--yes", "--database", "us")
    unknown = both("status", CRATES, "--database", "asia")

    assert (refused.exit_code, unknown.exit_code) == (2, 2)
    assert "choose one of eu, us by --database NAME" in refused.stderr
    assert "no database 'asia' among them: eu, us" in unknown.stderr
    assert told.stdout == "us:\nretry: 1 job\n"
    assert sorted(read(eu, Crate.status)) == ["failed", "unclaimed"]
    assert sorted(read(us, Crate.status)) == ["failed", "unclaimed"]


def test_a_change_of_all_asks_in_each_database(both: Several, eu: Engine, us: Engine) -> None:
    told = both("pause", CRATES, answer="y\ny\n")
    partly = both("resume", CRATES, answer="y\nn\n")

    assert told.stdout == "eu:\ncrates is paused\nus:\ncrates is paused\n"
    assert ") in eu. Go on?" in told.stderr
    assert ") in us. Go on?" in told.stderr
    assert partly.exit_code == 1
    assert "paused since" not in both("status", CRATES, "--database", "eu").stdout
    assert "paused since" in both("status", CRATES, "--database", "us").stdout


def test_the_worst_finding_of_all_is_the_exit_code(both: Several, us: Engine) -> None:
    well = both("doctor", CRATES)
    with us.begin() as connection:
        connection.exec_driver_sql("DROP INDEX ix_crate_claim")

    found = both("doctor", CRATES)

    assert (well.exit_code in (0, 3), found.exit_code) == (True, 1)
    assert "no index serves the claim" in under_headings(found)["us"]
    assert "no index serves the claim" not in under_headings(found)["eu"]


@pytest.mark.usefixtures("eu")
def test_a_function_of_the_application_or_the_environment_names_several(
    run: Run, us: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_function = run("status", CRATES, "--json", "--engines", "tests.cli.engines:tenants")
    monkeypatch.setenv("SA_JOBQUEUE_URL", f"us={shown(us)} them={shown(us)}")
    by_environment = run("status", CRATES, "--json")

    assert list(json.loads(by_function.stdout)) == ["us", "async"]
    assert list(json.loads(by_environment.stdout)) == ["us", "them"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--url", "sqlite:///a.db", "--url", "sqlite:///b.db"), "each of several databases has a"),
        (("--url", "a=sqlite:///a.db", "--url", "a=sqlite:///b.db"), "has a name of its own"),
        (("--engine", "tests.cli.engines:urls"), "is no Engine, AsyncEngine, sessionmaker or"),
        (("--engine", "x:y", "--url", "x"), "give one of them"),
        (("--url", "sqlite:///a.db", "--database", "eu"), "among them: none has a name"),
    ],
)
def test_names_that_are_wrong_are_refused(run: Run, options: tuple[str, ...], said: str) -> None:
    result = run("status", CRATES, *options)

    assert result.exit_code in (1, 2)
    assert said in " ".join(result.stderr.split())


def test_what_works_on_one_database_says_so(both: Several) -> None:
    result = both("load", "tests.cli.imports:messages", "--log", "may")

    assert "works on one database: choose one of eu, us by --database" in result.stderr


WORK = ("work", CRATES, "--handler", "tests.cli.shop:send", "--drain")


def test_a_worker_works_in_all_and_names_them(both: Several, eu: Engine, us: Engine) -> None:
    add(us, Crate(id=9))

    result = both(*WORK, "--log-level", "debug")

    assert result.exit_code == 0, result.output
    assert "done" in read(eu, Crate.status)
    assert "done" in read(us, Crate.status)
    assert ("eu: Crate 1" in result.stderr, "us: Crate 9" in result.stderr) == (True, True)
    assert "2 done, 0 failed" in result.stderr


@pytest.mark.parametrize("options", [("--engine", "tests.cli.engines:files"), ()])
def test_a_worker_works_where_a_function_or_a_name_says(
    both: Several, eu: Engine, us: Engine, options: tuple[str, ...]
) -> None:
    add(us, Crate(id=9))
    both.options = list(options) or [*both.options, "--database", "us"]

    result = both(*WORK)

    assert result.exit_code == 0, result.output
    assert "done" in read(us, Crate.status)
    assert "done" not in read(eu, Crate.status)


def test_a_worker_refuses_what_is_missing_in_one_of_them(both: Several, us: Engine) -> None:
    with us.begin() as connection:
        connection.exec_driver_sql("DROP TABLE crate")

    result = both(*WORK)

    assert (result.exit_code, "there is no table crate" in result.stderr) == (1, True)


def test_metrics_have_the_database_as_a_label(both: Several, start: Start) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    metrics = start("metrics", CRATES, *both.options, "--url", f"ap={AWAY}", "--port", port)
    assert metrics.stdout is not None

    scraped = urlopen(metrics.stdout.readline().strip(), timeout=20).read().decode()

    assert 'jobqueue_due_jobs{database="eu",queue="crate"} 1.0' in scraped
    assert 'jobqueue_failed_jobs{database="us",queue="crate"} 2.0' in scraped
    assert 'database="ap"' not in scraped


def test_the_page_shows_all_databases(both: Several, start: Start) -> None:
    pytest.importorskip("starlette")
    served = Served(start("web", CRATES, *both.options, "--url", f"ap={AWAY}", "--port", 0))

    page = served.ask("/", cookie=served.cookie()).text

    rows = re.findall('<tr data-row="(.+?)">', page)
    assert {row.partition(" / ")[0] for row in rows} == {"eu", "us"}
    assert 'data-trouble="ap"' in page


@pytest.mark.parametrize("command", ["top", "web", "metrics"])
def test_a_file_that_is_missing_is_refused_and_not_made(both: Several, command: str) -> None:
    both.options += ["--url", "ap=sqlite:///missing.db"]

    result = both(command, CRATES)

    assert (result.exit_code, "there is no file missing.db" in result.stderr) == (1, True)
    assert not Path("missing.db").exists()


def test_how_many_workers_are_needed_is_told_of_each(both: Several) -> None:
    both.options += ["--url", f"ap={AWAY}"]

    result = both("status", CRATES, "--json", "--drain-in", 60)

    eu, us, away = (json.loads(result.stdout)[name] for name in ("eu", "us", "ap"))
    assert (eu[0]["workers_needed"], us[0]["workers_needed"], away) == (None, 0, None)
    assert result.exit_code == 1


class Terminal:
    """A command in a terminal of so many columns."""

    def __init__(self, columns: int, *arguments: str) -> None:
        self.screen, inside = pty.openpty()
        fcntl.ioctl(inside, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
        self.before = termios.tcgetattr(self.screen)
        command = [sys.executable, "-m", "sa_jobqueue", *arguments]
        env = {**os.environ, "PYTHONPATH": str(REPOSITORY), "TERM": "xterm"}
        env.pop("COLUMNS", None)
        with os.fdopen(inside) as it:
            self.process = subprocess.Popen(command, env=env, stdin=it, stdout=it, stderr=it)

    def wait_for(self, *said: str) -> str:
        """Read until all of this was written; return it."""
        seen, end = "", time.monotonic() + 60
        while not all(text in seen for text in said):
            ready, _, _ = select.select([self.screen], [], [], end - time.monotonic())
            assert ready, seen
            seen += os.read(self.screen, 65536).decode(errors="replace")
        return seen

    def press(self, key: str) -> int:
        """Press a key; return the exit code."""
        os.write(self.screen, key.encode())
        reader = threading.Thread(target=self._read_on, daemon=True)
        reader.start()
        return self.process.wait(30)

    def _read_on(self) -> None:
        with suppress(OSError):  # nobody has the terminal any more
            while os.read(self.screen, 65536):
                pass


@pytest.mark.parametrize(("columns", "draws"), [(120, True), (80, False)])
def test_top_shows_all_databases_and_ends_by_q(
    both: Several, us: Engine, columns: int, draws: bool
) -> None:
    with Session(us) as session, session.begin():
        pause(session, Crate, tables=TABLES)
    both("retry", CRATES, "--failed", "--yes", "--database", "eu")
    options = [*both.options, "--url", f"ap={AWAY}", "--every", "0.1"]
    terminal = Terminal(columns, "top", CRATES, *options)

    seen = terminal.wait_for("eu crates", "us crates", "paused", "ap not read, tried again")
    ended = terminal.press("q")

    assert ended == 0
    assert termios.tcgetattr(terminal.screen) == terminal.before
    assert ("due lately" in seen, "\u2588" in seen) == (draws, draws)
    assert seen.index("us crates") < seen.index("eu crates")  # trouble first
