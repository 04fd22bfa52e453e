"""The how-to pages: their files are written and their commands are typed, as a reader does it."""

from __future__ import annotations

import configparser
import json
import os
import re
import shlex
import signal
from collections.abc import Iterator
from datetime import datetime
from itertools import pairwise
from pathlib import Path

import pytest
from sqlalchemy import URL, Column, DateTime, Engine, Integer, MetaData, Table, insert, text

from tests.servers.errors import NotHere
from tests.servers.pgbouncer import transaction_pooler
from tests.support import make_engine, until

from .followed import Reader, free_ports, need_curl, part, reader
from .markdown import ROOT, code_blocks, page, table

pytestmark = pytest.mark.timeout(400)

#: What makes a folder a project of Alembic's; the page's own files are beside it.
ALEMBIC = {
    "alembic.ini": "[alembic]\nscript_location = migrations\nprepend_sys_path = .\n",
    "migrations/script.py.mako": "",
    "migrations/versions/0001_tables.py": (
        "revision, down_revision = '0001', None\ndef upgrade(): pass\ndef downgrade(): pass\n"
    ),
}


def shown(url: URL) -> str:
    return url.render_as_string(hide_password=False)


@pytest.fixture
def database(fresh_database: URL) -> Iterator[Engine]:
    engine = make_engine(fresh_database)
    yield engine
    engine.dispose()


def begin_migrations(following: Reader, module: str) -> None:
    """Write what Alembic and the tutorial give a project, with the first migration done."""
    (environment,) = (
        block
        for block in code_blocks(page("docs/tutorial-fastapi.md"), "python")
        if block.startswith("# migrations/env.py")
    )
    for name, content in ALEMBIC.items():
        following.write(name, content)
    following.write("migrations/env.py", environment.replace("from models", f"from {module}"))
    following.run("alembic stamp 0001")


# The pages


def test_the_mails_of_a_customer_are_sent_in_order(tmp_path: Path) -> None:
    with reader(tmp_path) as following:
        following.follow(page("docs/howto-ordered-per-customer.md"))

    sent = following.printed_by("sa-jobqueue work")
    assert re.findall(r"ann: (ordered|paid|shipped)", sent) == ["ordered", "paid", "shipped"]
    assert re.findall(r"bo: (ordered|paid|shipped)", sent) == ["ordered", "paid", "shipped"]


def test_a_booking_is_written_once(tmp_path: Path) -> None:
    with reader(tmp_path) as following:
        following.follow(page("docs/howto-exactly-once.md"))


def test_handlers_are_tested(tmp_path: Path) -> None:
    with reader(tmp_path) as following:
        following.follow(page("docs/howto-test-handlers.md"))


def test_a_job_runs_every_night(tmp_path: Path) -> None:
    with reader(tmp_path) as following:
        following.follow(page("docs/howto-schedule.md"))


def test_a_load_that_was_killed_goes_on(tmp_path: Path) -> None:
    before, killed, after = divided(
        page("docs/howto-bulk-load.md"), "Load it.", "If the load is killed,"
    )
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


@pytest.mark.only_on("sqlite", "postgresql")
def test_the_index_of_a_slow_claim_is_built_again(
    database: Engine, fresh_database: URL, tmp_path: Path
) -> None:
    howto = page("docs/howto-slow-claim.md")
    with reader(tmp_path, environment={"DATABASE_URL": shown(fresh_database)}) as following:
        following.write("shop.py", SHOP)
        begin_migrations(following, "shop")
        following.run("python -c 'from shop import *; Base.metadata.create_all(engine)'")
        with database.begin() as connection:
            connection.execute(text("DROP INDEX ix_email_claim"))

        following.follow(howto)

        following.write("test_shop.py", f"{FIXTURES}\n{code_blocks(howto, 'python')[-1]}")
        assert "1 passed" in following.run("pytest -q test_shop.py")


SHOP = """
import os

from sqlalchemy import create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sa_jobqueue import JobMixin, JobQueue

engine = create_engine(os.environ["DATABASE_URL"])


class Base(DeclarativeBase):
    pass


class Email(JobMixin, Base):
    __tablename__ = "email"
    id: Mapped[int] = mapped_column(primary_key=True)


outbox = JobQueue(Email)
"""
FIXTURES = """
import pytest, shop


@pytest.fixture
def engine():
    return shop.engine


@pytest.fixture
def outbox():
    return shop.outbox
"""


def test_the_checks_of_a_slow_claim_are_those_of_the_doctor() -> None:
    known = {line["check"] for line in table(page("docs/doctor.md"), "check")}

    assert {line["check"] for line in table(page("docs/howto-slow-claim.md"), "check")} <= known


ORDERS = Table(
    "orders",
    MetaData(),
    Column("id", Integer, primary_key=True),
    Column("shipped_at", DateTime),
)


