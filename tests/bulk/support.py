"""Items to load, and a load that is killed in a commit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Engine, select
from sqlalchemy.orm import Session

from sa_jobqueue.bulk import BulkLoad, FileLog, InsertSource
from sa_jobqueue.bulk.log import INSERTED, Entry

from .fakes import Killed
from .models import Item


def items(count: int, first: int = 0) -> list[dict[str, Any]]:
    return [{"id": number, "text": f"item {number}"} for number in range(first, first + count)]


def texts(engine: Engine) -> dict[int, str | None]:
    with Session(engine) as session:
        found = session.execute(select(Item.id, Item.text).order_by(Item.id))
        return {row.id: row.text for row in found}


def expected(count: int, first: int = 0) -> dict[int, str]:
    return {row["id"]: row["text"] for row in items(count, first)}


def add_items(engine: Engine, *numbers: int) -> None:
    with Session(engine) as session, session.begin():
        session.add_all(Item(id=number, text="foreign") for number in numbers)


def load_of(engine: Engine, log: FileLog, rows: Any = None, **options: Any) -> BulkLoad[Any]:
    options = {"batch_size": 3, **options}
    return BulkLoad(InsertSource(engine, Item, items(10) if rows is None else rows, **options), log)


def killed_in_commit(
    monkeypatch: pytest.MonkeyPatch,
    call: Callable[[], None],
    batch: int,
    *,
    committed: bool,
    mark: int = INSERTED,
) -> None:
    """Kill the process in the commit of a batch, so that nobody hears whether it was done."""
    before, after = Entry.before_commit, Entry.after_commit

    def die_before(entry: Entry, which: int, connection: Any = None, kept: Any = None) -> None:
        before(entry, which, connection, kept)
        if not committed and (entry.number, which) == (batch, mark):
            raise Killed

    def die_after(entry: Entry, which: int) -> None:
        if committed and (entry.number, which) == (batch, mark):
            raise Killed
        after(entry, which)

    with monkeypatch.context() as patched:
        patched.setattr(Entry, "before_commit", die_before)
        patched.setattr(Entry, "after_commit", die_after)
        with pytest.raises(Killed):
            call()
