"""A fenced locking read: is a claim still ours, and stays so until the transaction ends?"""

from __future__ import annotations

from sqlalchemy import Select, select

from ..model.keys import key_values, locked_by_key
from ..model.mapping import QueueMapping
from ..model.transitions import OWNER
from ..sessions.built_once import built_once
from ..sessions.writer import Writer
from .statements import DATES, KEYS, FenceKind, is_ours
from .token import Fence


def lock_claim(writer: Writer, mapping: QueueMapping, fence: Fence) -> bool:
    """Lock the row of a claim; tell whether the claim was still ours.

    The lock is the job's lease until the transaction ends: nobody takes the job back meanwhile.
    Rows of other tables may go on referencing it, where the database has such a lock.

    Args:
        fence: of a claim that is marked.
    """
    token = fence.token
    kind = FenceKind.of(token)
    parameters = {
        KEYS: key_values([fence.identity]),
        OWNER: token.owner,
        DATES: kind.dates(token),
    }
    return writer.core(_locking_read(mapping, writer, kind), parameters).first() is not None


@built_once
def _locking_read(mapping: QueueMapping, writer: Writer, kind: FenceKind) -> Select[tuple[object]]:
    database = writer.database
    read = select(*mapping.keys).where(is_ours(mapping, database, kind))
    return locked_by_key(read, mapping, database, keep_references=True)