@pytest.mark.only_on("sqlite", "postgresql")
def test_the_old_orders_of_a_large_table_become_no_jobs(
    database: Engine, fresh_database: URL, tmp_path: Path
) -> None:
    rows = 10_000
    ORDERS.create(database)
    with database.begin() as connection:
        shipped = datetime(2020, 1, 1)
        connection.execute(
            insert(ORDERS),
            [{"shipped_at": None if row <= 3 else shipped} for row in range(1, rows + 1)],
        )
    with reader(tmp_path, environment={"DATABASE_URL": shown(fresh_database)}) as following:
        model, migration = divided(
            page("docs/howto-adopt-a-large-table.md"), "Write the migration with"
        )
        following.follow(model)
        begin_migrations(following, "models")

        following.follow(migration)

        following.run("alembic downgrade 0001")
    with database.connect() as connection:
        assert connection.scalar(text("SELECT count(*) FROM orders")) == rows


@pytest.mark.only_on("postgresql")
@pytest.mark.xdist_group("pgbouncer")
def test_a_worker_runs_on_pgbouncer(database: Engine, fresh_database: URL, tmp_path: Path) -> None:
    howto = page("docs/howto-pgbouncer.md")
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


def test_the_drivers_of_the_page_have_the_settings_that_are_tested() -> None:
    tested = {line["driver"]: line for line in table(page("docs/integrations.md"), "driver")}

    for line in table(page("docs/howto-pgbouncer.md"), "driver"):
        assert line == tested[line["driver"]]


def test_the_web_page_is_behind_a_login(tmp_path: Path) -> None:
    pytest.importorskip("fastapi")
    pytest.importorskip("itsdangerous")
    need_curl()
    with reader(tmp_path, replaced=free_ports("8000", "8001")) as following:
        following.follow(page("docs/howto-web-behind-login.md"))


class TestDeploying:
    """docs/howto-deploy.md."""

    PAGE = page("docs/howto-deploy.md")

    def started(self, following: Reader, command: str) -> None:
        """Start workers with a job, and stop them by SIGTERM while it runs."""
        following.run("python -c 'from jobs import *; Base.metadata.create_all(engine)'")
        following.run(
            "python -c 'from jobs import *; from sqlalchemy.orm import Session\n"
            's = Session(engine); s.add(Email(recipient="ann")); s.commit()\''
        )
        workers = following.open_terminal(command)
        until(lambda: "sending to ann" in workers.printed, 60)
        workers.process.send_signal(signal.SIGTERM)
        assert workers.end() == 0, workers.printed
        assert "sent to ann" in workers.printed

    @pytest.fixture
    def following(self, tmp_path: Path) -> Iterator[Reader]:
        with reader(tmp_path, environment={"DATABASE_URL": "sqlite:///shop.db"}) as following:
            following.follow(part(self.PAGE, "The application"))
            yield following

    def test_the_service_finishes_what_runs_when_it_is_stopped(self, following: Reader) -> None:
        (unit,) = code_blocks(self.PAGE, "ini")
        parser = configparser.ConfigParser(interpolation=None)
        parser.optionxform = str  # type: ignore[method-assign,assignment]  # as systemd reads names
        parser.read_string(unit)
        service = parser["Service"]
        command = service["ExecStart"].removeprefix("/srv/shop/.venv/bin/")

        self.started(following, f"exec {command}")

        grace = int(command.split("--grace ")[1].split()[0])
        assert int(service["TimeoutStopSec"]) > grace

    def test_the_container_finishes_what_runs_when_it_is_stopped(self, following: Reader) -> None:
        (file,) = code_blocks(self.PAGE, "dockerfile")
        (command,) = re.findall(r"^CMD (.*)$", file, re.M)

        self.started(following, f"exec {shlex.join(json.loads(command))}")

    def test_a_queue_is_paused_and_looked_at(self, following: Reader) -> None:
        following.run("python -c 'from jobs import *; Base.metadata.create_all(engine)'")

        following.follow(part(self.PAGE, "Pause a queue"))
        following.follow(part(self.PAGE, "What to check"))


def test_each_page_is_short_and_tells_what_can_go_wrong() -> None:
    pages = sorted((ROOT / "docs").glob("howto-*.md"))

    assert len(pages) == 10
    for howto in pages:
        found = howto.read_text(encoding="utf-8")
        assert re.findall("^## What (?:to check|can go wrong)", found, re.M), howto
        assert len(found.splitlines()) <= 150, howto


def divided(text: str, *beginnings: str) -> list[str]:
    """Divide a page before lines that begin so."""
    places = [0, *(text.index(f"\n{beginning}") for beginning in beginnings), len(text)]
    return [text[begin:end] for begin, end in pairwise(places)]
