"""MySQL and MariaDB: how long a statement waits for locks, in seconds, and in less than one.

``lock_wait_timeout`` counts whole seconds, and everybody who comes later waits behind a
statement that waits for a table's lock: with one second, the shortest, inserts were seen to
take 1.0004. So :func:`limited_table_wait` has a second connection look at the first, and
interrupt its statement (``KILL QUERY``, which every user may do to connections of their own)
while the server says that it waits for that lock. Nothing else is interrupted, however long
it takes, such as an index that is being built.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta

from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import OperationalError, SQLAlchemyError

from ..connections import dedicated_connection
from ..driver_errors import driver_errors
from ..own_loop import call_for
from .owner_liveness import PROCESS_LIST

log = logging.getLogger("sa_jobqueue.migration")

#: How long a statement may wait for the lock of a table's definition.
_INTERRUPT_AFTER = timedelta(milliseconds=400)

_LOOK_EVERY = timedelta(milliseconds=50)

_INTERRUPTED = 1317
_WAITED_TOO_LONG = 1205

_IS_WAITING = (
    f"SELECT COUNT(*) FROM {PROCESS_LIST} WHERE id = :number AND db = DATABASE() "
    "AND state = 'Waiting for table metadata lock'"
)

#: How long a connection waits for a row, and for the definition of a table.
_TIMEOUTS = ("innodb_lock_wait_timeout", "lock_wait_timeout")


@contextmanager
def waiting_at_most(connection: Connection, time: timedelta) -> Iterator[None]:
    """Inside, give up on locks of rows and tables after this time, at least one second."""
    asked = ", ".join(f"@@{name}" for name in _TIMEOUTS)
    own = connection.exec_driver_sql(f"SELECT {asked}").one()
    seconds = max(1, round(time.total_seconds()))
    _set_timeouts(connection, [seconds] * len(_TIMEOUTS))
    try:
        yield
    finally:
        _set_timeouts(connection, own)


def _set_timeouts(connection: Connection, seconds: Sequence[int]) -> None:
    values = (f"{name} = {value:d}" for name, value in zip(_TIMEOUTS, seconds, strict=True))
    connection.exec_driver_sql(f"SET {', '.join(values)}")


@contextmanager
def limited_table_wait(connection: Connection, number: int) -> Iterator[None]:
    """Inside, interrupt a statement of a connection that waits for a table's lock.

    Args:
        number: the connection's number in the server's list.

    Raises:
        OperationalError: a statement was interrupted; the same error as that of the server's
            own limit.
    """
    watch = _Watch(connection.engine, number)
    watch.start()
    try:
        yield
    except Exception as error:  # a handle_error listener may raise what it likes
        codes = [cause.args[:1] for cause in driver_errors(error)]
        if watch.interrupted and (_INTERRUPTED,) in codes:
            ended = TimeoutError(_WAITED_TOO_LONG, "the wait for the table's lock took too long")
            statement = getattr(error, "statement", None)
            raise OperationalError(statement, getattr(error, "params", None), ended) from error
        raise
    finally:
        watch.stop()


class _Watch(threading.Thread):
    """Looks again and again whether a connection waits for a table's lock.

    Attributes:
        interrupted: whether a statement has waited too long, and was interrupted.
    """

    def __init__(self, engine: Engine, number: int) -> None:
        super().__init__(name="sa_jobqueue lock wait", daemon=True)
        self.interrupted = False
        self._engine = engine
        self._number = number
        self._is_waiting = text(_IS_WAITING).bindparams(number=number)
        self._over = threading.Event()

    def stop(self) -> None:
        """Stop looking: the next statement is not interrupted."""
        self._over.set()
        self.join()

    def run(self) -> None:
        """Look until stop() is called."""
        try:
            call_for(self._engine, self._watch)
        except SQLAlchemyError as error:
            log.info("no second connection: waits for a table's lock last a second: %s", error)

    def _watch(self) -> None:
        with dedicated_connection(self._engine) as connection:
            since: float | None = None
            while not self._over.wait(_LOOK_EVERY.total_seconds()):
                now = time.monotonic()
                if not connection.scalar(self._is_waiting):
                    since = None
                elif since is None:
                    since = now
                elif now - since >= _INTERRUPT_AFTER.total_seconds():
                    self.interrupted = True
                    connection.exec_driver_sql(f"KILL QUERY {self._number}")
                    since = None
