"""start_round(): the same rows again and again, such as a mailing to the same subscribers.

::

    class Subscriber(JobMixin, RoundMixin, Base): ...

    number = start_round(engine, Subscriber, Subscriber.confirmed)

    mails = JobQueue(Subscriber, Subscriber.round == number)       # or any round: the oldest first
    claimed = mails.claim(session, owner=owner, limit=100)

    round_progress(session, Subscriber)          # 12,000 of 100,000 are done

A round is a number that rows have. Starting a round makes its rows claimable once more;
rows that somebody has claimed join it when their claim ends. With an Engine each chunk
commits, and the next call with the same criteria finishes a start that was killed. See
docs/rounds.md.

Limits: a row is in one round at a time, the newest that took it. Rows whose status is a
JobQueue's own, which the class does not declare, are left alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import ColumnElement, Engine

from ..errors import ArgumentError
from ..events.claimable import note_claimable
from ..events.notes import note
from ..model.mapping import QueueMapping, any_mapping_of
from ..model.round_table import round_table
from ..sessions.writer import AnySession, writing
from .starter import RoundStart, RoundStarter, round_event

#: How many rows one UPDATE, and with an Engine one transaction, puts into a round.
CHUNK = 10_000


def start_round(
    session_or_engine: AnySession | Engine,
    entity: type[Any],
    *where: ColumnElement[bool],
    chunk: int | None = CHUNK,
    on_progress: Callable[[RoundStart], object] | None = None,
) -> int:
    """Make rows claimable once more, in the next round; return its number.

    Unclaimed and finished rows become unclaimed, without an owner, with 0 attempts.
    Claimed rows only get a note: whatever ends the claim leaves them unclaimed in the new
    round. Readers are not blocked, and claimers pass over the rows of a chunk until its
    commit.

    Args:
        session_or_engine: with a Session, the whole start is in the caller's transaction,
            nothing is committed, and the round is always new. With an Engine, each
            chunk is committed, and its rows can be claimed at once. The next call with the
            same criteria finishes an interrupted start. Two calls with an Engine go one
            after the other.
        entity: a mapped class with RoundMixin.
        where: criteria, joined by AND; each row is compared once.
        chunk: how many rows one UPDATE takes; None takes all of them in one UPDATE.
        on_progress: called after each chunk; with an Engine, after its commit.

    Raises:
        ArgumentError: a class without RoundMixin, a chunk below 1, or criteria that join
            other tables.
        LockLost: with an Engine, the lock that keeps others from starting was lost: call
            start_round() again.
        UnsupportedDatabase: with an Engine, there is no named lock, as through a pooler.
        DBAPIError: the database's own error; see :func:`is_transient`.
    """
    mapping = mapping_with_rounds(entity)
    mapping.refuse_other_tables(where)
    starter = RoundStarter(mapping, where, _checked_chunk(chunk), on_progress)
    if isinstance(session_or_engine, Engine):
        return starter.start_in_chunks(session_or_engine)
    with writing(session_or_engine, mapping) as writer:
        with writer.atomically():
            number = starter.start_in_transaction(writer)
        if mapping.listeners:
            note(writer, mapping, round_event(mapping, None))
        if mapping.wakes:
            note_claimable(writer, mapping)
    return number


def mapping_with_rounds(entity: Any) -> QueueMapping:
    """Return the mapping of a class with RoundMixin.

    Raises:
        ArgumentError: a class without RoundMixin, or with it in another table than the status.
    """
    mapping = any_mapping_of(entity)
    round_table(mapping)  # refuses a class without rounds
    if mapping.column("round").table is not mapping.table:
        raise ArgumentError(
            f"the round of {mapping} is in another table than its status: put RoundMixin into the "
            "class that has JobMixin"
        )
    return mapping


def _checked_chunk(chunk: int | None) -> int | None:
    if chunk is not None and (not isinstance(chunk, int) or isinstance(chunk, bool) or chunk < 1):
        raise ArgumentError(f"chunk is the number of rows for one UPDATE, at least 1: {chunk!r}")
    return chunk
