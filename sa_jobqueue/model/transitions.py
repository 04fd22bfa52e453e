"""Which change of status each verb makes, and what it writes to a job's columns.

:data:`TRANSITIONS` is the state diagram of ``docs/internals/architecture.md``; a test holds the two
against each other. Below it is one function for each change: it returns the columns with
their new values. The WHERE clause names the status that a verb leaves; it is made in
``fence/statements.py`` for claimed jobs and in ``verbs/manage.py`` for the others.

A new status takes a member of JobStatus (``model/status.py``), a pair in TRANSITIONS, and a
place in FINISHED if its jobs are over. A new verb takes a line in TRANSITIONS and a
function here.

The order of the columns matters: the assignments of MySQL and MariaDB see the values that
the earlier ones wrote.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any, TypeAlias

from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    Integer,
    Null,
    and_,
    bindparam,
    case,
    func,
    literal,
    literal_column,
    not_,
    null,
    or_,
)

from ..databases.clock import utc_now
from .mapping import QueueMapping
from .status import CANCELLED, CLAIMED, DONE, FAILED, UNCLAIMED, JobStatus, status_is

TRANSITIONS: Mapping[str, frozenset[tuple[JobStatus, JobStatus]]] = {
    "claim": frozenset({(UNCLAIMED, CLAIMED)}),
    "complete": frozenset({(CLAIMED, DONE)}),
    "fail": frozenset({(CLAIMED, UNCLAIMED), (CLAIMED, FAILED)}),
    "cancel_claimed": frozenset({(CLAIMED, CANCELLED)}),
    "release": frozenset({(CLAIMED, UNCLAIMED)}),
    "reap": frozenset({(CLAIMED, UNCLAIMED), (CLAIMED, FAILED)}),
    "cancel": frozenset({(UNCLAIMED, CANCELLED)}),
    "retry": frozenset({(FAILED, UNCLAIMED), (DONE, UNCLAIMED), (CANCELLED, UNCLAIMED)}),
    "start_round": frozenset({(FAILED, UNCLAIMED), (DONE, UNCLAIMED), (CANCELLED, UNCLAIMED)}),
}

#: The statuses of jobs that are over. No claim takes them, and no partial index of claims
#: holds them.
FINISHED = (DONE, FAILED, CANCELLED)

#: The other statuses.
UNFINISHED = tuple(status for status in JobStatus if status not in FINISHED)

#: Columns with the values that a change writes to them.
Values: TypeAlias = Mapping[Column[Any], Any]


@lru_cache  # of strings only
def left_by(verb: str) -> tuple[JobStatus, ...]:
    """Return the statuses that a verb leaves, as TRANSITIONS says."""
    left = {before for before, _ in TRANSITIONS[verb]}
    return tuple(status for status in JobStatus if status in left)


def words_of(mapping: QueueMapping, statuses: Sequence[JobStatus]) -> tuple[str, ...]:
    """Return the table's words for statuses, with those that ``__queue_args__`` adds.

    The words in ``ready`` count as unclaimed, and those in ``during`` as claimed.
    """
    further = {UNCLAIMED: mapping.ready, CLAIMED: mapping.during}
    own = [mapping.word(status) for status in statuses]
    return tuple(dict.fromkeys(chain(own, *(further.get(status, ()) for status in statuses))))


# -- insert and claim ---------------------------------------------------------


def _values(mapping: QueueMapping, **roles: Any) -> dict[Column[Any], Any]:
    """Return the columns of roles with their values; a class may lack some of the roles."""
    return {mapping.column(role): value for role, value in roles.items() if mapping.has(role)}


def _parameter(mapping: QueueMapping, role: str, name: str) -> Any:
    """Return a parameter with the type of a role's column; None for a class without it."""
    return bindparam(name, type_=mapping.column(role).type) if mapping.has(role) else None


def enqueued(mapping: QueueMapping) -> Values:
    """Return what a new job holds, as literals: a parameter for each row would take longer."""
    status = mapping.literal(mapping.word(UNCLAIMED))
    zero: ColumnElement[Any] = literal_column("0")
    values = _values(mapping, status=status, priority=zero, attempts=zero, round=zero)
    most = mapping.column("max_attempts") if mapping.has("max_attempts") else None
    number = getattr(None if most is None else most.default, "arg", None)
    if isinstance(number, int):  # the default may be an expression
        values |= _values(mapping, max_attempts=literal_column(str(number)))
    return values


def claimed(mapping: QueueMapping, during: str, owner_date: Any) -> dict[Column[Any], Any]:
    """Return what claim() writes: the status `during`, the owner, the time, one more attempt."""
    owner = _parameter(mapping, "owner", OWNER)
    values = _values(mapping, status=mapping.literal(during), owner=owner, owner_date=owner_date)
    return {**values, **_counted(mapping)}


