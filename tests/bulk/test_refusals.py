"""What the package refuses: the call, the error, and words of its message."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine
from sqlalchemy.orm import Session

from sa_jobqueue import ArgumentError, UnsupportedDatabase
from sa_jobqueue.bulk import (
    BrokenLog,
    BulkLoad,
    DatabaseLog,
    EnqueueSource,
    FileLog,
    InsertSource,
    Log,
    Metadata,
    SourceChanged,
)

# Inner: the format of a release that is newer.
from sa_jobqueue.bulk import log as module
from tests.doctor.pooler import Pooler
from tests.models import Account, Task
from tests.support import SERVERS, make_engine

from .fakes import Numbers
from .models import Item, Rounded
from .support import count, items

a_word: Any = "never"
session_of: Any = Session

ARGUMENTS: list[tuple[Callable[[Any], object], str]] = [
    (lambda _: Metadata(total=-1, batch_size=1), "a batch has at least one row"),
    (lambda _: Metadata(total=1, batch_size=0), "a batch has at least one row"),
    (lambda engine: InsertSource(engine, Item, 5), "rows are an iterable of mappings"),
    (lambda engine: InsertSource(engine, Item, {"id": 1}), "rows are an iterable of mappings"),
    (lambda engine: InsertSource(engine, Item, "may.csv"), "a function can read a file"),
    (lambda engine: InsertSource(engine, Item, [], batch_size=0), "at least one row"),
    (lambda engine: InsertSource(engine, Item, [], on_existing=a_word), "one of error, keep"),
    (lambda engine: InsertSource(engine, dict, []), "not a mapped class"),
    (lambda engine: InsertSource(session_of(engine), Item, []), r"needs an Engine, not .*driver"),
    (lambda engine: EnqueueSource(engine, Item, []), "JobMixin"),
    (lambda engine: EnqueueSource(engine, Task, [], visible=a_word), "as inserted, at the end"),
    (lambda engine: DatabaseLog(engine, ""), "1 to 100 characters"),
    (lambda engine: DatabaseLog(engine, "n" * 101), "1 to 100 characters"),
]


@pytest.mark.only_on("sqlite")
@pytest.mark.parametrize(("call", "words"), ARGUMENTS)
def test_an_argument_that_cannot_work_is_refused(
    engine: Engine, call: Callable[[Any], object], words: str
) -> None:
    with pytest.raises(ArgumentError, match=words):
        call(engine)


ROWS: list[tuple[type[Any], Any, str]] = [
    (Item, [(1, "a")], "a row maps attribute names to values"),
    (Item, [{"id": 1}, {"id": 2, "colour": "red"}], "Item has no column colour"),
    (Item, [{"id": 1.5}], "keys of one of the types Decimal, UUID, bytes"),
    (Item, [{"id": 1}, {"id": "a"}], "one type for each column; these are int, str"),
    (Task, [{"id": 1, "name": "a", "run_at": datetime(2100, 1, 1)}], r"run_at=.* has no time zone"),
    (Account, [{"name": "a"}], r"has no id, and the server would choose it.*a UUID"),
]


@pytest.mark.only_on("sqlite")
@pytest.mark.parametrize(("entity", "rows", "words"), ROWS)
def test_rows_that_a_load_cannot_keep_track_of_are_refused(
    engine: Engine, log: FileLog, entity: type[Any], rows: Any, words: str
) -> None:
    source = EnqueueSource if entity is Task else InsertSource

    with pytest.raises(ArgumentError, match=words):
        BulkLoad(source(engine, entity, rows), log).run()

    assert count(engine, entity) == 0


@pytest.mark.only_on(*SERVERS)
def test_keys_that_the_server_stores_as_other_keys_are_refused(
    engine: Engine, tmp_path: Path, db_alias: str
) -> None:
    replaced: list[tuple[type[Any], Any]] = [
        (Rounded, [{"amount": Decimal("1.5")}, {"amount": Decimal("2.125")}]),
        (Account, [{"id": number, "name": "a"} for number in (1, 0)]),
    ]
    for entity, rows in replaced[: 1 if db_alias == "postgresql" else 2]:
        load = BulkLoad(InsertSource(engine, entity, rows), FileLog(tmp_path / entity.__name__))
        with pytest.raises(ArgumentError, match=r"1 of 2 rows \(rows 0 to 1\) are not found"):
            load.run()
        assert count(engine, entity) == 0


@pytest.mark.only_on("sqlite")
def test_another_table_than_at_first_is_refused(engine: Engine, new_log: Callable[[], Log]) -> None:
    BulkLoad(InsertSource(engine, Item, items(3)), new_log()).prepare()

    with pytest.raises(SourceChanged, match="began with the table 'bulk_item'"):
        BulkLoad(InsertSource(engine, Account, []), new_log()).rollback()


@pytest.mark.only_on("sqlite")
def test_a_log_of_another_format_is_refused(
    new_log: Callable[[], Log], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(module, "VERSION", 2)
        BulkLoad(Numbers(1, 1), new_log()).prepare()

    for _ in range(2):  # the first has freed the lock
        with pytest.raises(BrokenLog, match="has the format 2; this release reads 1"):
            BulkLoad(Numbers(1, 1), new_log()).run()


@pytest.mark.only_on("sqlite")
def test_a_missing_table_of_the_log_is_named_with_the_way_out() -> None:
    engine = create_engine("sqlite://")

    with pytest.raises(BrokenLog, match=r"no table bulk_load\..*log\.table\.create\(engine\)"):
        BulkLoad(Numbers(1, 1), DatabaseLog(engine)).run()
    engine.dispose()


@pytest.mark.only_on("mysql", "mariadb")
def test_a_pooler_in_between_is_refused(engine: Engine, log: FileLog) -> None:
    with Pooler(engine.url) as pooler:
        load = BulkLoad(InsertSource(make_engine(pooler.url), Item, items(3)), log)
        with pytest.raises(UnsupportedDatabase, match="goes through a connection pooler"):
            load.run()

    assert count(engine, Item) == 0
