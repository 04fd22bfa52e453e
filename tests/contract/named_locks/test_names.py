"""The names of locks, and what each database makes of them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import URL, Engine

from sa_jobqueue import ArgumentError, NamedLock, UnsupportedDatabase, named_lock
from sa_jobqueue.dialects import Database
from tests.lockers import NOW
from tests.support import make_engine

LONG = "x" * 300

NAMES = (
    "plain",
    "PLAIN",
    "plain ",
    LONG,
    LONG + "a",
    'it\'s `a` "name"',
    "%s %(name)s :name ?",
    "naïve",
    "naive",
    "😀",
    "back\\slash/../..",
    "line\nbreak\0",
    "; DROP TABLE email",
)


def test_every_name_is_a_lock_of_its_own(engine: Engine) -> None:
    locks = [named_lock(engine, name, timeout=NOW) for name in NAMES]

    taken = [lock.acquire() for lock in locks]

    again = [named_lock(engine, name).acquire(NOW) for name in NAMES]
    holders = [lock.holder() is not None for lock in locks]
    for lock in locks:
        lock.release()
    assert all(taken)
    assert not any(again)
    assert all(holders)
    assert [lock.holder() for lock in locks] == [None] * len(NAMES)


def test_a_lock_does_not_keep_others_from_the_same_name_in_another_database(
    lock: NamedLock, fresh_database: URL
) -> None:
    elsewhere = make_engine(fresh_database)

    with lock, named_lock(elsewhere, lock.name, timeout=NOW) as other:
        assert other.held
        assert lock.held
        lock.check()

    elsewhere.dispose()


@pytest.mark.by_turns("sqlite", "postgresql", "mysql", "mariadb")
@pytest.mark.parametrize(
    ("options", "words"),
    [
        *(({"name": name}, "name of a lock is a text") for name in ("", None, 7, b"bytes")),
        *(
            ({"timeout": timeout}, "timedelta that is not negative")
            for timeout in (timedelta(seconds=-1), 10, 0, 1.5, True, "10")
        ),
        ({"engine": "sqlite://"}, "needs an Engine"),
    ],
)
def test_what_makes_no_lock_is_refused(lock: NamedLock, options: Any, words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        named_lock(**{"engine": lock.engine, "name": lock.name, **options})
    if "timeout" in options:
        with pytest.raises(ArgumentError, match=words):
            lock.acquire(**options)


def test_a_database_without_named_locks_is_refused_with_the_way_out() -> None:
    class Tortoise(Database):
        title = "Tortoise"
        minimum = (1,)

    with pytest.raises(UnsupportedDatabase, match=r"no named locks of Tortoise.*named_locks\(\)"):
        Tortoise(None).named_locks()
