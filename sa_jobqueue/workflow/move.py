"""Move a job to the status of its next step, or to one in which it waits for a signal.

A job that ends keeps its owner, and owner_date becomes the time of its end: prune() reads it. A
job that goes on has no owner and no owner_date, as after a release. Its attempts are counted
from 0, since the next step is different work.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import inspect, select
from sqlalchemy.orm import InstanceState

from ..errors import ArgumentError
from ..events.claimable import note_claimable
from ..events.notes import note
from ..fence.change import Change
from ..fence.claim import jobs_by_token, jobs_with_keys
from ..fence.token import Fence
from ..fence.write import write
from ..model.keys import key_is_in, key_values
from ..model.mapping import QueueMapping
from ..model.transitions import ended, moved_on, reset
from ..sessions.show import loaded, show_expired
from ..sessions.writer import AnyConnection, AnySession, writing
from ..verbs.manage import CHANGE_KEYS, change_event, update_statement
from ..verbs.own_values import OwnValues, with_own_values


def move_on(session: AnyConnection, jobs: Any, word: str, values: OwnValues | None) -> None:
    """Finish the present step of jobs, and give them the status of the next step.

    Raises:
        ArgumentError, ClaimLost, NotClaimed: as for :func:`sa_jobqueue.complete`.
    """
    change = Change("complete", moved_on(word), frees=True)
    write(session, with_own_values([(change, jobs_by_token(jobs))], values))


def move_waiting(
    session: AnySession,
    mapping: QueueMapping,
    identity: tuple[Any, ...],
    before: str,
    after: str,
    *,
    final: bool,
) -> bool:
    """Move a job that nobody has claimed, by one UPDATE; tell whether its status was `before`."""
    values = ended(after) if final else reset(after)
    with writing(session, mapping) as writer:
        statement = update_statement(mapping, writer, values, (before,))
        moved = writer.core(statement, {CHANGE_KEYS: key_values([identity])}).rowcount
        show_expired(writer.session, mapping, loaded(writer.session, mapping, [identity]))
        if mapping.listeners and moved:
            note(writer, mapping, change_event(mapping, "signal", [identity]))
        if mapping.wakes and moved and not final:
            note_claimable(writer, mapping)
    return moved > 0


def status_now(session: AnySession, mapping: QueueMapping, identity: tuple[Any, ...]) -> str | None:
    """Read the status of a row; None: there is no such row."""
    with writing(session, mapping, reads=True) as writer:
        here = key_is_in(mapping, CHANGE_KEYS, writer.database)
        read = select(mapping.status_word).where(here)
        status: str | None = writer.core(read, {CHANGE_KEYS: key_values([identity])}).scalar()
    return status


def identity_of(mapping: QueueMapping, job: Any) -> tuple[Any, ...]:
    """Return the primary key of a job, given as an entity, a fence or its key.

    Raises:
        ArgumentError: a job of another class, or a key of another length.
    """
    if isinstance(job, Fence) or isinstance(inspect(job, raiseerr=False), InstanceState):
        ((_, found, identity),) = jobs_with_keys(job)
        if found.table is not mapping.table:
            raise ArgumentError(f"a job of {mapping} is needed, not one of {found}")
        return identity
    identity = tuple(job) if isinstance(job, tuple | list) else (job,)
    if len(identity) != len(mapping.keys):
        raise ArgumentError(
            f"the primary key of {mapping} has {len(mapping.keys)} columns, and {job!r} has "
            f"{len(identity)}"
        )
    return identity
