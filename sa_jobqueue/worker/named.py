"""Records of the log tell the database that they are about, if a worker has several."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_name: ContextVar[str | None] = ContextVar("sa_jobqueue_database", default=None)


def name_of_records() -> str | None:
    """Return the name that the records of this thread or task begin with."""
    return _name.get()


def name_records(database: str) -> None:
    """Have the records of this thread or task tell a database from now on."""
    _name.set(database)


@contextmanager
def records_named(database: str | None) -> Iterator[None]:
    """Have the records of a block tell a database; None: the worker has one, without a name."""
    before = _name.get()
    _name.set(database)
    try:
        yield
    finally:
        _name.set(before)


def _add_name(record: logging.LogRecord) -> bool:
    name = _name.get()
    if name is not None and not hasattr(record, "database"):
        record.database = name
        text = f"{name}: ".replace("%", "%%") if record.args else f"{name}: "
        record.msg = f"{text}{record.msg}"
    return True


for _each in ("owner", "wakeups", "worker"):
    logging.getLogger(f"sa_jobqueue.{_each}").addFilter(_add_name)
