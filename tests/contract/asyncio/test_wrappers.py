"""Every verb and every method has the same arguments when it is awaited."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import (
    AsyncSession,
)
from sqlalchemy.orm import Session

import sa_jobqueue
from sa_jobqueue import (
    ArgumentError,
    JobQueue,
)
from sa_jobqueue import asyncio as sa_asyncio
from sa_jobqueue.asyncio import (
    AsyncJobQueue,
    claim,
)
from tests.contract.asyncio.support import (
    in_event_loop,
)
from tests.models import Email


def verbs() -> list[str]:
    """Name the public functions that take a session; start_round() takes an engine too."""
    functions = {name: getattr(sa_jobqueue, name) for name in sa_jobqueue.__all__}
    taking = [name for name, function in functions.items() if takes_a_session(function)]
    return [*taking, "start_round"]


def methods() -> list[str]:
    """Name the methods of a JobQueue that take a session."""
    return [name for name, method in inspect.getmembers(JobQueue) if takes_a_session(method)]


def takes_a_session(function: object) -> bool:
    return inspect.isfunction(function) and "session" in inspect.signature(function).parameters


def arguments(function: Any) -> list[tuple[str, Any, Any]]:
    """Describe the parameters of a function: all but their types."""
    parameters = inspect.signature(function).parameters.values()
    return [(parameter.name, parameter.default, parameter.kind) for parameter in parameters]


# Wrappers


def test_every_verb_is_there_to_be_awaited() -> None:
    others = {"advisory_session", "AsyncJobQueue", "AsyncWorker", "AsyncWorkflow"}

    assert {*verbs(), *others} == set(sa_asyncio.__all__)
    assert "claim" in verbs()


@pytest.mark.parametrize("name", [*verbs(), "advisory_session"])
def test_a_verb_has_the_same_arguments_when_it_is_awaited(name: str) -> None:
    awaited = getattr(sa_asyncio, name)

    assert arguments(awaited) == arguments(getattr(sa_jobqueue, name))
    assert inspect.iscoroutinefunction(awaited) or name == "advisory_session"
    assert awaited.__doc__


@pytest.mark.parametrize("name", methods())
def test_a_method_of_a_queue_has_the_same_arguments_when_it_is_awaited(name: str) -> None:
    awaited = getattr(AsyncJobQueue, name)

    assert arguments(awaited) == arguments(getattr(JobQueue, name))
    assert inspect.iscoroutinefunction(awaited)
    assert awaited.__doc__


@in_event_loop
async def test_a_synchronous_session_is_refused_with_the_way_out() -> None:
    with pytest.raises(ArgumentError, match=r"an AsyncSession is needed, .* in sa_jobqueue,"):
        await claim(Session(), Email, owner="w")  # type: ignore[arg-type]  # what is refused


def test_an_async_session_is_refused_by_the_synchronous_verbs_with_the_way_out() -> None:
    with pytest.raises(ArgumentError, match=r"sa_jobqueue\.asyncio"):
        sa_jobqueue.claim(AsyncSession(), Email, owner="w")  # type: ignore[arg-type]  # refused
