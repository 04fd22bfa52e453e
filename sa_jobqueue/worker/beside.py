"""The chores for the tables of control and of schedules, which stand beside the queues.

Their modules are loaded only if the metadata has such tables.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from ..model.keys import CONTROL, SCHEDULES, beside
from .chore import Chore
from .hands import Hands
from .lanes import Lane
from .owner_name import OwnerName
from .transactions import Transactions

#: Loaded by the first call of every(): without it nobody declares schedules.
_DECLARED = "sa_jobqueue.schedules.declared"

log = logging.getLogger("sa_jobqueue.worker")


@contextmanager
def chores_beside(
    lanes: Sequence[Lane[Any]],
    *,
    hands: Hands[Any],
    transactions: Transactions,
    owner_name: OwnerName,
    wake: Callable[[], None],
) -> Iterator[list[Chore]]:
    """Give a run the chores of the tables in the metadata of its queues.

    Args:
        wake: makes the worker claim at once, unless it has an interval.
    """
    chores: list[Chore] = []
    with ExitStack() as stack:
        for tables, of_lanes in _lanes_beside(lanes, CONTROL):
            from .control import Control

            control: Control[Any] = Control(
                tables,
                of_lanes,
                hands=hands,
                transactions=transactions,
                owner_name=owner_name,
            )
            chores.append(stack.enter_context(control))
        for schedules, of_lanes in _lanes_beside(lanes, SCHEDULES):
            from .scheduler import Scheduler

            queues = [lane.queue for lane in of_lanes]
            chores.append(Scheduler(schedules, queues, transactions=transactions, wake=wake))
        _warn_of_missing_schedules(lanes)
        yield chores


def _lanes_beside(lanes: Sequence[Lane[Any]], what: str) -> list[tuple[Any, list[Lane[Any]]]]:
    """Return the tables in the metadata of the lanes, each with its lanes; usually one."""
    found: dict[int, tuple[Any, list[Lane[Any]]]] = {}
    for lane in lanes:
        known = beside(lane.queue.mapping, what)
        if known is not None:
            found.setdefault(id(known), (known, []))[1].append(lane)
    return list(found.values())


def _warn_of_missing_schedules(lanes: Sequence[Lane[Any]]) -> None:
    registry = sys.modules.get(_DECLARED)
    if registry is None:
        return
    for queue in [lane.queue for lane in lanes]:
        if beside(queue.mapping, SCHEDULES) is None and registry.declared_for([queue]):
            log.warning(
                "%r declares schedules, but no worker runs them: make Schedules(metadata) with the "
                "metadata of its table",
                queue,
            )
