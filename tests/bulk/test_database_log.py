"""A log in the loaded database: a batch and its mark are one transaction."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import Engine, create_engine

from sa_jobqueue.bulk import BulkLoad, DatabaseLog, Metadata

from .fakes import Killed, Numbers
from .models import Base
from .support import Mortal, add_items, expected, items, load_of, texts


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


def test_long_values_are_stored_whole(engine: Engine) -> None:
    """A batch and details that are longer than MySQL's TEXT."""
    source, known = Numbers(20_000, 20_000), {"details": "d" * 70_000}
    metadata = Metadata(total=20_000, batch_size=20_000, details=known)
    source.metadata = lambda: metadata  # type: ignore[method-assign]
    load = BulkLoad(source, DatabaseLog(engine, "n" * 100))

    load.run()
    load.rollback()

    assert source.rolled_back == [list(range(20_000))]


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
