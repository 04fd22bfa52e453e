"""Pages that lead through an example: their files are written, and their commands are typed."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
from collections.abc import Mapping
from datetime import datetime
from http.cookiejar import CookieJar
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import HTTPCookieProcessor, OpenerDirector, Request, build_opener, urlopen

import pytest
from sqlalchemy import URL, Column, DateTime, Engine, Integer, MetaData, Table, insert, text

from tests.servers.errors import NotHere
from tests.servers.pgbouncer import transaction_pooler
from tests.support import until

from .followed import (
    Reader,
    begin_migrations,
    divided,
    free_ports,
    need_curl,
    part,
    reader,
    shown,
)
from .markdown import code_blocks, page

pytestmark = pytest.mark.timeout(400)

#: The module that pages take for granted.
SHOP = """
import os

from sqlalchemy import create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sa_jobqueue import JobMixin, JobQueue

engine = create_engine(os.environ.get("DATABASE_URL", "sqlite:///shop.db"))


class Base(DeclarativeBase):
    pass


class Email(JobMixin, Base):
    __tablename__ = "email"
    id: Mapped[int] = mapped_column(primary_key=True)


outbox = JobQueue(Email)


@outbox.handler
def send(email: Email) -> None:
    pass
"""


# The pages


def test_the_mails_of_a_customer_are_sent_in_order(tmp_path: Path) -> None:
    with reader(tmp_path) as following:
        following.follow(page("docs/order.md"))

    sent = following.printed_by("sa-jobqueue work")
    assert re.findall(r"ann: (ordered|paid|shipped)", sent) == ["ordered", "paid", "shipped"]
    assert re.findall(r"bo: (ordered|paid|shipped)", sent) == ["ordered", "paid", "shipped"]


@pytest.mark.parametrize("name", ["exactly-once", "testing", "schedules", "scaling"])
def test_a_page_prints_what_it_says(name: str, tmp_path: Path) -> None:
    with reader(tmp_path) as following:
        following.follow(page(f"docs/{name}.md"))


def test_a_load_that_was_killed_goes_on(tmp_path: Path) -> None:
    before, killed, after = divided(page("docs/bulk.md"), "Load it.", "If the load is killed,")
    rows = "".join(f"{number},{number}@example.org\n" for number in range(1, 20_001))
    (tmp_path / "may.csv").write_text(f"id,recipient\n{rows}", encoding="utf-8")
    log = tmp_path / "loads" / "may" / "load.jsonl"
    with reader(tmp_path) as following:
        following.follow(before)
        following.run("python -c 'from shop import *; Base.metadata.create_all(engine)'")
        (command,) = code_blocks(killed, "sh")

        loading = following.open_terminal(command.strip())
        until(lambda: log.exists() and "inserted" in log.read_text())
        loading.kill()
        following.follow(after)

    assert "CLEANING" not in loading.printed


@pytest.mark.only_on("postgresql")
def test_the_index_of_a_slow_claim_is_built_again(
    engine: Engine, fresh_database: URL, tmp_path: Path
) -> None:
    howto = page("docs/doctor.md")
    with reader(tmp_path, environment={"DATABASE_URL": shown(fresh_database)}) as following:
        following.write("shop.py", SHOP)
        begin_migrations(following, "from shop import Base, engine")
        following.run("python -c 'from shop import *; Base.metadata.create_all(engine)'")
        with engine.begin() as connection:
            connection.execute(text("DROP INDEX ix_email_claim"))

        following.follow(howto)

        following.write("test_shop.py", f"{FIXTURES}\n{code_blocks(howto, 'python')[-1]}")
        assert "1 passed" in following.run("pytest -q test_shop.py")


FIXTURES = """
import pytest, shop


@pytest.fixture
def engine():
    return shop.engine


@pytest.fixture
def outbox():
    return shop.outbox
