"""A finish that the statement of a claim carries: the turn of a batch in one round trip.

::

    WITH sa_jobqueue_finished AS (DELETE .. WHERE <fence> RETURNING id)
    , sa_jobqueue_claimed AS (UPDATE .. WHERE <every job was finished, or leave their keys>
        AND id = ANY(ARRAY(SELECT id .. WHERE status = 'unclaimed' ..)) RETURNING ..)
    SELECT .. FROM sa_jobqueue_claimed ORDER BY ..

The criterion names no column. So PostgreSQL evaluates it once, before it looks for ready rows.
The finish locks its rows first, as it does in a statement of its own, and nothing is locked or
claimed if a job was lost.

The rows of the result are those of the claim. If there are none, either no job was ready, or
not every job was finished. Then the criterion has left the keys of the finished jobs in a
setting of the transaction, and another statement reads them. To return them beside the
claimed rows took 60 to 110 microseconds more, of 300 for a turn of one job.

Under AUTOCOMMIT the statement is the whole transaction, and the setting would end with it. If not
every job was finished, the criterion fails there, which undoes the statement. The turn then takes
two statements.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Column,
    ColumnElement,
    Integer,
    Text,
    Uuid,
    bindparam,
    case,
    cast,
    func,
    literal_column,
    null,
    select,
)

from ..databases import Database
from ..model.keys import MOST_KEYS
from ..model.mapping import QueueMapping
from ..model.transitions import OWNER, ClaimedValues
from ..sessions.writer import Writer, built_once
from .claim import FencedJobs
from .statements import ONLY_KEYS, fence_parameters, fenced_write
from .token import Change, FenceKind, Identity
from .write import UNSHOWN, Found

#: The most jobs that a claim's statement finishes in a transaction. Jobs that others claim
#: meanwhile look ready to it, and the longer the finish takes, the more of them it passes over.
#: With four processes, turns by one statement had 1.06, 1.08, 0.97 and 0.93 of the rate of turns
#: by two, at batches of 1, 10, 30 and 100. Under AUTOCOMMIT one statement saves three round trips.
MOST_CARRIED = 15

#: The parameter for the number of jobs to finish.
_COUNT = "sa_jobqueue_count"


@dataclass(frozen=True, eq=False)
class CarriedFinish:
    """The statement of a finish, as a part of a claim's statement.

    Attributes:
        alone: the statement commits by itself.
    """

    database: Database
    mapping: QueueMapping
    statement: Any
    alone: bool

    @cached_property
    def is_complete(self) -> ColumnElement[bool]:
        """The criterion that every job was finished.

        If not, it leaves the keys of those that were. In a statement that commits by itself it
        fails.
        """
        finished = self.statement.cte("sa_jobqueue_finished")
        (key,) = finished.c
        every_job = func.count() == bindparam(_COUNT, type_=Integer)
        if self.alone:
            otherwise = self.database.undoing(func.count())
        else:
            keys = func.coalesce(cast(func.array_agg(key), Text), literal_column("'{}'"))
            otherwise = self.database.leaving(keys)
        left = case((every_job, null()), else_=otherwise)
        return select(left).select_from(finished).scalar_subquery().is_(None)


@dataclass(frozen=True, eq=False)
class CarriedJobs:
    """The jobs of a turn, with the finish that its claim carries.

    Attributes:
        keys: of the jobs, each once.
    """

    finish: CarriedFinish
    part: FencedJobs
    keys: list[Identity]

    @property
    def parameters(self) -> dict[str, Any]:
        """The parameters of the finish, but for the owner: it is that of the claim, too."""
        given = fence_parameters(self.part.token, self.keys)
        del given[OWNER]
        return {**given, _COUNT: len(self.keys)}

    def finished(self, writer: Writer, *, claimed: bool) -> Found:
        """Return the jobs that were finished.

        Args:
            claimed: the statement has claimed jobs, so it has finished all.
        """
        if claimed or self.finish.alone:
            return dict.fromkeys(self.keys, UNSHOWN)
        database = writer.database
        left = database.left_text()
        if not writer.core(select(left)).scalar():
            return dict.fromkeys(self.keys, UNSHOWN)
        (key,) = self.finish.mapping.keys
        # The table's integers may have more bits than the model's.
        kind = BigInteger() if isinstance(key.type, Integer) else key.type
        each = func.unnest(cast(left, ARRAY(kind)), type_=kind)
        finished = writer.core(select(each)).all()
        writer.core(select(database.leaving(literal_column("''"))))
        return dict.fromkeys(map(tuple, finished), UNSHOWN)


def carried(
    writer: Writer, mapping: QueueMapping, change: Change, part: FencedJobs, owner: str | None
) -> CarriedJobs | None:
    """Return the finish of jobs as a part of the next claim; None where it must stand alone.

    Args:
        owner: claims the next jobs.
    """
    token, keys = part.token, list(dict.fromkeys(part.identities))
    most = MOST_KEYS if writer.in_autocommit else MOST_CARRIED
    plain = token.hold is None and token.owner == owner and 0 < len(keys) <= most
    if not plain or not _can_carry(mapping, writer.database, change):
        return None
    what = (change.values, change.word, change.own, change.cases)
    finish = _carried_finish(mapping, writer, what, token.kind(), writer.in_autocommit)
    return CarriedJobs(finish, part, keys)


def _can_carry(mapping: QueueMapping, database: Database, change: Change) -> bool:
    """Tell whether a finish can be a part of a claim.

    Both see the table as it was when their statement began: so a finish that may make a row
    ready, as with rounds, comes first. And SQLAlchemy compiles no two UPDATEs in a statement
    whose values a function of the model makes (`onupdate`).
    """
    key, *more_keys = mapping.keys
    if more_keys or not isinstance(key.type, Integer | Uuid):
        return False
    if not database.leaves_texts or change.parameters:
        return False
    return change.values is None or not (mapping.has("round") or mapping.onupdate_keys)


@built_once
def _carried_finish(
    mapping: QueueMapping,
    writer: Writer,
    what: tuple[ClaimedValues | None, str, tuple[Column[Any], ...], int],
    kind: FenceKind,
    alone: bool,
) -> CarriedFinish:
    statement = fenced_write(mapping, writer, what, kind, ONLY_KEYS).statement
    return CarriedFinish(writer.database, mapping, statement, alone)