# -- changes of claimed jobs, behind their fence --------------------------------

# The parameters of the values that claims and finishes write.
OWNER, ERROR = "sa_jobqueue_owner", "sa_jobqueue_error"
NOW, SHIFT = "sa_jobqueue_now", "sa_jobqueue_shift"

#: Returns what a change writes to a claimed row; no values leave it as it is.
#:
#: The second argument tells whether the claim wrote nothing: the change then writes the owner and
#: counts the attempt. The third one is the status that the change leads to, in the table's word.
ClaimedValues: TypeAlias = Callable[[QueueMapping, bool, str], Values]


def completed(mapping: QueueMapping, unmarked: bool, then: str) -> Values:
    """Return what complete() writes: the status `then`, the time of the finish."""
    return _ended(mapping, then, unmarked=unmarked)


def failed(mapping: QueueMapping, unmarked: bool, ready: str) -> Values:
    """Return what fail() writes: `ready`, a time and no owner while attempts remain, else failed.

    The next attempt has to wait SHIFT microseconds.
    """
    ended = _ended(mapping, mapping.word(FAILED), unmarked=unmarked)
    if not mapping.has("attempts"):
        return ended
    attempts, most = mapping.column("attempts"), mapping.column("max_attempts")
    # The claim has counted this attempt; an unmarked claim has not.
    used = attempts + 1 if unmarked else attempts
    again, freed = or_(most.is_(None), used < most), _freed(mapping, ready)
    owner, run_at = mapping.column("owner"), mapping.column("run_at")
    in_future = utc_now(bindparam(SHIFT, type_=BigInteger))
    either = {
        column: case((again, freed[column]), else_=ended.get(column, owner)) for column in freed
    }
    later = _values(
        mapping,
        last_error=_parameter(mapping, "last_error", ERROR),
        run_at=case((again, in_future), else_=run_at),
    )
    return {**either, **later, **(_counted(mapping) if unmarked else {})}


def released(mapping: QueueMapping, unmarked: bool, ready: str) -> Values:
    """Return what release() writes: `ready`, no owner, and one attempt less."""
    if unmarked:  # nothing was marked; the end of the transaction frees the rows
        return {}
    return {**_freed(mapping, ready), **_counted(mapping, -1)}


def claimed_cancelled(mapping: QueueMapping, unmarked: bool, word: str) -> Values:
    """Return what cancel_claimed() writes: cancelled, the time, the reason."""
    reason = _values(mapping, last_error=_parameter(mapping, "last_error", ERROR))
    return {**_ended(mapping, word, unmarked=unmarked), **reason}


def renewed(mapping: QueueMapping, unmarked: bool, word: str) -> Values:
    """Return what renew() writes: a new owner_date, and no status."""
    if unmarked:  # no lease, so none to start again
        return {}
    return _values(mapping, owner_date=_parameter(mapping, "owner_date", NOW))


def moved_on(mapping: QueueMapping, unmarked: bool, word: str) -> Values:
    """Return what completing a workflow's step writes: the next status, as if never tried."""
    return reset(mapping, word)


def _freed(mapping: QueueMapping, word: str) -> dict[Column[Any], Any]:
    return _values(mapping, status=mapping.literal(word), owner=null(), owner_date=null())


def _ended(mapping: QueueMapping, word: str, *, unmarked: bool) -> dict[Column[Any], Any]:
    """Keep the owner, and note the time; an unmarked claim has not written its owner yet."""
    status = _values(mapping, status=mapping.literal(word))
    owner = _values(mapping, owner=_parameter(mapping, "owner", OWNER)) if unmarked else {}
    time = _values(mapping, owner_date=utc_now())
    return {**status, **owner, **time, **(_counted(mapping) if unmarked else {})}


def _counted(mapping: QueueMapping, more: int = 1) -> Values:
    if not mapping.has("attempts"):
        return {}
    attempts = mapping.column("attempts")
    return {attempts: attempts + more}


# -- reap -----------------------------------------------------------------------


def reaped(mapping: QueueMapping, ready: str, reason: str, *, failed: bool) -> Values:
    """Return what reap() writes: `ready` and no owner, or failed; last_error names the owner."""
    # The error comes first: MySQL's assignments see what earlier ones wrote.
    text = literal(f"reaped, {reason}: ") + func.coalesce(mapping.column("owner"), "nobody")
    failure = mapping.word(FAILED)
    end = _ended(mapping, failure, unmarked=False) if failed else _freed(mapping, ready)
    return or_next_round(mapping, {**_values(mapping, last_error=text), **end})


