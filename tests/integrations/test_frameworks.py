"""docs/integrations.md: its applications run with the real FastAPI and the real Flask."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import URL, Engine, create_engine, select, text
from sqlalchemy.orm import Session

from tests.docs.markdown import code_blocks, page
from tests.support import until

ROOT = Path(__file__).parents[2]
FASTAPI, FLASK = code_blocks(page("docs/integrations.md"), "python")

#: What runs the FastAPI application as its server does: start, a request, stop.
REQUEST = """
from fastapi.testclient import TestClient
import shop, sys

with TestClient(shop.app) as client:
    assert client.post("/emails", params={"recipient": "ann"}).status_code == 200
    sys.stdin.readline()
"""

#: What runs the application where its tables are missing, which ends its worker.
WITHOUT_TABLES = """
from fastapi.testclient import TestClient
import shop, sys

with TestClient(shop.app):
    sys.stdin.readline()
"""


@pytest.fixture
def database(fresh_database: URL) -> Iterator[Engine]:
    engine = create_engine(fresh_database)
    yield engine
    engine.dispose()


@contextmanager
def started(folder: Path, code: str, url: URL, *command: str) -> Iterator[subprocess.Popen[str]]:
    """Run a command beside the page's application, at most until the block ends."""
    (folder / "shop.py").write_text(code, encoding="utf-8")
    environment = {
        **os.environ,
        "DATABASE_URL": url.render_as_string(hide_password=False),
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "examples"), str(folder)]),
    }
    with subprocess.Popen(
        [sys.executable, *command],
        cwd=folder,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def create_tables(engine: Engine, code: str, monkeypatch: pytest.MonkeyPatch, url: URL) -> Any:
    """Create the tables of the page's application, and return its class."""
    monkeypatch.setenv("DATABASE_URL", url.render_as_string(hide_password=False))
    names: dict[str, Any] = {"__name__": "shop"}
    exec(compile(code, "shop.py", "exec", dont_inherit=True), names)
    names["Base"].metadata.create_all(engine)
    return names["Email"]


def is_done(engine: Engine) -> bool:
    with Session(engine) as session:
        return session.execute(text("SELECT status FROM shop_email")).all() == [("done",)]


@pytest.mark.only_on("postgresql")
def test_a_worker_lives_as_long_as_a_fastapi_application(
    database: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("fastapi")
    url = database.url.set(drivername="postgresql+asyncpg")
    create_tables(database, FASTAPI, monkeypatch, url)

    with started(tmp_path, FASTAPI, url, "-c", REQUEST) as server:
        until(lambda: is_done(database))
        output, _ = server.communicate("stop\n", timeout=60)

    assert (output, server.returncode) == ("sent to ann\n", 0)


@pytest.mark.only_on("postgresql")
def test_an_application_ends_with_its_worker(database: Engine, tmp_path: Path) -> None:
    pytest.importorskip("fastapi")
    url = database.url.set(drivername="postgresql+asyncpg")

    with started(tmp_path, FASTAPI, url, "-c", WITHOUT_TABLES) as server:
        server.wait(timeout=60)
        assert server.stderr is not None
        said = server.stderr.read()

    assert server.returncode == -signal.SIGTERM
    assert "the worker has ended, and the application with it" in said


@pytest.mark.only_on("sqlite")
def test_flask_starts_a_worker_whose_handlers_see_the_application(
    database: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("flask")
    email = create_tables(database, FLASK, monkeypatch, database.url)
    with Session(database) as session:
        session.add(email(recipient="ann"))
        session.commit()
        assert session.scalars(select(email.status)).all() == ["unclaimed"]

    with started(tmp_path, FLASK, database.url, "-m", "flask", "--app", "shop", "worker") as worker:
        until(lambda: is_done(database))
        worker.send_signal(signal.SIGTERM)
        output, _ = worker.communicate(timeout=60)

    assert (output, worker.returncode) == ("sent to ann by shop@example.com\n", 0)
