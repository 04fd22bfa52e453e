"""The states of a load, and which call leads from where to where.

:data:`TRANSITIONS` is the diagram of ``docs/bulk.md``; a test holds the two against
each other. ``killed`` is no call: it is what a load is found in whose process is gone.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from ..errors import InvalidState


class LoadState(StrEnum):
    """Where a load stands.

    STARTING: there is no log yet; it is never stored.
    PREPARING: the redo log is being written, or is whole; no row is in the table.
    INSERTING: some batches may be in the table.
    UNPREPARED: the process ended while PREPARING.
    BLOCKED: it ended while INSERTING, or while a rollback was under way.
    CANCELLED: the rollback is done: none of the load's rows is in the table.
    CLEANING: all rows are in the table; the logs are kept.
    FINISHED: the logs are gone; this, too, is never stored.
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

#: Calls that find nothing to do in these states, and do nothing.
IDLE: Mapping[str, frozenset[LoadState]] = {
    "restore": frozenset({STARTING, PREPARING, CANCELLED, CLEANING, FINISHED}),
    "rollback": frozenset({CANCELLED}),
    "run": frozenset({CLEANING}),
}

#: run() does what another call does.
RUNS: Mapping[LoadState, str] = {
    PREPARING: "insert",
    UNPREPARED: "restore",
    BLOCKED: "restore",
}

_BUSY = INSERTING  # one call has it, and others have to wait or to stop it


def after_kill(stored: LoadState) -> LoadState:
    """Return what a stored state means once its process is gone."""
    return dict(TRANSITIONS["killed"]).get(stored, stored)


def calls_in(state: LoadState) -> list[str]:
    """Name the calls that fit a state, those that do nothing left out."""
    if state is _BUSY:
        return ["stop"]
    calls = [
        verb
        for verb, changes in TRANSITIONS.items()
        if verb != "killed" and any(here is state for here, _ in changes)
    ]
    return sorted({*calls, *(["run"] if state in RUNS else [])})


def check_call(verb: str, state: LoadState) -> None:
    """Refuse a call that does not fit.

    Raises:
        InvalidState: names the calls that do.
    """
    if verb not in calls_in(state) and state not in IDLE.get(verb, ()):
        raise InvalidState(verb, state, calls_in(state))


def check_change(verb: str, here: LoadState, there: LoadState) -> None:
    """Hold the code to the diagram: a change that is not drawn is a mistake of ours."""
    assert (here, there) in TRANSITIONS[verb], (verb, here, there)
