"""The states of a load, and which call leads from which state to which.

:data:`TRANSITIONS` is the diagram of ``docs/bulk.md``; a test compares the two.
``killed`` is not a call: it leads to the state in which a load is found once its
process is gone.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from ..errors import InvalidState


class LoadState(StrEnum):
    """The state of a load.

    STARTING: there is no log yet; this state is never stored.
    PREPARING: the redo log is being written, or is complete; no row is in the table.
    INSERTING: some batches may be in the table.
    UNPREPARED: the process ended while it wrote the redo log; no row is in the table.
    BLOCKED: the process ended while INSERTING, or during a rollback.
    CANCELLED: the rollback is done: none of the load's rows is in the table.
    CLEANING: all rows are in the table; the logs are kept.
    FINISHED: the logs are deleted; this state is never stored.
    """

    STARTING = "STARTING"
    PREPARING = "PREPARING"
    INSERTING = "INSERTING"
    UNPREPARED = "UNPREPARED"
    BLOCKED = "BLOCKED"
    CANCELLED = "CANCELLED"
    CLEANING = "CLEANING"
    FINISHED = "FINISHED"


(STARTING, PREPARING, INSERTING, UNPREPARED, BLOCKED, CANCELLED, CLEANING, FINISHED) = LoadState

TRANSITIONS: Mapping[str, Mapping[LoadState, LoadState]] = {
    "prepare": {STARTING: PREPARING, UNPREPARED: PREPARING},
    "insert": {PREPARING: INSERTING, INSERTING: CLEANING},
    "restore": {UNPREPARED: INSERTING, BLOCKED: INSERTING, INSERTING: CLEANING},
    "run": {
        STARTING: INSERTING,
        PREPARING: INSERTING,
        UNPREPARED: INSERTING,
        BLOCKED: INSERTING,
        INSERTING: CLEANING,
    },
    "rollback": {
        STARTING: CANCELLED,
        PREPARING: CANCELLED,
        UNPREPARED: CANCELLED,
        CLEANING: BLOCKED,
        BLOCKED: CANCELLED,
    },
    "clean": {CLEANING: FINISHED, CANCELLED: FINISHED},
    "killed": {PREPARING: UNPREPARED, INSERTING: BLOCKED},
}

#: The states in which a call has nothing to do, and does nothing.
NOTHING_TO_DO: Mapping[str, frozenset[LoadState]] = {
    "restore": frozenset({STARTING, PREPARING, CANCELLED, CLEANING, FINISHED}),
    "rollback": frozenset({CANCELLED}),
    "run": frozenset({CLEANING}),
}


def check_call(verb: str, state: LoadState) -> None:
    """Refuse a call that does not fit the state.

    Raises:
        InvalidState: names the calls that fit.
    """
    calls = [call for call, changes in TRANSITIONS.items() if state in changes and call != "killed"]
    if verb not in calls and state not in NOTHING_TO_DO.get(verb, ()):
        raise InvalidState(verb, state, sorted(calls))
