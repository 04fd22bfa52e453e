"""``metrics``: served to Prometheus, and the autoscaler's number."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
from urllib.request import urlopen

import click
import pytest
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from .conftest import Run
from .depot import Base, Crate

DEPOT = "tests.cli.depot"


@pytest.fixture
def jobs(engine: Engine) -> None:
    Base.metadata.create_all(engine)
    with Session(engine) as session, session.begin():
        session.add_all([Crate(), Crate(kind="barrel")])


@pytest.mark.usefixtures("jobs")
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


@pytest.mark.usefixtures("jobs")
def test_a_missing_folder_of_counts_is_named(
    run: Run, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", "nowhere")

    answer = run("metrics", DEPOT, "--url", url)

    assert answer.exit_code == 1
    assert "PROMETHEUS_MULTIPROC_DIR=nowhere is no folder" in answer.output


@pytest.mark.usefixtures("jobs")
def test_the_autoscalers_number_is_json(run: Run, url: str) -> None:
    printed = run("metrics", DEPOT, "--url", url, "--drain-in", 60).stdout

    needed = json.loads(printed)
    assert (needed[f"{DEPOT}:crates"], needed[f"{DEPOT}:shelves"]) == (None, 0)
