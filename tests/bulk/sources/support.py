"""Rows that were loaded, files of rows, and commits that fail."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, event, func, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from sa_jobqueue.bulk.log import Entry
from tests.bulk.models import Thing
from tests.bulk.support import items


def stored_things(engine: Engine) -> list[dict[str, Any]]:
    with Session(engine) as session:
        things = session.scalars(select(Thing).order_by(Thing.number)).all()
        return [
            {column.key: getattr(thing, column.key) for column in Thing.__table__.c}
            for thing in things
        ]


def count(engine: Engine, entity: type[Any]) -> int:
    with Session(engine) as session:
        return session.scalar(select(func.count()).select_from(entity)) or 0


def failing_commits(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, error: DBAPIError, times: int
) -> None:
    """Have the server refuse the first commits of batches."""
    before, due, left = Entry.before_commit, [False], [times]

    def see(entry: Entry, *args: Any) -> None:
        before(entry, *args)
        due[0] = True

    def fail(*args: Any) -> None:
        if due[0] and left[0]:
            due[0] = False
            left[0] -= 1
            raise error

    monkeypatch.setattr(Entry, "before_commit", see)
    event.listen(engine, "commit", fail)


def write_csv(path: Path, count: int = 10) -> Path:
    lines = [f'{row["id"]},"{row["text"]}"\r\n' for row in items(count)]
    path.write_text("id,text\r\n" + "".join(lines), newline="")
    return path
