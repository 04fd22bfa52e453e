"""The steps of docs/adopting.md: after each, the application and the workers go on."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import URL, Engine, text
from sqlalchemy.orm import Session

from sa_jobqueue import claim
from tests.support import SERVERS

from .followed import begin_migrations, divided, reader, shown
from .markdown import code_blocks, page

PAGE = page("docs/adopting.md")

#: The user's other files: a way to deliver, and what env.py imports.
DELIVERING = """
from sqlalchemy import text

def deliver(session, number, address):
    line = text("INSERT INTO delivered (delivery) VALUES (:delivery)")
    session.execute(line, {"delivery": number})
"""
IMPORTS = """
import os
from sqlalchemy import create_engine
from shop.models import Base
engine = create_engine(os.environ["DATABASE_URL"])
"""


class Shop:
    """The application and its workers."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.inserted = 0

    def call(self, module: str, function: str, *arguments: Any) -> Any:
        """Call a function of a file of the page."""
        called = getattr(import_module(f"shop.{module}"), function)
        with Session(self.engine, expire_on_commit=False) as session:
            return called(session, *arguments)

    def insert(self, rows: int = 5) -> None:
        """Insert deliveries as the application has always done."""
        line = text("INSERT INTO delivery (id, address) VALUES (:id, 'somewhere')")
        ids = range(self.inserted + 1, self.inserted + rows + 1)
        with self.engine.begin() as connection:
            connection.execute(line, [{"id": number} for number in ids])
        self.inserted += rows

    def goes_on(self, *workers: str) -> None:
        """Insert, and have each kind of worker deliver as many."""
        self.insert(5 * len(workers))
        for worker in workers:
            assert self.call(worker, "work", "w") == 5

    def delivered(self) -> Counter[int]:
        """Count how often each was delivered."""
        with self.engine.connect() as connection:
            return Counter(connection.scalars(text("SELECT delivery FROM delivered")))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder whose package `shop` is imported from there."""
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in [name for name in sys.modules if name.split(".")[0] == "shop"]:
        del sys.modules[name]


@pytest.mark.only_on(*SERVERS)
@pytest.mark.by_turns(*SERVERS)
@pytest.mark.timeout(300)
def test_the_steps_of_the_page_lose_nothing_and_do_nothing_twice(
    engine: Engine, fresh_database: URL, folder: Path
) -> None:
    """That nobody waits for its migrations is proved by tests/migration/test_online.py."""
    shop, url = Shop(engine), shown(fresh_database)
    with engine.begin() as connection:
        for statement in filter(str.strip, code_blocks(PAGE, "sql")[0].split(";")):
            connection.execute(text(statement))
        connection.execute(text("CREATE TABLE delivered (delivery INTEGER NOT NULL)"))
    steps = ("## 2.", "## 3.", "## 4.", "## Go back", "The new column", "## 5.", "## Columns")
    files, add, beside, cut_over, way_back, drop, clean_up, _ = divided(PAGE, *steps)
    with reader(
        folder,
        replaced={"postgresql+psycopg2://user@host/shop": url},
        environment={"DATABASE_URL": url},
    ) as following:
        following.write("shop/delivering.py", DELIVERING)
        following.follow(files)
        begin_migrations(following, IMPORTS)

        following.follow(add)
        assert "error [" not in following.printed_by("sa-jobqueue doctor")
        shop.goes_on("old_worker")

        following.follow(beside)
        shop.goes_on("old_worker", "new_worker")

        shop.insert()
        assert len(shop.call("old_worker", "take", "old-2")) == 5  # and dies
        following.follow(cut_over)
        assert shop.call("reaping", "reap_claims") == 5
        assert shop.call("new_worker", "work", "new-1") == 5

        following.follow(way_back)
        shop.insert()
        with Session(engine) as session:
            claim(session, import_module("shop.models").Delivery, owner="new-2", limit=5)
            session.commit()  # and dies
        shop.call("going_back", "release_claims", "new-2")
        following.follow(drop)
        assert shop.call("old_worker", "work", "old-3") == 5
        following.run("alembic upgrade 0004")

        following.follow(clean_up)
        shop.goes_on("new_worker")
        assert shop.delivered() == dict.fromkeys(range(1, shop.inserted + 1), 1)
        with engine.begin() as connection:
            connection.execute(text("DROP TABLE delivered"))
        following.run("alembic check")
