"""The files and commands of docs/adopting.md, run in their order while workers are busy."""

from __future__ import annotations

import importlib
import re
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType

import pytest
from alembic import command
from alembic.config import Config
from click.testing import CliRunner
from sqlalchemy import URL, Engine, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from sa_jobqueue import claim, is_transient, reap
from sa_jobqueue.cli import cli
from tests.support import SERVERS, make_engine, until

from .markdown import code_blocks, page

PAGE = page("docs/adopting.md")

#: The user's other files: a way to deliver, and a history of migrations.
DELIVERING = """
from sqlalchemy import text

def deliver(session, number, address):
    line = text("INSERT INTO delivered (delivery) VALUES (:delivery)")
    session.execute(line, {"delivery": number})
"""
FIRST = "revision, down_revision = '0001', None\ndef upgrade(): pass\ndef downgrade(): pass\n"

ENOUGH = 20


class Shop:
    """A user's project in a folder, on one database."""

    def __init__(self, folder: Path, url: URL) -> None:
        self.url = url
        # As the page says: under REPEATABLE READ InnoDB's gap locks deadlock.
        self.engine = make_engine(url, isolation_level="READ COMMITTED")
        self.config = Config()
        self.config.set_main_option("script_location", str(folder / "migrations"))
        shown = url.render_as_string(hide_password=False)
        self.config.set_main_option("sqlalchemy.url", shown.replace("%", "%%"))
        self.inserted = 0

    def run(self, line: str) -> None:
        """Run a command of the page."""
        program, *arguments = line.split()
        if program == "alembic":
            verb, *revisions = arguments
            getattr(command, verb)(self.config, *revisions)
            return
        arguments[-1] = self.url.render_as_string(hide_password=False)
        done = CliRunner().invoke(cli, arguments)
        assert done.exit_code == 0, done.output

    def insert(self, rows: int = 5) -> int:
        """Insert deliveries as the application has always done."""
        line = text("INSERT INTO delivery (id, address) VALUES (:id, 'somewhere')")
        ids = range(self.inserted + 1, self.inserted + rows + 1)
        with self.engine.begin() as connection:
            connection.execute(line, [{"id": number} for number in ids])
        self.inserted += rows
        return rows

    def delivered(self) -> Counter[int]:
        """Count how often each was delivered."""
        with self.engine.connect() as connection:
            return Counter(connection.scalars(text("SELECT delivery FROM delivered")))

    def module(self, name: str) -> ModuleType:
        """Import a file of the page."""
        return importlib.import_module(f"shop.{name}")


class Busy(threading.Thread):
    """Repeat an action until stopped, and count the repetitions."""

    def __init__(self, turn: Callable[[], int], *, pause: float = 0.005) -> None:
        super().__init__(daemon=True)
        self.turn = turn
        self.pause = pause
        self.done = 0
        self._told_to_stop = threading.Event()
        self.start()

    def run(self) -> None:
        while not self._told_to_stop.wait(self.pause):
            try:
                self.done += self.turn()
            except DBAPIError as error:
                if not is_transient(error):
                    raise

    def goes_on(self) -> None:
        """Wait for some more repetitions."""
        wanted = self.done + ENOUGH
        until(lambda: self.done >= wanted, 60)

    def stop(self) -> None:
        """Let it finish the current repetition, and stop it."""
        assert self.is_alive()
        self._told_to_stop.set()
        self.join(60)
        assert not self.is_alive()


def worker(shop: Shop, kind: str, name: str) -> Busy:
    """Begin to work as a file of the page says."""
    work = shop.module(kind).work

    def turn() -> int:
        with Session(shop.engine, expire_on_commit=False) as session:
            return int(work(session, name))

    return Busy(turn)


