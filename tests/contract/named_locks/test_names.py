"""The names of locks, and what each database makes of them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import URL, Engine

from sa_jobqueue import ArgumentError, NamedLock, UnsupportedDatabase, named_lock
from sa_jobqueue.dialects import Database
from sa_jobqueue.dialects.innodb.database import InnoDB
from sa_jobqueue.dialects.innodb.named_locks import InnoDBNamedLocks
from tests.lockers import NOW
from tests.support import make_engine

LONG = "x" * 300

NAMES = (
    "plain",
    "PLAIN",
    "Plain",
    "plain ",
    LONG,
    LONG + "a",
    LONG + "b",
    "it's",
    'a "quoted" `name`',
    "100%",
    "%s %(name)s :name ?",
    "naïve",
    "naive",
    "😀",
    "名前",
    "back\\slash/../..",
    "line\nbreak",
    "nul\0",
    "--",
    "; DROP TABLE email",
)


# -- names --------------------------------------------------------------


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


@pytest.mark.parametrize("name", ["", None, 7, b"bytes"])
def test_a_lock_name_that_is_no_text_is_refused(engine: Engine, name: Any) -> None:
    with pytest.raises(ArgumentError, match="name of a lock is a text"):
        named_lock(engine, name)


@pytest.mark.parametrize("timeout", [timedelta(seconds=-1), 10, 0, 1.5, True, "10"])
def test_an_invalid_timeout_is_refused(lock: NamedLock, timeout: Any) -> None:
    with pytest.raises(ArgumentError, match="timedelta that is not negative"):
        named_lock(lock.engine, lock.name, timeout=timeout)
    with pytest.raises(ArgumentError, match="timedelta that is not negative"):
        lock.acquire(timeout)


def test_an_object_that_is_no_engine_is_refused(engine: Engine) -> None:
    with (
        engine.connect() as connection,
        pytest.raises(ArgumentError, match="needs an Engine"),
    ):
        named_lock(connection, "a")  # type: ignore[arg-type]  # that is the test


# -- keys ---------------------------------------------------------------


@pytest.mark.only_on("mysql", "mariadb")
def test_the_servers_name_of_a_lock_is_readable_and_not_too_long(engine: Engine) -> None:
    database = InnoDB((99,))
    with engine.connect() as connection:
        locks = InnoDBNamedLocks(database, statement_limit="")
        keys = [str(locks.key(connection, name)) for name in NAMES]

    assert all(len(key) <= 64 and key.isascii() for key in keys)
    assert len({key.lower() for key in keys}) == len(NAMES)
    assert keys[0].startswith("plain:")


# -- databases of one's own ---------------------------------------------


def test_a_database_without_named_locks_is_refused_with_the_way_out() -> None:
    class Tortoise(Database):
        title = "Tortoise"
        minimum = (1,)

    with pytest.raises(UnsupportedDatabase, match=r"no named locks of Tortoise.*named_locks\(\)"):
        Tortoise(None).named_locks()
