"""Targets: what a user names as MODULE, for all its queues, or as MODULE:NAME."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterable
from difflib import get_close_matches
from operator import attrgetter
from typing import Any, TypeAlias

import click

from ..errors import ArgumentError
from ..queue import JobQueue
from ..worker import Lane
from ..workflow import Workflow
from .printing import in_one_line

Found: TypeAlias = "JobQueue[Any] | Lane[Any]"


def load_target(target: str) -> Any:
    """Import what ``MODULE:NAME`` names; modules of the current directory are found, too.

    Raises:
        ClickException: it cannot be imported; says why in one line.
    """
    module_name, _, name = target.partition(":")
    if not module_name or not name:
        raise click.ClickException(f"{target!r} is not MODULE:NAME, as in shop.models:Email")
    found = _import(module_name)
    try:
        return attrgetter(name)(found)
    except AttributeError as error:
        close = " or ".join(map(repr, get_close_matches(str(error.name), dir(error.obj))))
        hint = f"; did you mean {close}?" if close else _queues_there(module_name)
        raise click.ClickException(f"{module_name!r} has no {name!r}{hint}") from error


def load_lanes(targets: Iterable[str]) -> dict[str, Found]:
    """Import queues and lanes by the names of their targets; each counts once.

    Raises:
        ClickException: a target is no queue, or a module has none.
    """
    found: dict[str, Found] = {}
    for target in targets:
        named = {target: _load_queue(target)} if ":" in target else _in_module(target)
        if not named:
            raise click.ClickException(
                f"{target!r} has no JobQueue and no workflow: name a class, as in {target}:Email"
            )
        for name, it in named.items():
            lanes: dict[str, Any] = {name: it}
            if isinstance(it, Workflow):
                lanes = {f"{name}.{step.name}": step for step in it}
            for each, lane in lanes.items():
                if _queue_of(lane) not in map(_queue_of, found.values()):
                    found[each] = lane
    return found


def load_queues(targets: Iterable[str]) -> dict[str, JobQueue[Any]]:
    """Import queues by the names of their targets; a workflow counts for its steps."""
    return {name: _queue_of(each) for name, each in load_lanes(targets).items()}


def _queue_of(found: Found) -> JobQueue[Any]:
    return found.queue if isinstance(found, Lane) else found


def _load_queue(target: str) -> Found | Workflow[Any]:
    """Import a JobQueue, tasks, a workflow or its step, or the queue of a mapped class."""
    found = _synchronous(load_target(target))
    if isinstance(found, JobQueue | Lane | Workflow):
        return found
    try:
        return JobQueue(found)
    except ArgumentError as error:
        hint = _queues_there(target.partition(":")[0])
        raise click.ClickException(f"{in_one_line(error)}{hint}") from error


def _in_module(name: str) -> dict[str, Found | Workflow[Any]]:
    """Return the queues, lanes and workflows of a module, also imported ones, in its order."""
    values = {f"{name}:{each}": _synchronous(it) for each, it in vars(_import(name)).items()}
    kinds = (JobQueue, Lane, Workflow)
    return {target: found for target, found in values.items() if isinstance(found, kinds)}


def _queues_there(module_name: str) -> str:
    there = ", ".join(_in_module(module_name))
    return f"; the queues there are {there}" if there else ""


def _synchronous(found: Any) -> Any:
    """Return the queue of an AsyncJobQueue, and anything else as it is."""
    loaded = sys.modules.get("sa_jobqueue.asyncio")
    is_async = loaded is not None and isinstance(found, loaded.AsyncJobQueue)
    return found.sync_queue if is_async else found


def _import(name: str) -> Any:
    here = os.getcwd()
    if here not in sys.path and "" not in sys.path:  # a console script's path has neither
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except Exception as error:  # whatever the user's module raises
        reason = str(error) if isinstance(error, SyntaxError) else in_one_line(error)
        way = f'python -c "import {name}" shows where'
        names = (name, name.partition(".")[0])
        if isinstance(error, ModuleNotFoundError) and error.name in names:
            way = (
                "write a module as in an import, such as shop.queues: it is looked for in the "
                "current folder and on PYTHONPATH"
            )
        raise click.ClickException(
            f"cannot import {name!r}: {type(error).__name__}: {reason}; {way}"
        ) from error
