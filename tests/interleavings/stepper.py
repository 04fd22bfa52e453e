"""Take the steps of several sessions in a given order.

Each session has a thread of its own. A step that waits for another session's lock is seen by asking
the server, and the next step is then another session's. SQLite refuses such a step at once: its
transaction is rolled back, and the step taken again after a step of another session.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import DBAPIError

from sa_jobqueue import is_transient
from tests.interleavings.scripts import Actor

Script = Sequence[Callable[[Actor], None]]

#: Whether a session waits for a lock, by the id of its connection.
WAITS = {
    "postgresql": "SELECT cardinality(pg_blocking_pids(:id)) > 0",
    "mysql": "SELECT count(*) FROM performance_schema.data_lock_waits JOIN "
    "performance_schema.threads ON THREAD_ID = REQUESTING_THREAD_ID WHERE PROCESSLIST_ID = :id",
    "mariadb": "SELECT count(*) FROM information_schema.innodb_trx "
    "WHERE trx_mysql_thread_id = :id AND trx_state = 'LOCK WAIT'",
}

#: Seconds between two questions. MariaDB answers with what it knew at a question of the last 0.1 s.
PAUSES = {"mariadb": 0.11}

#: For how long a step may neither end nor wait.
PATIENCE = 20


class Stepped:
    """An actor, the steps that are left, and the step that it is taking."""

    def __init__(self, actor: Actor, script: Script) -> None:
        self.actor = actor
        self.left = deque(script)
        self.taking: Future[bool] | None = None
        self.connection_id = connection_id(actor.connection)
        self._thread = ThreadPoolExecutor(1)

    @property
    def is_over(self) -> bool:
        """Whether no step is left."""
        return not self.left and self.taking is None

    def begin(self) -> None:
        """Begin the next step in the actor's own thread."""
        self.taking = self._thread.submit(self._take, self.left[0])

    def end(self) -> bool:
        """Note that a step has ended; it is left, if it was refused. Tell whether it was taken."""
        assert self.taking is not None
        taken = self.taking.result()
        if taken:
            self.left.popleft()
        self.taking = None
        return taken

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown()
        self.actor.close()

    def _take(self, step: Callable[[Actor], None]) -> bool:
        """Take a step; tell whether it was taken: SQLite refuses what would wait."""
        try:
            step(self.actor)
        except DBAPIError as error:
            self.actor.rollback()
            if not is_transient(error):
                raise
            # Another session was chosen in a deadlock, or is in the way: the step is lost, as it
            # would be for a worker that goes on with its next one. SQLite's is taken again.
            return self.actor.session.get_bind().dialect.name != "sqlite"
        return True


class Stepper:
    """Sessions that are stepped."""

    def __init__(self, engine: Engine, alias: str, stepped: Sequence[Stepped]) -> None:
        self.stepped = stepped
        self.waited = 0
        self._engine = engine
        self._alias = alias

    def run(self, order: Sequence[int]) -> None:
        """Take the steps in this order, as far as locks allow it.

        Args:
            order: which session takes each step.
        """
        with self._engine.connect() as watcher:
            for session in order:
                self._take_one(watcher, [session, *range(len(self.stepped))])
            while not all(session.is_over for session in self.stepped):
                self._take_one(watcher, range(len(self.stepped)))

    def _take_one(self, watcher: Connection, choice: Sequence[int]) -> None:
        """Take a step of the first session that is able to."""
        for number in choice:
            session = self.stepped[number]
            if session.left and session.taking is None:
                session.begin()
                if self._settle(watcher, session):
                    break
        for session in self.stepped:  # which of the waiting steps have ended
            if session.taking is not None:
                self._settle(watcher, session)

    def _settle(self, watcher: Connection, session: Stepped) -> bool:
        """Wait until a step has ended, or waits for a lock; tell whether it was taken."""
        deadline = time.monotonic() + PATIENCE
        assert session.taking is not None
        while not wait([session.taking], PAUSES.get(self._alias, 0.002)).done:
            if self._waits(watcher, session.connection_id):
                self.waited += 1
                return False
            assert time.monotonic() < deadline, "a step neither ends nor waits"
        return session.end()

    def _waits(self, watcher: Connection, connection_id: int | None) -> bool:
        if self._alias not in WAITS:
            return False
        waits = watcher.execute(text(WAITS[self._alias]), {"id": connection_id}).scalar_one()
        watcher.rollback()
        return bool(waits)


def connection_id(connection: Connection) -> int | None:
    """Return the server's id of a connection; None: it has no server."""
    driver: Any = connection.connection.dbapi_connection
    for name in ("get_backend_pid", "thread_id"):  # of psycopg2, and of PyMySQL
        if hasattr(driver, name):
            return int(getattr(driver, name)())
    return None