"""


ORDERS = Table(
    "orders",
    MetaData(),
    Column("id", Integer, primary_key=True),
    Column("shipped_at", DateTime),
)


@pytest.mark.only_on("postgresql")
def test_the_old_orders_of_a_large_table_become_no_jobs(
    engine: Engine, fresh_database: URL, tmp_path: Path
) -> None:
    rows = 10_000
    ORDERS.create(engine)
    with engine.begin() as connection:
        shipped = datetime(2020, 1, 1)
        connection.execute(
            insert(ORDERS),
            [{"shipped_at": None if row <= 3 else shipped} for row in range(1, rows + 1)],
        )
    with reader(tmp_path, environment={"DATABASE_URL": shown(fresh_database)}) as following:
        model, migration = divided(
            page("docs/own-table.md"), "`alembic revision --autogenerate` writes"
        )
        following.follow(model)
        begin_migrations(following, "from models import Base, engine")

        following.follow(migration)

        following.run("alembic downgrade 0001")
    with engine.connect() as connection:
        assert connection.scalar(text("SELECT count(*) FROM orders")) == rows


@pytest.mark.only_on("postgresql")
@pytest.mark.xdist_group("pgbouncer")
def test_a_worker_runs_on_pgbouncer(engine: Engine, fresh_database: URL, tmp_path: Path) -> None:
    howto = part(page("docs/databases.md"), "PgBouncer and other poolers")
    try:
        with transaction_pooler(fresh_database) as pooled:
            environment = {"DIRECT_URL": shown(fresh_database), "POOLED_URL": shown(pooled)}
            with reader(tmp_path, environment=environment) as following:
                following.write("shop.py", code_blocks(howto, "python")[0])
                following.run("python -c 'from shop import *; Base.metadata.create_all(direct)'")

                following.follow(howto)
    except NotHere as missing:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(missing))


def test_the_web_page_is_behind_a_login(tmp_path: Path) -> None:
    pytest.importorskip("fastapi")
    pytest.importorskip("itsdangerous")
    need_curl()
    with reader(tmp_path, replaced=free_ports("8000", "8001")) as following:
        following.follow(part(page("docs/web.md"), "In your application"))
        following.follow(part(page("docs/web.md"), "Beside Flask or Django"))


def test_the_service_and_the_container_finish_what_runs_when_they_are_stopped(
    tmp_path: Path,
) -> None:
    howto = page("docs/production.md")
    (unit,) = code_blocks(howto, "ini")
    (command,) = re.findall(r"^ExecStart=\S*/bin/(.*)$", unit, re.M)
    (timeout,) = re.findall(r"^TimeoutStopSec=(\d+)$", unit, re.M)
    (container,) = re.findall(r"^CMD (.*)$", code_blocks(howto, "dockerfile")[0], re.M)
    with reader(tmp_path, environment={"DATABASE_URL": "sqlite:///shop.db"}) as following:
        following.follow(part(howto, "The application"))
        following.run("python -c 'from jobs import *; Base.metadata.create_all(engine)'")
        for started in (command, shlex.join(json.loads(container))):
            stop_while_a_job_runs(following, started)

        following.follow(part(howto, "Checklist"))

    assert int(timeout) > int(command.split("--grace ")[1].split()[0])


def stop_while_a_job_runs(following: Reader, command: str) -> None:
    """Start workers with a job, and stop them by SIGTERM while it runs."""
    following.run(
        "python -c 'from jobs import *; from sqlalchemy.orm import Session\n"
        's = Session(engine); s.add(Email(recipient="ann")); s.commit()\''
    )
    workers = following.open_terminal(f"exec {command}")
    until(lambda: "sending to ann" in workers.printed, 60)
    workers.process.send_signal(signal.SIGTERM)
    assert workers.end() == 0, workers.printed
    assert "sent to ann" in workers.printed


@pytest.mark.parametrize(
    ("heading", "command"),
    [
        ("Count what processes do", None),
        ("Serve metrics from your own program", "python run_worker.py"),
    ],
)
def test_the_programs_of_the_page_serve_counts_and_depth(
    heading: str, command: str | None, tmp_path: Path
) -> None:
    ports = free_ports("9100")
    replaced = {**ports, "/run/shop": str(tmp_path / "counts")}
    with reader(
        tmp_path, replaced=replaced, environment={"SA_JOBQUEUE_URL": "sqlite:///shop.db"}
    ) as following:
        following.write("shop/queues.py", SHOP)
        following.run(
            "python -c 'from shop.queues import *; from sqlalchemy.orm import Session\n"
            "Base.metadata.create_all(engine); s = Session(engine)\n"
            "s.add_all([Email() for _ in range(20)]); s.commit()'"
        )

        following.follow(part(page("docs/observability.md"), heading))
        if command is not None:
            following.terminals.append(following.open_terminal(command))

        until(lambda: all_twenty_are_counted(f"http://127.0.0.1:{ports['9100']}/metrics"), 60)


def all_twenty_are_counted(address: str) -> bool:
    """Tell whether depth and events are served together, under one label."""
    try:
        found = urlopen(address).read().decode()
    except URLError:  # not yet
        return False
    assert "pid=" not in found
    finished = 'jobqueue_events_total{event="finished",queue="email"} 20.0'
    return finished in found and 'jobqueue_due_jobs{queue="email"} 0.0' in found


FRAMEWORKS = ("fastapi", "flask")

#: What its reader types and sees otherwise with Flask; jsonify() sorts by name.
WITH_FLASK = {
    "[cli,web]' fastapi": "[cli,web]' flask",
    "uvicorn app:app --port 8000": "flask --app app run --port 8000",
    '{"order":1,"email":1}': '{"email":1,"order":1}',
    '{"order":2,"email":2}': '{"email":2,"order":2}',
}


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_tutorial_leads_where_it_says(framework: str, tmp_path: Path) -> None:
    pytest.importorskip(framework)

    follow_tutorial(tutorial_with(framework), tmp_path)

    assert sorted(path.name for path in (tmp_path / "mailbox").iterdir()) == [
        "ann@example.com",
        "bo@example.com",
    ]


def tutorial_with(framework: str) -> str:
    """Return the tutorial; with Flask, its files and commands in place of FastAPI's."""
    beginning, note, _ = divided(page("docs/tutorial.md"), "## With Flask", "## Where to go next")
    if framework == "flask":
        for block in code_blocks(note, "python"):
            file = block.partition("\n")[0]
            (theirs,) = (
                each for each in code_blocks(beginning, "python") if each.startswith(f"{file}\n")
            )
            beginning = beginning.replace(theirs, block)
        for theirs, ours in WITH_FLASK.items():
            assert theirs in beginning
            beginning = beginning.replace(theirs, ours)
    return beginning