@pytest.fixture
def shop(fresh_database: URL, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    """Write the files of the page into a project of Alembic's own making."""
    shop = Shop(tmp_path, fresh_database)
    shop.config.config_file_name = str(tmp_path / "alembic.ini")
    command.init(shop.config, str(tmp_path / "migrations"))
    shop.config.config_file_name = None  # env.py would set up the logging of all tests
    environment = tmp_path / "migrations" / "env.py"
    models = "from shop.models import Base\n\ntarget_metadata = Base.metadata"
    environment.write_text(environment.read_text().replace("target_metadata = None", models))
    write_files(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield shop
    shop.engine.dispose()
    for name in [name for name in sys.modules if name.split(".")[0] == "shop"]:
        del sys.modules[name]


def write_files(folder: Path) -> None:
    """Write each block that begins with the name of a file, and what the user has besides."""
    blocks = [block.partition("\n") for block in code_blocks(PAGE, "python")]
    files = {head.removeprefix("# "): body for head, _, body in blocks}
    assert all(re.fullmatch(r"[\w/]+\.py", name) for name in files)
    files["shop/delivering.py"] = DELIVERING
    files["migrations/versions/0001_deliveries.py"] = FIRST
    for name, body in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(body)


def make_tables(engine: Engine) -> None:
    """Make the table as it was, and one with a line for each delivery; there nothing is unique."""
    schema = code_blocks(PAGE, "sql")[0]
    with engine.begin() as connection:
        for statement in filter(str.strip, schema.split(";")):
            connection.execute(text(statement))
        connection.execute(text("CREATE TABLE delivered (delivery INTEGER NOT NULL)"))


def drop_lines(engine: Engine) -> None:
    """Drop the tables that are not the user's."""
    with engine.begin() as connection:
        connection.execute(text("DROP TABLE delivered"))


@pytest.mark.only_on(*SERVERS)
@pytest.mark.by_turns(*SERVERS)
@pytest.mark.timeout(120)
def test_the_steps_of_the_page_lose_nothing_and_do_nothing_twice(shop: Shop) -> None:
    """Old workers and the application go on at each step, and then the new ones."""
    before, doctor, cut_over, way_back, clean_up = (
        block.strip() for block in code_blocks(PAGE, "sh")
    )
    make_tables(shop.engine)
    command.upgrade(shop.config, "0001")
    application = Busy(shop.insert, pause=0.03)
    old = worker(shop, "old_worker", "old-1")

    shop.run(before)
    shop.run(doctor)
    old.goes_on()

    new = worker(shop, "new_worker", "new-1")
    new.goes_on()
    old.goes_on()

    left = take_and_die(shop, "old-2")
    old.stop()
    shop.run(cut_over)
    with Session(shop.engine) as session:
        assert shop.module("reaping").reap_claims(session) >= left
    new.goes_on()

    # A step back, from which the old worker goes on alone, and forward again.
    new.stop()
    claim_and_die(shop, "new-2")
    old = worker(shop, "old_worker", "old-3")
    with Session(shop.engine) as session:
        shop.module("going_back").release_claims(session, "new-2")
    shop.run(way_back)
    old.goes_on()
    shop.run(before)
    old.stop()
    shop.run(cut_over)

    new = worker(shop, "new_worker", "new-3")
    shop.run(clean_up)
    new.goes_on()
    application.stop()
    new.stop()
    finish_the_rest(shop)
    assert shop.delivered() == dict.fromkeys(range(1, shop.inserted + 1), 1)
    drop_lines(shop.engine)
    command.check(shop.config)  # finds no difference to the page's model


def take_and_die(shop: Shop, name: str) -> int:
    """Have an old worker take deliveries and go no further; tell how many."""
    with Session(shop.engine) as session:
        while not (taken := shop.module("old_worker").take(session, name)):
            session.rollback()
    return len(taken)


def claim_and_die(shop: Shop, name: str) -> None:
    """Have a new worker take deliveries and go no further; tell how many."""
    with Session(shop.engine) as session:
        while not claim(session, shop.module("models").Delivery, owner=name, limit=5):
            session.rollback()
        session.commit()


def finish_the_rest(shop: Shop) -> None:
    """Take back what a deadlock has left, and deliver until nothing waits."""
    with Session(shop.engine, expire_on_commit=False) as session:
        reap(session, shop.module("models").Delivery, max_runtime=timedelta(0))
        session.commit()
        while shop.module("new_worker").work(session, "last"):
            pass


@pytest.mark.only_on("postgresql")
def test_the_pages_columns_of_ones_own_serve(shop: Shop) -> None:
    parcels = shop.module("parcels")
    parcels.Base.metadata.create_all(shop.engine)
    with Session(shop.engine, expire_on_commit=False) as session:
        now = datetime.now(UTC)
        session.add_all(
            [parcels.Parcel(weight=weight, created=now.replace(tzinfo=None)) for weight in (1, 9)]
        )
        session.commit()

        (parcel,) = claim(session, parcels.Parcel, owner="w")

        assert (parcel.weight, parcel.state) == (9, parcels.State.queued)
        session.rollback()
    parcels.Base.metadata.drop_all(shop.engine)


def test_no_change_of_the_page_waits_for_a_table_without_a_limit() -> None:
    code = "".join(code_blocks(PAGE, "python"))

    changes = re.findall(r"^.*\bop\.[a-z]+_(?:column|index)\(.*$", code, re.M)

    assert changes
    assert all("patiently(op, lambda: op." in line for line in changes)
