"""The code of docs/rounds.md, run from top to bottom."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from sqlalchemy import URL, Engine, text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, sessionmaker

import sa_jobqueue
from sa_jobqueue import migration
from tests.migration.support import migrating
from tests.support import make_engine

from .markdown import code_blocks, page

MODEL, MAIL, AT_ONCE, CHUNKS, READERS, MAIL_READERS, UPGRADE = code_blocks(
    page("docs/rounds.md"), "python"
)


@pytest.fixture
def names(fresh_database: URL) -> Any:
    """Give the names that the code of the page takes for granted."""

    class Base(DeclarativeBase):
        pass

    engine = make_engine(fresh_database)
    sent: Counter[Any] = Counter()
    yield {
        **vars(sa_jobqueue),
        **vars(migration),
        "Base": Base,
        "Mapped": Mapped,
        "mapped_column": mapped_column,
        "engine": engine,
        "Session": sessionmaker(engine, expire_on_commit=False),
        "send": lambda somebody, mailing: sent.update([(somebody.id, mailing)]),
        "sent": sent,
    }
    engine.dispose()


def run(code: str, names: dict[str, Any]) -> None:
    exec(compile(code, "docs/rounds.md", "exec", dont_inherit=True), names)


def make_tables(names: dict[str, Any], entity: str) -> None:
    engine: Engine = names["engine"]
    names["Base"].metadata.create_all(engine)
    with names["Session"]() as session:
        session.add_all([names[entity](id=number) for number in (1, 2, 3)])
        session.commit()


def test_the_rounds_of_the_page_mail_everybody_once_in_each(
    names: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    run(MODEL, names)
    make_tables(names, "Subscriber")

    run(MAIL, names)
    run(AT_ONCE, names)
    run(CHUNKS, names)
    run(MAIL, names)

    assert capsys.readouterr().out.splitlines() == [
        "3 are done in round 1",
        "3 are done in round 4",
    ]
    assert names["sent"] == Counter({(id_, round_): 1 for id_ in (1, 2, 3) for round_ in (1, 4)})


@pytest.mark.only_on("postgresql")
def test_the_round_mixin_alone_of_the_page_runs(names: dict[str, Any]) -> None:
    run(READERS, names)
    make_tables(names, "Reader")

    run(MAIL_READERS, names)

    assert names["sent"] == Counter({(id_, 1): 1 for id_ in (1, 2, 3)})


def test_the_migration_of_the_page_runs(names: dict[str, Any]) -> None:
    engine = names["engine"]
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE customer (id INTEGER PRIMARY KEY)"))
    run(UPGRADE, names)

    with migrating(engine) as names["op"]:
        names["upgrade"]()

    with engine.connect() as connection:
        assert list(connection.execute(text("SELECT * FROM customer_rounds"))) == []
