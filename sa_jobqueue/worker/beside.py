"""The chores for the tables of control and of schedules, which stand beside the queues.

Their modules are loaded only if the metadata has such tables.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from ..model.beside import CONTROL, SCHEDULES, beside
from ..queue import JobQueue
from .chore import Chore
from .hands import Hands
from .lanes import Lane
from .owner_name import OwnerName
from .transactions import Transactions

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


def check_declarations(lanes: Sequence[Lane[Any]]) -> None:
    """Refuse queues with a schedule that has no name, which would never run.

    Raises:
        ArgumentError: names the schedule.
    """
    queues = [lane.queue for lane in lanes if lane.queue.declares_schedules]
    if queues:
        from ..schedules.registry import refuse_nameless

        refuse_nameless(queues)


def _lanes_beside(lanes: Sequence[Lane[Any]], what: str) -> list[tuple[Any, list[Lane[Any]]]]:
    """Return the tables in the metadata of the lanes, each with its lanes; usually one."""
    found: dict[int, tuple[Any, list[Lane[Any]]]] = {}
    for lane in lanes:
        known = beside(lane.queue.mapping, what)
        if known is not None:
            found.setdefault(id(known), (known, []))[1].append(lane)
    return list(found.values())


def _warn_of_missing_schedules(lanes: Sequence[Lane[Any]]) -> None:
    for lane in lanes:
        queue = lane.queue
        if beside(queue.mapping, SCHEDULES) is None and _is_declared_for(queue):
            log.warning(
                "%r declares schedules, but no worker runs them: make Schedules(metadata) with the "
                "metadata of its table",
                queue,
            )


def _is_declared_for(queue: JobQueue[Any]) -> bool:
    """Tell whether a queue has schedules, of its own or by another JobQueue of the same jobs."""
    if queue.declares_schedules:
        return True
    registry = sys.modules.get("sa_jobqueue.schedules.registry")  # without it nobody declares
    return registry is not None and bool(registry.declared_elsewhere([queue]))