def attempts_used_up(mapping: QueueMapping) -> ColumnElement[Any]:
    """Return 1 in SQL where a claimed job has no attempt left, else 0; the claim has counted."""
    if not mapping.has("attempts"):
        return literal(0)
    attempts, most = mapping.attribute("attempts"), mapping.attribute("max_attempts")
    # A new round counts attempts from 0 again.
    stays = [not_(next_round_waits(mapping))] if mapping.has("round") else []
    return case((and_(attempts >= most, *stays), 1), else_=0)


# -- changes of jobs that nobody has ---------------------------------------------

#: Returns what a change writes to a job that nobody has claimed; the word is its new status.
UnclaimedValues: TypeAlias = Callable[[QueueMapping, str], Values]


def ended(mapping: QueueMapping, word: str) -> Values:
    """Return what cancel() writes: a finished status, and the time, by which prune() goes."""
    return _ended(mapping, word, unmarked=False)


def expired(mapping: QueueMapping, word: str) -> Values:
    """Return what becomes of a job that nobody has claimed in time: cancelled, and the reason."""
    reason = _values(mapping, last_error=literal("expired: nobody has claimed it by expires_at"))
    return {**ended(mapping, word), **reason}


def reset(mapping: QueueMapping, word: str) -> Values:
    """Return what brings a job to a status as if it had never been tried."""
    return {**_freed(mapping, word), **_values(mapping, attempts=literal_column("0"))}


def retried(mapping: QueueMapping, word: str) -> Values:
    """Return what retry() writes: a status as if never tried, and due now at the latest."""
    run_at = mapping.column("run_at") if mapping.has("run_at") else null()
    due = _values(mapping, run_at=case((run_at > utc_now(), utc_now()), else_=run_at))
    return {**reset(mapping, word), **due}


#: The parameter for the priority that reprioritize() writes.
PRIORITY = "sa_jobqueue_priority"


def reprioritized(mapping: QueueMapping, word: str) -> Values:
    """Return what reprioritize() writes: the priority, and no status."""
    return {mapping.column("priority"): bindparam(PRIORITY, type_=Integer)}


# -- rounds -----------------------------------------------------------------------
#
# A row that is claimed while a round is started keeps its status, its owner and its fence:
# only `round` is written, to the number of the new round with a minus sign. Whatever ends
# the claim, a finish or a reaper, then leaves the row unclaimed in that round:
#
#     status     round             status     round             status     round
#     claimed    6      start 7    claimed    -7     complete   unclaimed  7
#
# Rows with a round below zero are all claimed, so no claim ever takes them. A class without
# JobMixin has no claimed rows; there -7 says that round 7 is done with the row.


def put_in_round(mapping: QueueMapping, number: int) -> Values:
    """Return what start_round() writes: the round, and a new start to rows that are not claimed."""
    round_ = mapping.column("round")
    if not mapping.is_queue:
        return {round_: number}
    is_claimed = status_is(mapping.column("status"), *mapping.during)
    return {round_: case((is_claimed, -number), else_=number)} | {
        column: case((is_claimed, column), else_=value)
        for column, value in _new_in_round(mapping).items()
    }


def next_round_waits(mapping: QueueMapping) -> ColumnElement[bool]:
    """Return the criterion that a newer round waits for a claimed row of a class with rounds."""
    return mapping.column("round") < 0


def or_next_round(mapping: QueueMapping, values: Values) -> Values:
    """End a claim with these values; or, if a newer round waits for the row, start it there.

    The round comes last: MySQL's assignments see the values that earlier ones wrote.
    """
    if not mapping.has("round") or mapping.column("status") not in values:
        return values
    joins, new = next_round_waits(mapping), _new_in_round(mapping)
    ending: dict[Column[Any], Any] = {
        column: _either(joins, new.get(column, column), value) for column, value in values.items()
    }
    for column, value in new.items():
        ending.setdefault(column, case((joins, value), else_=column))
    ending[mapping.column("round")] = func.abs(mapping.column("round"))
    return ending


def _new_in_round(mapping: QueueMapping) -> Values:
    """Return what a job of a new round holds; the status last, for MySQL's assignments."""
    return _values(
        mapping,
        owner=null(),
        owner_date=null(),
        attempts=literal_column("0"),
        last_error=null(),
        status=mapping.literal(mapping.word(UNCLAIMED)),
    )


def _either(joins: ColumnElement[bool], new: Any, value: Any) -> Any:
    # PostgreSQL takes a CASE whose branches are all NULL for text, and refuses it as a time.
    if isinstance(new, Null) and isinstance(value, Null):
        return value
    return case((joins, new), else_=value)