def follow_tutorial(
    tutorial: str, folder: Path, *, replaced: Mapping[str, str] | None = None, **options: Any
) -> None:
    """Follow a tutorial, and retry a job on its web page when the page says so."""
    need_curl()
    typing, clicking = tutorial.split("Open this address in a browser")
    replaced = {**free_ports("8000", "8001"), **(replaced or {})}
    with reader(folder, replaced=replaced, **options) as following:
        following.follow(typing)
        retry_on_the_page(following)
        following.follow(clicking)


def retry_on_the_page(following: Reader) -> None:
    """Open the address that was printed, go to the failed job, tick it and retry it."""
    address = following.terminals[-1].printed.split()[0]
    browser = build_opener(HTTPCookieProcessor(CookieJar()))
    overview = get(browser, address)
    link = re.search(r'href="([^"]*)">jobs:outbox<', overview)
    assert link is not None, overview
    queue = address.partition("/?")[0] + link[1]

    failed = get(browser, queue)
    assert "FileNotFoundError" in failed
    (key,) = re.findall(r'name="key" value="(\d+)"', failed)
    assert "Retry…" in failed
    chosen = {"verb": "retry", "show": "failed", "key": key}
    assert "Nothing has been changed yet" in get(browser, queue, chosen)
    get(browser, queue, {**chosen, "confirm": "yes"})


def get(browser: OpenerDirector, address: str, form: dict[str, str] | None = None) -> str:
    """Ask for a page, or send a form as a browser does."""
    data = None if form is None else urlencode(form).encode()
    request = Request(address, data, {"Sec-Fetch-Site": "same-origin"})
    with browser.open(request, timeout=30) as answer:
        return str(answer.read().decode())
