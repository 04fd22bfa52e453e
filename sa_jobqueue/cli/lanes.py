"""The lanes of a worker: the queues and steps that ``work`` is given, with their handlers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import click

from ..queue import JobQueue
from ..worker import Lane, lane_of
from ..workflow import Step, Workflow
from .targets import load_handler, load_queue_or_workflow, load_queues_of_module

#: A queue, a step or a workflow, by the name of its target.
Named: TypeAlias = "tuple[str, JobQueue[Any] | Step[Any] | Workflow[Any]]"


def load_lanes(
    targets: Sequence[str], handler: str | None, step_names: Sequence[str]
) -> dict[str, Lane[Any]]:
    """Return the lanes of a worker by the names of their targets; each counts once.

    Args:
        targets: MODULE, for all that it has, or MODULE:QUEUE.
        handler: MODULE:FUNCTION, for a queue that has no handler.
        step_names: the steps of a workflow that are wanted; none: all of them.

    Raises:
        ClickException: a target has nothing to work on, or has a handler too many or too few.
    """
    if handler is not None:
        return lane_with(_only(targets, "--handler"), handler)
    if step_names:
        return steps_named(_only(targets, "--step"), step_names)
    return distinct(lane for target in targets for lane in lanes_of_target(target))


def lane_with(target: str, handler: str) -> dict[str, Lane[Any]]:
    """Return the lane of a queue without a handler, with the handler that is named."""
    found = load_queue_or_workflow(target)
    if not isinstance(found, JobQueue) or found.handled_by is not None:
        raise click.UsageError(f"{target} has a handler already: leave --handler out")
    return {target: Lane(found, load_handler(handler))}


def steps_named(target: str, names: Sequence[str]) -> dict[str, Lane[Any]]:
    """Return the named steps of a workflow, in its order."""
    found = load_queue_or_workflow(target)
    if not isinstance(found, Workflow):
        raise click.UsageError(f"{target} is not a workflow: leave --step out")
    known = {step.name: step for step in found}
    for name in names:
        if name not in known:
            raise click.UsageError(f"there is no step {name!r}; there are {', '.join(known)}")
    return {f"{target}.{name}": step for name, step in known.items() if name in names}


def lanes_of_target(target: str) -> Iterator[tuple[str, Lane[Any]]]:
    """Find the lanes of MODULE or MODULE:QUEUE.

    Raises:
        ClickException: there is none.
    """
    if ":" not in target:
        yield from lanes_of_module(target)
        return
    found = load_queue_or_workflow(target)
    if is_unhandled(found):
        raise click.UsageError(
            f"{target} has no handler: declare one with @queue.handler, or give "
            "--handler MODULE:FUNCTION"
        )
    yield from lanes_in((target, found))


def lanes_of_module(module: str) -> Iterator[tuple[str, Lane[Any]]]:
    """Find the lanes of a module: of all its workflows, and its queues that have a handler.

    Raises:
        ClickException: nothing in the module has a handler.
    """
    handled = [named for named in load_queues_of_module(module) if not is_unhandled(named[1])]
    if not handled:
        without = ", ".join(unhandled_in([module]))
        raise click.ClickException(
            f"{module!r} has no queue with a handler{without and f', only {without} without one'}: "
            "declare one with @queue.handler, or name a queue, MODULE:QUEUE, and give "
            "--handler MODULE:FUNCTION"
        )
    for named in handled:
        yield from lanes_in(named)


def unhandled_in(targets: Iterable[str]) -> list[str]:
    """Name the queues without a handler in the modules among the targets."""
    modules = [target for target in targets if ":" not in target]
    return [
        name
        for module in modules
        for name, found in load_queues_of_module(module)
        if is_unhandled(found)
    ]


def lanes_in(named: Named) -> Iterator[tuple[str, Lane[Any]]]:
    """Yield the lane of a queue or a step, or the steps of a workflow."""
    name, found = named
    if isinstance(found, Workflow):
        yield from ((f"{name}.{step.name}", step) for step in found)
    else:
        yield name, found if isinstance(found, Step) else lane_of(found)


def is_unhandled(found: object) -> bool:
    """Tell whether this is a queue that nobody handles."""
    return isinstance(found, JobQueue) and found.handled_by is None


def distinct(lanes: Iterable[tuple[str, Lane[Any]]]) -> dict[str, Lane[Any]]:
    """Return each lane once, by the first of its names."""
    queues: set[JobQueue[Any]] = set()
    found: dict[str, Lane[Any]] = {}
    for name, lane in lanes:
        if lane.queue not in queues:
            queues.add(lane.queue)
            found[name] = lane
    return found


def _only(targets: Sequence[str], option: str) -> str:
    if len(targets) > 1 or ":" not in targets[0]:
        raise click.UsageError(f"{option} is for one MODULE:QUEUE, not {', '.join(targets)}")
    return targets[0]
