"""What is done right after the outermost COMMIT or ROLLBACK of a connection.

::

    class Greeting(Ending):
        def ended(self, driver, *, committed): print("committed" if committed else "undone")

    follow(connection, "greeting", Greeting())

For what a server session keeps beyond its transaction, such as locks, and gives
back when the transaction has ended and not before: in between, others would act
on what is not committed yet.

Session.after_commit will not do: a session joined to an outer transaction fires
it for a savepoint. The events "commit" of Connection and Engine come before the
COMMIT. What SQLAlchemy calls for exactly this one is commit() of the connection
that the pool handed out. Not followed are COMMIT and ROLLBACK in SQL of the
caller's own; what they leave behind is dealt with before the pool hands the
connection out again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any
from weakref import ref

from sqlalchemy import Connection, Pool, event

_INFO = "sa_jobqueue.dialects.after_commit"


class Ending(ABC):
    """What one room of the library does at the ends of a connection's transactions.

    The methods get the driver's own connection, below the pool's.
    """

    def commits(self, driver: Any, errors: type[Exception]) -> bool:
        """Tell, before a COMMIT, whether the server will do it."""
        return True

    @abstractmethod
    def ended(self, driver: Any, *, committed: bool) -> None:
        """Do what is to be done now; no transaction is open."""

    @abstractmethod
    def broken_off(self) -> None:
        """Take note that a COMMIT or ROLLBACK raised: nobody knows what became of it."""

    @abstractmethod
    def not_done(self, error: Exception) -> None:
        """Say that :meth:`ended` failed; the transaction itself has ended well."""

    @abstractmethod
    def returned(self, driver: Any) -> None:
        """Leave nothing behind: the connection is back in its pool, or about to be."""


def ending_of(connection: Connection, name: str) -> Ending | None:
    """Return what follows a connection under this name, since it left its pool."""
    found: Ending | None = connection.info.get(_INFO, {}).get(name)
    return found


def follow(connection: Connection, name: str, ending: Ending) -> None:
    """Follow a connection's transactions until it is back in its pool."""
    endings = connection.info.setdefault(_INFO, {})
    endings[name] = ending
    if len(endings) == 1:
        _watch(connection, endings)
        _watch_returns()


def _watch(connection: Connection, endings: dict[str, Ending]) -> None:
    pooled: Any = connection.connection
    errors = connection.dialect.loaded_dbapi.Error
    for name in ("commit", "rollback"):
        vars(pooled)[name] = _followed(pooled, name, endings, errors)


def _followed(
    pooled: Any, name: str, endings: dict[str, Ending], errors: type[Exception]
) -> Callable[[], None]:
    """Return a method of a pooled connection with the endings' part done after it."""
    weak = ref(pooled)  # no cycle: it returns to its pool when it is dropped

    def end() -> None:
        driver = weak().dbapi_connection  # type: ignore[union-attr]  # it runs its own method
        following = list(endings.values())
        committing = [name == "commit" and one.commits(driver, errors) for one in following]
        try:
            getattr(driver, name)()
        except BaseException:
            for one in following:
                one.broken_off()
            raise
        for one, committed in zip(following, committing, strict=True):
            try:
                one.ended(driver, committed=committed)
            except errors as error:
                one.not_done(error)

    return end


def _watch_returns() -> None:
    """Have everything given back before a connection is handed out again.

    Of every pool: after Engine.dispose() a connection's pool is not that of its
    engine any more.
    """
    if not event.contains(Pool, "reset", _leave):
        event.listen(Pool, "reset", _leave)


def _leave(driver: Any, record: Any, state: Any) -> None:
    endings = record.info.pop(_INFO, None) if record is not None else None
    if endings is None or state.terminate_only or not state.asyncio_safe:
        return
    for ending in endings.values():
        ending.returned(driver)


def fetched(driver: Any, statement: str) -> Sequence[Any]:
    """Run a statement on a driver's own connection, and return its rows."""
    cursor = driver.cursor()
    cursor.execute(statement)
    found = list(cursor.fetchall())
    cursor.close()
    return found
