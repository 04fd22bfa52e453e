"""What runs right after the outermost COMMIT or ROLLBACK of a connection.

::

    class Greeting(TransactionHooks):
        def after_end(self, driver, *, committed): print("committed" if committed else "undone")

    add_hooks(connection, "greeting", Greeting())

For what a server session keeps beyond its transaction, such as locks: they must be given
back when the transaction has ended and not before, else others would act on rows that are
not committed yet.

Session.after_commit will not do: a session that joined an outer transaction fires it for
a savepoint. The event "commit" of Connection and Engine comes before the COMMIT. At the
right moment SQLAlchemy only calls commit() of the connection that the pool handed out, so
we wrap that. COMMIT and ROLLBACK in SQL of the caller's own are not noticed; what they
leave behind is cleaned up before the pool hands the connection out again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any
from weakref import ref

from sqlalchemy import Connection, Pool, event

_INFO = "sa_jobqueue.dialects.after_commit"


class TransactionHooks(ABC):
    """What one part of the library does when a connection's transactions end.

    The methods get the driver's own connection, below the pool's.
    """

    def will_commit(self, driver: Any, errors: type[Exception]) -> bool:
        """Tell, before a COMMIT, whether the server will really commit."""
        return True

    @abstractmethod
    def after_end(self, driver: Any, *, committed: bool) -> None:
        """Act on the end of a transaction; none is open now."""

    @abstractmethod
    def end_interrupted(self) -> None:
        """Note that COMMIT or ROLLBACK raised: nobody knows whether the server did it."""

    @abstractmethod
    def after_end_failed(self, error: Exception) -> None:
        """Log that :meth:`after_end` failed; the transaction itself has ended well."""

    @abstractmethod
    def on_return(self, driver: Any) -> None:
        """Leave nothing behind: the connection goes back to its pool."""


def hooks_of(connection: Connection, name: str) -> TransactionHooks | None:
    """Return the hooks that this name has on a connection, since it left its pool."""
    found: TransactionHooks | None = connection.info.get(_INFO, {}).get(name)
    return found


def add_hooks(connection: Connection, name: str, hooks: TransactionHooks) -> None:
    """Call hooks at the end of a connection's transactions, until it is back in its pool."""
    added = connection.info.setdefault(_INFO, {})
    added[name] = hooks
    if len(added) == 1:
        _wrap_ends(connection, added)
        _watch_returns()


def _wrap_ends(connection: Connection, added: dict[str, TransactionHooks]) -> None:
    pooled: Any = connection.connection
    errors = connection.dialect.loaded_dbapi.Error
    for name in ("commit", "rollback"):
        vars(pooled)[name] = _wrapped(pooled, name, added, errors)


def _wrapped(
    pooled: Any, name: str, added: dict[str, TransactionHooks], errors: type[Exception]
) -> Callable[[], None]:
    """Return commit or rollback of a pooled connection, with the hooks called after it."""
    weak = ref(pooled)  # no cycle: a dropped connection must return to its pool at once

    def end() -> None:
        driver = weak().dbapi_connection  # type: ignore[union-attr]  # it runs its own method
        called = list(added.values())
        try:
            committing = [
                name == "commit" and hooks.will_commit(driver, errors) for hooks in called
            ]
            getattr(driver, name)()
        except BaseException:
            for hooks in called:
                hooks.end_interrupted()
            raise
        for hooks, committed in zip(called, committing, strict=True):
            try:
                hooks.after_end(driver, committed=committed)
            except errors as error:
                hooks.after_end_failed(error)

    return end


def _watch_returns() -> None:
    """Have everything given back before a connection is handed out again.

    Listens to every pool: after Engine.dispose() a connection still belongs to the
    engine's previous pool.
    """
    if not event.contains(Pool, "reset", _on_reset):
        event.listen(Pool, "reset", _on_reset)


def _on_reset(driver: Any, record: Any, state: Any) -> None:
    added = record.info.pop(_INFO, None) if record is not None else None
    if added is None or state.terminate_only or not state.asyncio_safe:
        return
    for hooks in added.values():
        hooks.on_return(driver)


def fetch_all(driver: Any, statement: str) -> Sequence[Any]:
    """Run a statement on a driver's own connection, and return its rows."""
    cursor = driver.cursor()
    cursor.execute(statement)
    found = list(cursor.fetchall())
    cursor.close()
    return found
