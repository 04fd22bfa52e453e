"""``MODULE:NAME`` on the command line: the user's queues and handlers."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from typing import Any

import click

from ..queue import JobQueue
from ..workflow import Step, Workflow
from .errors import in_one_line


def load(place: str) -> Any:
    """Import what ``MODULE:NAME`` names; the current directory is importable.

    Raises:
        ClickException: in one line, why there is none.
    """
    module_name, _, name = place.partition(":")
    if not module_name or not name:
        raise click.ClickException(f"{place!r} is not MODULE:NAME, as in shop.models:Email")
    found: Any = _import(module_name)
    for part in name.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise click.ClickException(f"{module_name!r} has no {name!r}") from None
    return found


def load_queue(place: str) -> JobQueue[Any]:
    """Return the JobQueue of that name, that of a workflow's step, or one of the mapped class.

    Raises:
        ClickException: a whole workflow, which has several.
    """
    found = load_work(place)
    if isinstance(found, Workflow):
        names = ", ".join(step.name for step in found)
        raise click.ClickException(f"{place} is a workflow: name one of its steps, {names}")
    return found.queue if isinstance(found, Step) else found


def load_work(place: str) -> JobQueue[Any] | Step[Any] | Workflow[Any]:
    """Return the Workflow, the step or the JobQueue of that name, or one of the mapped class."""
    found = load(place)
    return found if isinstance(found, JobQueue | Step | Workflow) else JobQueue(found)


def load_handler(place: str) -> Callable[[Any], Any]:
    """Return the function of that name.

    Raises:
        ClickException: it cannot be called.
    """
    found = load(place)
    if not callable(found):
        raise click.ClickException(f"{place} is no function, but {found!r}")
    handler: Callable[[Any], Any] = found
    return handler


def _import(name: str) -> Any:
    here = os.getcwd()
    if here not in sys.path and "" not in sys.path:  # a console script's path has neither
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except Exception as error:  # whatever the user's module raises
        said = f"{type(error).__name__}: {in_one_line(error)}"
        raise click.ClickException(f"cannot import {name!r}: {said}") from error
