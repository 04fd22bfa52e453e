"""Fenced locking reads: is a claim still ours, and which rows has somebody else locked?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import Select, and_, bindparam, case, or_, select

from ..model.keys import key_batches, key_values, locked_by_key
from ..model.mapping import QueueMapping
from ..model.status import status_is
from ..model.transitions import OWNER
from ..sessions.built_once import built_once
from ..sessions.writer import Writer
from .claim import FencedJobs
from .statements import DATES, KEYS, FenceKind, is_ours, keys_are
from .token import Fence, Identity, Token


def lock_claim(writer: Writer, mapping: QueueMapping, fence: Fence) -> bool:
    """Lock the row of a claim; tell whether the claim was still ours.

    The lock is the job's lease until the transaction ends: nobody takes the job back meanwhile.
    Rows of other tables may go on referencing it, where the database has such a lock.

    Args:
        fence: of a claim that is marked.
    """
    return bool(_read(writer, mapping, _locking_read, fence.token, [fence.identity]))


def is_as_finished(writer: Writer, mapping: QueueMapping, fence: Fence, then: str) -> bool:
    """Tell whether the row of a claim that is gone is as its finish leaves it.

    It is deleted, or it has the status `then` and no other owner.
    """
    database, owner = writer.database, mapping.column("owner")
    ours = or_(owner.is_(None), owner == bindparam(OWNER, type_=owner.type))
    left = and_(status_is(mapping.column("status"), then), ours)
    read = select(case((left, 1), else_=0))
    here = keys_are(mapping, database, FenceKind.of(fence.token))
    parameters = {KEYS: key_values([fence.identity]), OWNER: fence.owner}
    return writer.core(read.where(here), parameters).scalar() != 0


def lock_unlocked(writer: Writer, part: FencedJobs) -> tuple[list[Fence], list[Fence]]:
    """Lock the rows of a claim that nobody else has locked; wait for none.

    Returns:
        The jobs whose rows we have locked, and those whose claim was lost. Rows that are still
        ours, and that others have locked, are in neither.
    """
    locked: set[Identity] = set()
    ours: set[Identity] = set()
    for batch in key_batches(part.identities):
        locked |= _read(writer, part.mapping, _read_of_unlocked, part.token, batch)
        if missing := [identity for identity in batch if identity not in locked]:
            ours |= _read(writer, part.mapping, _plain_read, part.token, missing)
    return (
        [fence for fence in part.fences if fence.identity in locked],
        [fence for fence in part.fences if fence.identity not in locked | ours],
    )


def _read(
    writer: Writer,
    mapping: QueueMapping,
    statement: Callable[[QueueMapping, Writer, FenceKind], Select[Any]],
    token: Token,
    identities: list[Identity],
) -> set[Identity]:
    """Return the keys that a read behind a fence has found."""
    kind = FenceKind.of(token)
    parameters = {
        KEYS: key_values(identities),
        OWNER: token.owner,
        DATES: kind.dates(token),
    }
    read = statement(mapping, writer, kind)
    return {tuple(row) for row in writer.core(read, parameters)}


@built_once
def _locking_read(mapping: QueueMapping, writer: Writer, kind: FenceKind) -> Select[Any]:
    read = _plain_read(mapping, writer, kind)
    return locked_by_key(read, mapping, writer.database, keep_references=True)


@built_once
def _read_of_unlocked(mapping: QueueMapping, writer: Writer, kind: FenceKind) -> Select[Any]:
    read = _plain_read(mapping, writer, kind)
    return locked_by_key(read, mapping, writer.database, keep_references=True, skip_locked=True)


@built_once
def _plain_read(mapping: QueueMapping, writer: Writer, kind: FenceKind) -> Select[Any]:
    return select(*mapping.keys).where(is_ours(mapping, writer.database, kind))
