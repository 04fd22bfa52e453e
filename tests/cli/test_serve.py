"""``web``, the page of this machine's user with a token, and ``metrics``."""

from __future__ import annotations

import getpass
import json
import re
import signal
import socket
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import urlopen

import pytest
from sqlalchemy import Engine, text

from .conftest import Shell, Start, add, read
from .depot import Crate

DEPOT = "tests.cli.depot"

pytestmark = pytest.mark.usefixtures("jobs")


@pytest.fixture
def jobs(engine: Engine, tables: None) -> None:
    add(engine, Crate(id=1), Crate(id=2, kind="barrel"))


class Served:
    """A page that a command serves."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        self.process, self.address = process, process.stdout.readline().strip()
        found = urlsplit(self.address)
        self.host, self.port, self.query = str(found.hostname), found.port, found.query

    def ask(self, path: str, *, method: str = "GET", body: str = "", **headers: str) -> Any:
        """Send a request; return the answer with its text."""
        connection = HTTPConnection(self.host, self.port, timeout=20)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, body, named)
        answer: HTTPResponse = connection.getresponse()
        answer.text = answer.read().decode()  # type: ignore[attr-defined]
        connection.close()
        return answer

    def cookie(self) -> str:
        """Make the first visit; return the cookie that it gives."""
        given = self.ask(f"/?{self.query}").headers["set-cookie"]
        return str(given.partition(";")[0])


@pytest.fixture
def served(start: Start, url: str) -> Served:
    """The page of the depot, as the command serves it."""
    return Served(start("web", DEPOT, "--url", url, "--port", 0))


def test_only_the_token_and_hosts_of_ours_come_in(served: Served) -> None:
    first = served.ask(f"/?{served.query}")
    given = first.headers["set-cookie"]
    cookie, name = given.partition(";")[0], f"sa_jobqueue_{served.port}"
    guesses = [
        served.ask("/?token=guessed", cookie=guess) for guess in ("", f"{name}=", f"{name}=guess")
    ]
    ours = ("127.0.0.1", "localhost", f"localhost:{served.port}", "[::1]", socket.gethostname())
    others = ("evil.example", f"evil.example:{served.port}", "127.0.0.1.evil.example", "", "[x")
    answers = {host: served.ask("/", cookie=cookie, host=host) for host in (*ours, *others)}

    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/\?token=[\w-]{32}", served.address)
    assert (first.status, first.headers["location"]) == (303, "/")
    assert {"HttpOnly", "SameSite=lax", "Path=/"} <= set(given.split("; "))
    assert served.ask(f"//evil.example/?{served.query}").headers["location"] == "/evil.example/"
    linked = served.ask(f"/queues/a?show=due&{served.query}&after=7")
    assert linked.headers["location"] == "/queues/a?show=due&after=7"
    assert [answer.status for answer in guesses] == [403, 403, 403]
    assert {host for host, answer in answers.items() if answer.status == 200} == set(ours)
    assert {answers[host].status for host in others} == {400}
    shown = {host for host, answer in answers.items() if f"{DEPOT}:crates" in answer.text}
    assert shown == set(ours)
    assert not [answer for answer in guesses if "crates" in answer.text]
    assert getpass.getuser() in answers["localhost"].text


def test_a_signal_ends_the_command_and_the_log_has_each_change(
    served: Served, engine: Engine
) -> None:
    form = {"content_type": "application/x-www-form-urlencoded", "sec_fetch_site": "same-origin"}
    path = f"/queues/{DEPOT}:crates"

    answer = served.ask(
        path,
        method="POST",
        body="verb=cancel&key=1&confirm=yes",
        cookie=served.cookie(),
        **form,
    )

    assert "1 job cancelled" in answer.text
    assert read(engine, Crate.status) == ["cancelled", "unclaimed"]
    served.process.send_signal(signal.SIGTERM)
    _, errors = served.process.communicate(timeout=20)
    assert served.process.returncode in (0, -signal.SIGTERM)
    assert f"sa_jobqueue.web: {getpass.getuser()!r}: cancel of {DEPOT}:crates: 1 changed" in errors
    assert ("Traceback" in errors, "Listening on" in errors) == (False, False)


def test_a_page_that_is_read_only_changes_nothing_and_another_host_is_told_plainly(
    start: Start, url: str
) -> None:
    options = ("--port", 0, "--read-only", "--host", "0.0.0.0", "--allow-host", "Shop.example")
    served = Served(start("web", DEPOT, "--url", url, *options))
    cookie = served.cookie()

    page = served.ask("/", cookie=cookie, host="shop.example")  # as a proxy passes it on
    stranger = served.ask("/", cookie=cookie, host="evil.example")
    answer = served.ask(
        f"/queues/{DEPOT}:crates", method="POST", cookie=cookie, sec_fetch_site="same-origin"
    )
    served.process.send_signal(signal.SIGINT)
    _, errors = served.process.communicate(timeout=20)

    assert "read only" in page.text
    assert stranger.status == 400
    assert answer.status == 403
    assert served.process.returncode in (0, -signal.SIGINT)
    assert errors.startswith("Listening on 0.0.0.0: everybody who gets the address below can come")


@pytest.mark.parametrize(("options", "secure"), [(("--proxy", "127.0.0.1"), True), ((), False)])
def test_behind_a_proxy_that_was_named_the_cookie_is_secure_and_links_begin_with_its_path(
    start: Start, url: str, options: tuple[str, ...], secure: bool
) -> None:
    served = Served(
        start("web", DEPOT, "--url", url, "--port", 0, "--root-path", "/jobs", *options)
    )
    by_https = {"x_forwarded_proto": "https", "x_forwarded_for": "203.0.113.7"}

    first = served.ask(f"/?{served.query}", **by_https)
    given = first.headers["set-cookie"]
    page = served.ask("/", cookie=given.partition(";")[0], **by_https)

    assert ("Secure" in given.split("; "), first.headers["location"]) == (secure, "/jobs/")
    assert f'href="/jobs/queues/{DEPOT}:crates"' in page.text


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def test_a_scrape_has_each_queue_until_the_command_ends(start: Start, url: str) -> None:
    port = free_port()
    metrics = start("metrics", DEPOT, "--url", url, "--port", port, "--allow-host", "shop.example")
    assert metrics.stdout is not None

    address = metrics.stdout.readline().strip()
    scraped = urlopen(address, timeout=20).read().decode()
    asked = {host: status_of(port, host) for host in ("shop.example", "evil.example", "")}
    metrics.send_signal(signal.SIGTERM)

    assert metrics.wait(20) == 0
    assert asked == {"shop.example": 200, "evil.example": 400, "": 400}
    assert 'jobqueue_due_jobs{queue="tests.cli.depot:crates"} 2.0' in scraped
    assert 'jobqueue_due_jobs{queue="tests.cli.depot:barrels"} 1.0' in scraped
    assert 'jobqueue_due_jobs{queue="shelf"} 0.0' in scraped


def status_of(port: int, host: str) -> int:
    """Ask for the metrics by a name of their server; return the status of the answer."""
    connection = HTTPConnection("127.0.0.1", port, timeout=20)
    connection.request("GET", "/metrics", headers={"Host": host})
    status = connection.getresponse().status
    connection.close()
    return status


@pytest.mark.only_on("postgresql")
def test_scrapes_of_a_locked_table_hold_one_connection_and_are_answered(
    start: Start, bakery: Engine, shop_url: str
) -> None:
    port = free_port()
    metrics = start("metrics", "tests.cli.bakery", "--url", shop_url, "--port", port)
    assert metrics.stdout is not None
    metrics.stdout.readline()
    waiting = text(
        "SELECT count(*) FROM pg_stat_activity "
        "WHERE wait_event_type = 'Lock' AND datname = current_database()"
    )

    with bakery.connect() as connection, ThreadPoolExecutor(12) as scrapers:
        connection.exec_driver_sql("LOCK TABLE loaf IN ACCESS EXCLUSIVE MODE")
        asked = [scrapers.submit(status_of, port, "localhost") for _ in range(12)]
        time.sleep(2)  # while the first one waits for the lock
        held = connection.scalar(waiting)
        found = [each.result() for each in asked]

    assert held == 1
    assert (set(found) <= {200, 503}, 200 in found) == (True, True)


def test_a_missing_folder_of_counts_is_named(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", "nowhere")

    answer = shell("metrics", DEPOT)

    assert answer.exit_code == 1
    assert "PROMETHEUS_MULTIPROC_DIR=nowhere is no folder" in answer.output


@pytest.mark.only_on("sqlite")
def test_a_file_that_a_process_has_just_made_fails_no_scrape(
    start: Start, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = tmp_path / "counts"
    counts.mkdir()
    (counts / "counter_1.db").touch()
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(counts))
    metrics = start("metrics", DEPOT, "--url", url, "--port", free_port())
    assert metrics.stdout is not None

    scraped = urlopen(metrics.stdout.readline().strip(), timeout=20).read().decode()

    assert 'jobqueue_due_jobs{queue="tests.cli.depot:crates"} 2.0' in scraped


def test_the_autoscalers_number_is_json(shell: Shell) -> None:
    printed = shell("status", DEPOT, "--json", "--drain-in", 60).stdout

    needed = {it["target"]: it["workers_needed"] for it in json.loads(printed)}
    assert (needed[f"{DEPOT}:crates"], needed[f"{DEPOT}:shelves"]) == (None, 0)
    assert "--drain-in needs --json" in shell("status", DEPOT, "--drain-in", 60).stderr
