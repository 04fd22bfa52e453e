"""Targets: the queues, handlers and sources that a user names as ``MODULE:NAME``."""

from __future__ import annotations

import importlib
import os
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterable, Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import click
from sqlalchemy import Engine

from ..errors import ArgumentError
from ..queue import JobQueue
from ..workflow import Step, Workflow
from .errors import in_one_line

#: Where our own code is, and where Python's and the installed packages' code is.
OURS = f"{Path(__file__).parents[1]}{os.sep}"
INSTALLED = tuple(
    f"{sysconfig.get_path(name)}{os.sep}" for name in ("stdlib", "platstdlib", "purelib", "platlib")
)


def load_target(target: str) -> Any:
    """Import what ``MODULE:NAME`` names; modules of the current directory are found, too.

    Raises:
        ClickException: it cannot be imported; says why in one line.
    """
    module_name, _, name = target.partition(":")
    if not module_name or not name:
        raise click.ClickException(f"{target!r} is not MODULE:NAME, {_example(module_name)}")
    found: Any = _import(module_name)
    for part in name.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            hint = _other_names(module_name, part, found)
            raise click.ClickException(f"{module_name!r} has no {name!r}{hint}") from None
    return found


def _example(module_name: str) -> str:
    """Return a target that may have been meant: what the module has, or an example."""
    try:
        named = _names_in(module_name) if module_name else []
    except click.ClickException:  # there is no such module
        named = []
    return f"such as {', '.join(named)}" if named else "as in shop.models:Email"


def _other_names(module_name: str, name: str, found: Any) -> str:
    """Name what is there: names like the one that is missing, or else the module's queues."""
    close = get_close_matches(name, dir(found))
    if close:
        return f"; did you mean {' or '.join(map(repr, close))}?"
    named = _names_in(module_name)
    return f"; it has {', '.join(named)}" if named else ""


def _names_in(module_name: str) -> list[str]:
    """Name what a command may want of a module: its queues, workflows and Engine."""
    kinds = (JobQueue, Step, Workflow, Engine)
    named = vars(_import(module_name)).items()
    return [
        f"{module_name}:{name}" for name, found in named if isinstance(_synchronous(found), kinds)
    ]


def load_queue(target: str) -> JobQueue[Any]:
    """Import a JobQueue, the queue of a workflow's step, or the queue of a mapped class.

    Raises:
        ClickException: it is a whole workflow, which has several queues.
    """
    found = load_queue_or_workflow(target)
    if isinstance(found, Workflow):
        names = ", ".join(step.name for step in found)
        raise click.ClickException(f"{target} is a workflow: name one of its steps, {names}")
    return found.queue if isinstance(found, Step) else found


def load_queue_or_workflow(target: str) -> JobQueue[Any] | Step[Any] | Workflow[Any]:
    """Import a JobQueue, a workflow or one of its steps, or the queue of a mapped class."""
    found = _synchronous(load_target(target))
    if isinstance(found, JobQueue | Step | Workflow):
        return found
    try:
        return JobQueue(found)
    except ArgumentError as error:
        hint = _queue_instead(target.partition(":")[0], found)
        raise click.ClickException(f"{in_one_line(error)}{hint}") from error


def _queue_instead(module_name: str, found: Any) -> str:
    """Name the queue that a handler handles, or else the queues of the module."""
    there = [
        (name, queue)
        for name, queue in load_queues_of_module(module_name)
        if isinstance(queue, JobQueue)
    ]
    for name, queue in there:
        if queue.handled_by is not None and queue.handled_by.function is found:
            return f": it handles {name}, name this queue"
    return f"; the queues there are {', '.join(name for name, _ in there)}" if there else ""


def load_queues_of_module(
    module_name: str,
) -> list[tuple[str, JobQueue[Any] | Step[Any] | Workflow[Any]]]:
    """Import a module; return its queues, steps and workflows, also imported ones, in its order.

    Each has the name of its target.
    """
    return [
        (f"{module_name}:{name}", found)
        for name, value in vars(_import(module_name)).items()
        if isinstance(found := _synchronous(value), JobQueue | Step | Workflow)
    ]


def load_queues(targets: Iterable[str]) -> dict[str, JobQueue[Any]]:
    """Import queues by the names of their targets; each counts once, a workflow for its steps.

    Args:
        targets: MODULE, for all queues that it has, or MODULE:QUEUE.

    Raises:
        ClickException: a module has no queue.
    """
    found: dict[str, JobQueue[Any]] = {}
    for target in targets:
        for name, queue in _queues_of_target(target):
            if all(queue is not other for other in found.values()):
                found[name] = queue
    return found


def _queues_of_target(target: str) -> Iterator[tuple[str, JobQueue[Any]]]:
    if ":" in target:
        named = [(target, load_queue_or_workflow(target))]
    else:
        named = load_queues_of_module(target)
        if not named:
            raise click.ClickException(
                f"{target!r} has no JobQueue and no workflow: name a class, as in {target}:Email"
            )
    for name, found in named:
        if isinstance(found, Workflow):
            yield from ((f"{name}.{step.name}", step.queue) for step in found)
        else:
            yield name, found.queue if isinstance(found, Step) else found


def _synchronous(found: Any) -> Any:
    """Return the queue of an AsyncJobQueue, and anything else as it is."""
    loaded = sys.modules.get("sa_jobqueue.asyncio")
    if loaded is None:  # it needs greenlet; without it there are no such objects
        return found
    return found.sync_queue if isinstance(found, loaded.AsyncJobQueue) else found


def load_handler(target: str) -> Callable[[Any], Any]:
    """Import a handler.

    Raises:
        ClickException: it cannot be called.
    """
    found = load_target(target)
    if not callable(found):
        raise click.ClickException(f"{target} is no function, but {found!r}")
    handler: Callable[[Any], Any] = found
    return handler


def _import(name: str) -> Any:
    here = os.getcwd()
    if here not in sys.path and "" not in sys.path:  # a console script's path has neither
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except Exception as error:  # whatever the user's module raises
        reason = f"{type(error).__name__}: {_told(error)}{_import_hint(name, error)}"
        raise click.ClickException(f"cannot import {name!r}: {reason}") from error


def _told(error: Exception) -> str:
    """Return the text of an error, and the line in the user's code that it comes from."""
    if isinstance(error, SyntaxError):
        return str(error)  # it names the file and the line
    frames = traceback.extract_tb(error.__traceback__)
    named = [
        frame
        for frame in frames
        if not frame.filename.startswith(("<", OURS)) and "importlib" not in frame.filename
    ]
    # An application may be installed as a package, too.
    own = [frame for frame in named if not frame.filename.startswith(INSTALLED)] or named
    where = f" ({own[-1].filename}, line {own[-1].lineno})" if own else ""
    return f"{in_one_line(error)}{where}"


def _import_hint(name: str, error: Exception) -> str:
    """Return the way out of a mistyped name."""
    if name.endswith(".py") or os.sep in name:
        return "; write a module as in an import, such as shop.queues"
    if isinstance(error, ModuleNotFoundError) and error.name in (name, name.partition(".")[0]):
        return "; modules are looked for in the current folder and on PYTHONPATH"
    return ""
