"""``web``, the page of this machine's user with a token, and ``metrics``."""

from __future__ import annotations

import getpass
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from http.client import HTTPConnection, HTTPResponse
from typing import Any
from urllib.parse import urlsplit
from urllib.request import urlopen

import click
import pytest
from sqlalchemy import Engine

from sa_jobqueue.cli.serve import in_address

from .conftest import Run, Start, add, read
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
    assert {"HttpOnly", "SameSite=strict", "Path=/"} <= set(given.split("; "))
    assert served.ask(f"//evil.example/?{served.query}").headers["location"] == "/evil.example/"
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
    assert "Traceback" not in errors


def test_a_page_that_is_read_only_changes_nothing_and_another_host_is_told_plainly(
    start: Start, url: str
) -> None:
    options = ("--port", 0, "--read-only", "--host", "0.0.0.0")
    served = Served(start("web", DEPOT, "--url", url, *options))
    cookie = served.cookie()

    page = served.ask("/", cookie=cookie)
    answer = served.ask(
        f"/queues/{DEPOT}:crates", method="POST", cookie=cookie, sec_fetch_site="same-origin"
    )
    served.process.send_signal(signal.SIGINT)
    _, errors = served.process.communicate(timeout=20)

    assert "read only" in page.text
    assert answer.status == 403
    assert served.process.returncode in (0, -signal.SIGINT)
    assert errors.startswith("Listening on 0.0.0.0: everybody who gets the address below can come")


def test_a_port_that_is_taken_is_one_line(run: Run, url: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        result = run("web", DEPOT, "--url", url, "--port", taken.getsockname()[1])

    assert result.exit_code == 1
    assert "Error: cannot listen on 127.0.0.1:" in result.stderr


def test_without_the_extra_the_command_says_what_to_install(
    run: Run, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)

    result = run("web", DEPOT, "--url", url)

    assert result.exit_code == 1
    assert result.stderr == (
        "Error: the web page needs more packages: pip install 'sa_jobqueue[web]'\n"
    )


def test_an_address_can_be_opened_on_this_machine() -> None:
    assert [in_address(host) for host in ("::1", "0.0.0.0", "web.example")] == [
        "[::1]",
        "127.0.0.1",
        "web.example",
    ]


def test_a_scrape_has_each_queue_until_the_command_ends(
    run: Run, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = f"http://127.0.0.1:{port}/metrics"
    pages: list[str] = []

    def scrape(said: str) -> None:
        def read() -> None:
            pages.append(urlopen(said, timeout=20).read().decode())
            os.kill(os.getpid(), signal.SIGTERM)

        threading.Thread(target=read).start()

    monkeypatch.setattr(click, "echo", scrape)
    ended = run("metrics", DEPOT, "--url", url, "--port", port)

    (scraped,) = pages
    assert 'jobqueue_due_jobs{queue="tests.cli.depot:crates"} 2.0' in scraped
    assert 'jobqueue_due_jobs{queue="tests.cli.depot:barrels"} 1.0' in scraped
    assert 'jobqueue_due_jobs{queue="shelf"} 0.0' in scraped
    assert ended.exit_code == 0
    with pytest.raises(OSError, match="refused"):
        urlopen(address, timeout=1)


def test_a_missing_folder_of_counts_is_named(
    run: Run, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", "nowhere")

    answer = run("metrics", DEPOT, "--url", url)

    assert answer.exit_code == 1
    assert "PROMETHEUS_MULTIPROC_DIR=nowhere is no folder" in answer.output


def test_the_autoscalers_number_is_json(run: Run, url: str) -> None:
    printed = run("metrics", DEPOT, "--url", url, "--drain-in", 60).stdout

    needed = json.loads(printed)
    assert (needed[f"{DEPOT}:crates"], needed[f"{DEPOT}:shelves"]) == (None, 0)
