"""A change of a table that waits for its lock gives up after half a second, on InnoDB too.

``lock_wait_timeout`` counts whole seconds, and all who come later wait behind the one
that waits: with one second, the shortest, inserts were seen to take 1.0004. So a second
connection looks after the first, and interrupts its statement (``KILL QUERY``, which
everybody may do to connections of their own) while the server says that it waits for
the lock. Nothing else is interrupted, however long it takes: no index that is built.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError, OperationalError, SQLAlchemyError

from ..lock_connection import dedicated_connection

log = logging.getLogger("sa_jobqueue.migration")

#: How long a statement is seen to wait for the lock of a table's definition.
_INTERRUPT_AFTER = timedelta(milliseconds=400)

_LOOK_EVERY = timedelta(milliseconds=50)

_INTERRUPTED = 1317
_WAITED_TOO_LONG = 1205

_WAITS = (
    "SELECT COUNT(*) FROM {process_list} WHERE id = :number AND db = DATABASE() "
    "AND state = 'Waiting for table metadata lock'"
)


@contextmanager
def brief_waits(connection: Connection, number: int, process_list: str) -> Iterator[None]:
    """Interrupt what runs inside on a connection when it waits for a table's lock for long.

    Args:
        number: how the server lists the connection.
        process_list: the table with its list.

    Raises:
        OperationalError: a statement was interrupted; as if the server's own limit had ended it.
    """
    try:
        second = dedicated_connection(connection.engine)
    except SQLAlchemyError as error:  # then lock_wait_timeout ends the wait
        log.info("no second connection to end a wait before its second is over: %s", error)
        yield
        return
    watch = _Watch(second, number, _WAITS.format(process_list=process_list))
    watch.start()
    try:
        yield
    except DBAPIError as error:
        if watch.interrupted and error.orig is not None and error.orig.args[0] == _INTERRUPTED:
            ended = TimeoutError(_WAITED_TOO_LONG, "the table's lock was waited for too long")
            raise OperationalError(error.statement, error.params, ended) from error
        raise
    finally:
        watch.stop()


class _Watch(threading.Thread):
    """Looks again and again whether a connection waits for a table's lock.

    Attributes:
        interrupted: whether it has, for too long.
    """

    def __init__(self, connection: Connection, number: int, waits: str) -> None:
        super().__init__(name="sa_jobqueue lock wait", daemon=True)
        self.interrupted = False
        self._connection = connection
        self._number = number
        self._waits = text(waits).bindparams(number=number)
        self._over = threading.Event()

    def stop(self) -> None:
        """Look no more: what runs next is not interrupted."""
        self._over.set()
        self.join()

    def run(self) -> None:
        """Look until it is told to stop, or its own connection is lost."""
        try:
            with self._connection:
                self._watch()
        except SQLAlchemyError as error:
            log.info("a wait is not ended before its second is over: %s", error)

    def _watch(self) -> None:
        since: float | None = None
        while not self._over.wait(_LOOK_EVERY.total_seconds()):
            now = time.monotonic()
            if not self._connection.scalar(self._waits):
                since = None
            elif since is None:
                since = now
            elif now - since >= _INTERRUPT_AFTER.total_seconds():
                self.interrupted = True
                self._connection.exec_driver_sql(f"KILL QUERY {self._number}")
                since = None
