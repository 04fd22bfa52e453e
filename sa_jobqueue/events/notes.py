"""What the verbs note, and when their listeners are called: after the COMMIT.

A verb asks ``if mapping.listeners:`` before it makes an event. The event waits for the end of the
verb's transaction, and is dropped with a savepoint or a transaction that is rolled back. Under
AUTOCOMMIT it waits for nothing. In a session that joined a transaction of its Connection it waits
for the session's commit.
"""

from __future__ import annotations

import itertools
import logging
import os
import secrets
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ..model.mapping import QueueMapping
from ..sessions.transaction_end import AtEnd, TransactionEnd, call_at_end, watch_commit
from ..sessions.writer import Writer
from .connection_end import call_at_connection_end
from .event import Event
from .listener import Listener, Recorder, called_on, calling_queue

log = logging.getLogger("sa_jobqueue.events")

_numbers = itertools.count(1)
_process = secrets.token_hex(6)


def note(writer: Writer, mapping: QueueMapping, event: Event) -> None:
    """Note an event of a verb: its listeners are called once it is committed."""
    called = _called(mapping, event, writer)
    if called is not None:
        # A claim that was lost is lost however the transaction ends.
        call_at_end_of(writer, called, of_transaction=event.name == "after_lost")


def call_at_end_of(writer: Writer, call: AtEnd, *, of_transaction: bool = False) -> None:
    """Call a function when the verb's savepoint or transaction has ended; in AUTOCOMMIT at once.

    Args:
        of_transaction: call it at the end of the transaction, also in a session's savepoint.
    """
    if writer.in_autocommit:
        call(TransactionEnd.COMMITTED)
    elif writer.of_session is None:
        call_at_connection_end(writer.connection, call)
    else:
        watch_commit(writer.of_session, writer.connection)
        call_at_end(writer.of_session, call, of_transaction=of_transaction)


def tell(mapping: QueueMapping, event: Event) -> None:
    """Tell of an event that has no transaction."""
    called = _called(mapping, event, None)
    if called is not None:
        called(TransactionEnd.COMMITTED)


def _called(
    mapping: QueueMapping, event: Event, writer: Writer | None
) -> Callable[[TransactionEnd], None] | None:
    """Note an event with the recorders; return what is to be called when its end is known."""
    heard_by = [listener for listener in mapping.listeners if listener.hears(event.name)]
    if not heard_by:
        return None
    event, number = replace(event, queue=calling_queue()), _next_number()
    for listener in heard_by:
        if isinstance(listener.told, Recorder):
            listener.told.noted(event, number, writer)

    def ended(end: TransactionEnd) -> None:
        for listener in heard_by:
            _call(listener, event, number, end)

    return ended


def _next_number() -> str:
    return f"{_process}-{os.getpid()}-{next(_numbers)}"  # a forked process has our `_process`


def _call(listener: Listener, event: Event, number: str, end: TransactionEnd) -> None:
    told: Any = listener.told
    try:
        if isinstance(told, Recorder):
            told.ended(number, end)
        elif end is TransactionEnd.COMMITTED or event.name == "after_lost":
            with called_on(None):  # what the listener calls is not of the queue
                told(event)
    except Exception as error:  # the verb is committed: no listener may make it look failed
        log.error("a listener of %s failed: %s", event.name, error, exc_info=error)
