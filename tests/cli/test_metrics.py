"""``metrics``: served to Prometheus, and the autoscaler's number."""

from __future__ import annotations

import json
import signal
import socket
from urllib.request import urlopen

import pytest
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from .conftest import Run, Start
from .depot import Base, Crate

DEPOT = "tests.cli.depot"


@pytest.fixture
def jobs(engine: Engine) -> None:
    Base.metadata.create_all(engine)
    with Session(engine) as session, session.begin():
        session.add_all([Crate(), Crate(kind="barrel")])


@pytest.mark.usefixtures("jobs")
def test_a_scrape_has_each_queue_until_the_command_ends(start: Start, url: str) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    process = start("metrics", DEPOT, "--url", url, "--port", port)
    assert process.stdout is not None
    address = process.stdout.readline().strip()
    scraped = urlopen(address, timeout=20).read().decode()
    process.send_signal(signal.SIGTERM)

    assert address == f"http://127.0.0.1:{port}/metrics"
    assert 'jobqueue_due_jobs{queue="tests.cli.depot:crates"} 2.0' in scraped
    assert 'jobqueue_due_jobs{queue="tests.cli.depot:barrels"} 1.0' in scraped
    assert 'jobqueue_due_jobs{queue="shelf"} 0.0' in scraped
    assert process.wait(20) == 0


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
