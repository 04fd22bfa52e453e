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
    UNPREPARED: the process ended while PREPARING.
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

TRANSITIONS: Mapping[str, frozenset[tuple[LoadState, LoadState]]] = {
    "prepare": frozenset({(STARTING, PREPARING), (UNPREPARED, PREPARING)}),
    "insert": frozenset({(PREPARING, INSERTING), (INSERTING, CLEANING)}),
    "run": frozenset({(STARTING, INSERTING), (INSERTING, CLEANING)}),
    "restore": frozenset(
        {(UNPREPARED, INSERTING), (BLOCKED, INSERTING), (INSERTING, CLEANING)},
    ),
    "rollback": frozenset(
        {
            (STARTING, CANCELLED),
            (PREPARING, CANCELLED),
            (UNPREPARED, CANCELLED),
            (CLEANING, BLOCKED),
            (BLOCKED, CANCELLED),
        }
    ),
    "clean": frozenset({(CLEANING, FINISHED), (CANCELLED, FINISHED)}),
    "killed": frozenset({(PREPARING, UNPREPARED), (INSERTING, BLOCKED)}),
}

#: The states in which a call has nothing to do, and does nothing.
NOTHING_TO_DO: Mapping[str, frozenset[LoadState]] = {
    "restore": frozenset({STARTING, PREPARING, CANCELLED, CLEANING, FINISHED}),
    "rollback": frozenset({CANCELLED}),
    "run": frozenset({CLEANING}),
}

#: The states in which run() does what another call does.
RUN_CALLS: Mapping[LoadState, str] = {
    PREPARING: "insert",
    UNPREPARED: "restore",
    BLOCKED: "restore",
}

_BUSY = INSERTING  # a call is under way: others wait for it, or stop it


def after_kill(stored: LoadState) -> LoadState:
    """Return the state that a stored state becomes once its process is gone."""
    return dict(TRANSITIONS["killed"]).get(stored, stored)


def calls_in(state: LoadState) -> list[str]:
    """Name the calls that fit a state, without those that would do nothing."""
    if state is _BUSY:
        return ["stop"]
    calls = [
        verb
        for verb, changes in TRANSITIONS.items()
        if verb != "killed" and any(before is state for before, _ in changes)
    ]
    return sorted({*calls, *(["run"] if state in RUN_CALLS else [])})


def check_call(verb: str, state: LoadState) -> None:
    """Refuse a call that does not fit the state.

    Raises:
        InvalidState: names the calls that fit.
    """
    if verb not in calls_in(state) and state not in NOTHING_TO_DO.get(verb, ()):
        raise InvalidState(verb, state, calls_in(state))


def check_change(verb: str, before: LoadState, after: LoadState) -> None:
    """Assert that the diagram has this change: any other is a bug of this package."""
    assert (before, after) in TRANSITIONS[verb], (verb, before, after)
