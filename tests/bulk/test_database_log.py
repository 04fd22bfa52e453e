"""A log in the loaded database: a batch and its mark are one transaction."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine, create_engine

from sa_jobqueue.bulk import (
    BulkLoad,
    DatabaseLog,
    DivisibleSource,
    Metadata,
)

from .fakes import Killed
from .models import Base
from .support import Mortal, add_items, expected, items, load_of, texts

pytestmark = pytest.mark.by_turns("mysql", "mariadb")


def test_two_loads_know_nothing_of_each_other(engine: Engine) -> None:
    add_items(engine, 100, 101)
    first = load_of(engine, DatabaseLog(engine, "may"))
    second = load_of(engine, DatabaseLog(engine, "May"), items(5, 100), on_existing="keep")
    first.prepare()

    second.run()
    first.run()

    assert (first.status().inserted, second.status().inserted) == (4, 2)
    first.rollback()
    first.clean()
    assert set(texts(engine)) == set(range(100, 105))
    second.rollback()
    assert texts(engine) == dict.fromkeys((100, 101), "foreign")


class Long(DivisibleSource[str]):
    """A batch that is longer than MySQL's TEXT."""

    taken_back: list[str]

    def metadata(self) -> Metadata:
        return Metadata(total=1, batch_size=1, details={"details": "d" * 70_000})

    def divide(self) -> Iterator[str]:
        yield "r" * 70_000

    def update(self, batch: str) -> None:
        pass

    def rollback(self, batch: str) -> None:
        self.taken_back.append(batch)


def test_long_values_are_stored_whole(engine: Engine) -> None:
    source = Long()
    source.taken_back = []
    load = BulkLoad(source, DatabaseLog(engine, "n" * 100))

    load.run()
    load.rollback()

    assert source.taken_back == ["r" * 70_000]


def test_a_log_in_another_database_has_doubts_and_settles_them(
    engine: Engine, tmp_path: Path
) -> None:
    other = create_engine(f"sqlite:///{tmp_path / 'other.db'}")
    Base.metadata.create_all(other)
    mortal = Mortal(other)

    for batch, committed in ((2, True), (1, False)):
        mortal.die(batch=batch, committed=committed)
        with pytest.raises(Killed):
            load_of(mortal.engine, DatabaseLog(engine), on_existing="keep").run()
    load = load_of(other, DatabaseLog(engine))
    load.run()

    assert texts(other) == expected(10)
    assert load.status().inserted == 4
    for used in (other, mortal.engine):
        used.dispose()
