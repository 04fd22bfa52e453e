"""Items to load, and an engine whose process is killed at a chosen step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import Engine, event, func, select
from sqlalchemy.orm import Session

from sa_jobqueue.bulk import BulkLoad, InsertSource, Log
from tests.support import make_engine

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


def load_of(engine: Engine, log: Log, rows: Any = None, **options: Any) -> BulkLoad[Any]:
    options = {"batch_size": 3, **options}
    return BulkLoad(InsertSource(engine, Item, items(10) if rows is None else rows, **options), log)


def count(engine: Engine, entity: type[Any]) -> int:
    with Session(engine) as session:
        return session.scalar(select(func.count()).select_from(entity)) or 0


class Mortal:
    """An engine whose process dies once, or whose server refuses a commit once.

    A step is a write, the commit of it, or the answer to that. Batches are told by the
    SELECT of their keys, which on_existing="keep" sends: COPY sends no statement.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = make_engine(engine.url)
        self.die()
        event.listen(self.engine, "before_cursor_execute", self._before_statement)
        dialect: Any = self.engine.dialect
        self._commit = dialect.do_commit
        dialect.do_commit = self._do_commit

    def die(
        self,
        *,
        step: int = 0,
        batch: int = 0,
        committed: bool = False,
        error: Any = None,
        first: Callable[[], object] | None = None,
    ) -> None:
        """Die at a step, or in the commit of a batch, both counted from 1.

        Args:
            committed: die after the commit of the batch.
            error: raise this in place of the commit, and live.
            first: is called before the commit of the batch.
        """
        self._first = first
        self._step, self._batch = step, batch
        self._committed, self._error = committed, Killed() if error is None else error
        self._writes = self._items = False

    def _before_statement(self, connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        self._items |= "bulk_item" in statement
        if statement.startswith(("INSERT", "UPDATE", "DELETE")):
            self._writes = True
            self._count_step()

    def _do_commit(self, connection: Any) -> None:
        writes, items = self._writes or self._items, self._items
        self._writes = self._items = False
        self._batch -= items
        dies = items and self._batch == 0
        if dies and self._first is not None:
            self._first()
        if dies and not self._committed:
            raise self._error
        if writes:
            self._count_step()
        self._commit(connection)
        if writes:
            self._count_step()
        if dies:
            raise self._error

    def _count_step(self) -> None:
        self._step -= 1
        if self._step == 0:
            raise Killed
