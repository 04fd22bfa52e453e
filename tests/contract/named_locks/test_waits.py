"""How long a named lock is waited for."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import URL, create_engine

from sa_jobqueue import LockTimeout, NamedLock, named_lock
from tests.lockers import PATIENCE

SHORTLY = timedelta(seconds=0.2)

#: So long a busy machine may pause, in seconds. Who ignores a timeout waits for longer.
MUCH = PATIENCE.total_seconds() / 4


@pytest.mark.parametrize(("own", "given"), [(60, 0), (60, 1.3), (0.2, None)])
def test_acquire_waits_for_its_timeout_or_that_of_the_lock_and_not_much_longer(
    lock: NamedLock, own: float, given: float | None
) -> None:
    other = named_lock(lock.engine, lock.name, timeout=timedelta(seconds=own))
    with lock:
        started = time.monotonic()

        assert not (other.acquire() if given is None else other.acquire(timedelta(seconds=given)))

        waited = time.monotonic() - started
        expected = own if given is None else given
        assert expected <= waited < expected + MUCH


def test_the_timeout_of_a_with_block_names_the_holder_of_the_lock(lock: NamedLock) -> None:
    other = named_lock(lock.engine, lock.name, timeout=SHORTLY)

    with lock, pytest.raises(LockTimeout) as caught, other:
        pass

    assert "not free within 0.2 s: process " in str(caught.value)
    assert not other.held


def test_a_wait_longer_than_the_servers_and_drivers_own_limits(
    lock: NamedLock, db_url: URL, db_alias: str
) -> None:
    limits: dict[str, dict[str, Any]] = {
        "sqlite": {},
        "postgresql": {"options": "-c statement_timeout=500 -c lock_timeout=500"},
        "mysql": {"read_timeout": 2, "init_command": "SET max_execution_time = 500"},
        "mariadb": {"read_timeout": 2, "init_command": "SET max_statement_time = 0.5"},
    }
    engine = create_engine(db_url, connect_args=limits[db_alias])

    with lock:
        taken = named_lock(engine, lock.name).acquire(timedelta(seconds=3))

    assert not taken
    engine.dispose()
