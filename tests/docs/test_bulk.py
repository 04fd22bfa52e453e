"""The code of docs/bulk.md runs, and its diagram is that of the code."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import String, create_engine, func, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from sa_jobqueue.bulk import DivisibleSource, FileLog, LoadState, Source
from sa_jobqueue.bulk.log import TRANSITIONS  # the page draws them

from .markdown import code_blocks, page, table

PAGE = page("docs/bulk.md")


class Base(DeclarativeBase):
    """The base of this test's tables."""


class Email(Base):
    __tablename__ = "docs_bulk_email"

    id: Mapped[int] = mapped_column(primary_key=True)
    recipient: Mapped[str] = mapped_column(String(50))


def test_the_diagram_shows_every_transition_and_no_other() -> None:
    (diagram,) = code_blocks(PAGE, "mermaid")

    drawn = set(re.findall(r"^\s*(\w+) --> (\w+) : (\w+)$", diagram, re.M))

    assert drawn == {
        (str(here), str(there), verb)
        for verb, changes in TRANSITIONS.items()
        for here, there in changes.items()
    }
    assert len(drawn) == diagram.count("-->")


def test_the_table_has_every_state() -> None:
    assert [line["state"] for line in table(PAGE, "state")] != []
    assert {line["state"] for line in table(PAGE, "state")} == set(LoadState)


def test_the_code_runs(tmp_path: Path) -> None:
    engine = create_engine("sqlite://")
    Base.metadata.create_all(engine)
    names: dict[str, Any] = {
        "engine": engine,
        "folder": tmp_path / "log",
        "Email": Email,
        "Base": Base,
    }
    loading, _, in_tables, _ = code_blocks(PAGE, "python")

    exec(loading, names)
    with Session(engine) as session:
        assert session.scalars(select(func.count()).select_from(Email)).one() == 0
    exec(in_tables, names)

    with Session(engine) as session:
        assert session.scalars(select(func.count()).select_from(Email)).one() == 1_000
    engine.dispose()


def test_a_source_of_ones_own_is_loaded_resumed_and_rolled_back(tmp_path: Path) -> None:
    stored: set[str] = set()
    limit, storing = [3], threading.Lock()

    def upload(name: str) -> None:
        with storing:
            if len(stored | {name}) > limit[0]:
                raise OSError("no space")
            stored.add(name)

    names: dict[str, Any] = {
        "names": ["a", "b", "c", "d", "e"],
        "folder": tmp_path / "log",
        "upload": upload,
        "remove": stored.discard,
    }
    *_, own = code_blocks(PAGE, "python")

    with pytest.raises(OSError, match="no space"):
        exec(own, names)
    load = names["BulkLoad"](names["Uploads"](names["names"]), FileLog(names["folder"]))
    assert load.state is LoadState.BLOCKED
    assert len(stored) == 3
    limit[0] = 5
    load.run()

    assert (load.state, stored) == (LoadState.CLEANING, {"a", "b", "c", "d", "e"})
    load.rollback()
    assert (load.state, stored) == (LoadState.CANCELLED, set())


def test_the_table_has_every_method_that_a_source_may_override() -> None:
    own = {name for name in vars(Source) if not name.startswith("_")}
    required = DivisibleSource.__abstractmethods__

    named = re.findall(r"`(\w+)\(", " ".join(line["method"] for line in table(PAGE, "method")))

    assert set(named) == own - required
