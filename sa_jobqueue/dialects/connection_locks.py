"""Named locks that belong to a connection: what the three servers have in common."""

from __future__ import annotations

import weakref
from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import SQLAlchemyError

from ..errors import UnsupportedDatabase
from .lock_connection import Limits, LockConnection, dedicated_connection
from .named_locks import Deadline, HeldLock, Holder, ServerLocks, lost

if TYPE_CHECKING:
    from .capabilities import Database

#: What a server knows a lock by: a number or a text.
Key = int | str


class ConnectionLocks(ServerLocks):
    """Locks that a server frees when their connection ends.

    Attributes:
        limits: how long a silent holder keeps its lock.
        wait: seconds that the server is asked to wait at a time: Ctrl-C is seen
            between two of them, and drivers have limits to how long they read.
    """

    limits: ClassVar[Limits]
    wait: ClassVar[float]

    def __init__(self, database: Database) -> None:
        self.database = database

    @abstractmethod
    def prepare(self, connection: Connection) -> None:
        """Set how long the server keeps a silent connection, and no other limit."""

    @abstractmethod
    def key(self, connection: Connection, name: str) -> Key:
        """Return what the server knows this lock by."""

    @abstractmethod
    def take(self, connection: Connection, *, key: Key, seconds: float) -> bool:
        """Take the lock or wait for it; tell whether it was had."""

    @abstractmethod
    def give(self, connection: Connection, *, key: Key) -> bool:
        """Give the lock back; tell whether it was held."""

    @abstractmethod
    def holds(self, connection: Connection, *, key: Key) -> bool:
        """Ask whether this very connection holds the lock."""

    @abstractmethod
    def find_holder(self, connection: Connection, key: Key) -> Holder | None:
        """Read who has the lock."""

    def acquire(self, engine: Engine, name: str, deadline: Deadline) -> HeldLock | None:
        connection = LockConnection(engine, self.limits, self.database.backend)
        try:
            key = connection.ask(partial(self._made_ready, name=name))
            connection.identify()
            if not self._taken(connection, key, deadline):
                connection.close()
                return None
        except BaseException:
            connection.abandon()
            raise
        return _HeldByConnection(self, connection, key, name)

    def holder(self, connection: Connection, name: str) -> Holder | None:
        return self.find_holder(connection, self.key(connection, name))

    def holder_by_engine(self, engine: Engine, name: str) -> Holder | None:
        with dedicated_connection(engine) as connection:
            return self.holder(connection, name)

    def _made_ready(self, connection: Connection, *, name: str) -> Key:
        if self.database.through_pooler(connection):
            raise UnsupportedDatabase(
                f"This connection to {self.database} goes through a connection pooler: a lock "
                "would belong to a session that others get, too. Give named locks an engine "
                "whose URL names the server itself, its own host and port."
            )
        self.prepare(connection)
        return self.key(connection, name)

    def _taken(self, connection: LockConnection, key: Key, deadline: Deadline) -> bool:
        while True:
            seconds = deadline.left(self.wait)
            if connection.ask(partial(self.take, key=key, seconds=seconds)):
                return True
            if deadline.passed:
                return False


class _HeldByConnection(HeldLock):
    """A lock that is ours as long as its connection lives."""

    def __init__(
        self, locks: ConnectionLocks, connection: LockConnection, key: Key, name: str
    ) -> None:
        self._locks = locks
        self._connection = connection
        self._key = key
        self._name = name
        connection.lock = name
        weakref.finalize(self, connection.abandon)

    @property
    def inherited(self) -> bool:
        return self._connection.inherited

    @property
    def lost(self) -> bool:
        return self._connection.lost

    def check(self) -> None:
        self._insist(self._locks.holds)

    def release(self) -> None:
        try:
            self._insist(self._locks.give)
        finally:
            self._connection.close()

    def _insist(self, ours: Callable[..., bool]) -> None:
        try:
            held = self._connection.ask(partial(ours, key=self._key))
        except (SQLAlchemyError, OSError) as error:
            raise lost(self._name) from error
        if not held:
            self._connection.lose("the server knows it no longer")
            raise lost(self._name)
