"""One list of verbs: the module, the queues and their async counterparts have each of its names."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import pytest

import sa_jobqueue
from sa_jobqueue import ArgumentError, JobQueue, claim_statements
from sa_jobqueue import asyncio as sa_asyncio
from sa_jobqueue.asyncio import AsyncJobQueue
from sa_jobqueue.workflow import Workflow
from tests.models import Email

#: What a JobQueue states once for all of its verbs.
STATED = {"entity", "where", "order_by", "strategy", "then", "ready", "backoff"}

#: Methods of a JobQueue that are no verbs of the module: ways to claim with a prepared claim.
WAYS_TO_CLAIM = ("claim_rows", "turn")

#: Functions that take a session, and are about rounds and owners instead of a queue's jobs.
NO_VERBS = ("connection_owner", "owner_state", "round_progress")


#: Verbs that take a class, with the other arguments that they need.
OF_A_CLASS: dict[str, dict[str, Any]] = {
    "claim": {"owner": "w"},
    "claimed_by": {"owner": "w"},
    "enqueue": {"rows": []},
    "prune": {"older_than": timedelta(1)},
    "reap": {},
    "stats": {},
    "count_by_status": {},
}


@pytest.mark.parametrize("verb", OF_A_CLASS)
def test_a_verb_that_is_given_a_queue_names_its_method(verb: str) -> None:
    for queue in (JobQueue(Email), AsyncJobQueue(JobQueue(Email))):
        with pytest.raises(ArgumentError, match=r"is a queue, .* call its method of the same name"):
            getattr(sa_jobqueue, verb)(None, queue, **OF_A_CLASS[verb])


def parameters(function: Any, *, without: Iterable[str] = ()) -> list[tuple[str, Any, Any]]:
    """Describe the parameters of a function: all but their types."""
    return [
        (parameter.name, parameter.kind, parameter.default)
        for parameter in inspect.signature(function).parameters.values()
        if parameter.name not in {*without, "self"}
    ]


def takes_a_session(function: object) -> bool:
    return inspect.isfunction(function) and "session" in inspect.signature(function).parameters


def functions_of(module: Any) -> set[str]:
    """Name the public functions of a module that take a session."""
    return {name for name in module.__all__ if takes_a_session(getattr(module, name))}


def methods_of(queue: type[Any]) -> set[str]:
    """Name the public methods of a queue that take a session."""
    return {
        name
        for name, method in inspect.getmembers(queue)
        if takes_a_session(method) and not name.startswith("_")
    }


#: The verbs of the module, and the queue of a workflow's step.
VERBS = sorted(functions_of(sa_jobqueue) - set(NO_VERBS))
StepQueue = type(Workflow(Email).step("unclaimed", during="claimed", then="done")(print).queue)


def test_the_queues_have_each_verb_of_the_module() -> None:
    assert methods_of(JobQueue) == methods_of(StepQueue) == {*VERBS, *WAYS_TO_CLAIM}
    assert methods_of(AsyncJobQueue) == methods_of(JobQueue)
    assert functions_of(sa_asyncio) == functions_of(sa_jobqueue)


@pytest.mark.parametrize("verb", VERBS)
def test_a_method_has_the_parameters_of_its_verb_but_for_what_the_queue_states(verb: str) -> None:
    method = parameters(getattr(JobQueue, verb))

    assert method == parameters(getattr(sa_jobqueue, verb), without=STATED)
    assert method == parameters(getattr(StepQueue, verb), without={"then"})


@pytest.mark.parametrize(
    ("awaited", "verb"),
    [
        *((sa_asyncio, name) for name in (*VERBS, *sorted(NO_VERBS), "start_round")),
        *((AsyncJobQueue, name) for name in (*VERBS, *WAYS_TO_CLAIM)),
    ],
)
def test_a_verb_has_the_same_parameters_when_it_is_awaited(awaited: Any, verb: str) -> None:
    function = getattr(awaited, verb)
    plain = sa_jobqueue if awaited is sa_asyncio else JobQueue

    assert parameters(function) == parameters(getattr(plain, verb))
    assert inspect.iscoroutinefunction(function)
    assert function.__doc__


def test_sa_jobqueue_asyncio_exports_the_verbs_and_what_is_beside_them() -> None:
    beside = {"AsyncJobQueue", "AsyncWorker", "advisory_session", "start_round", "wait"}

    assert set(sa_asyncio.__all__) == {*VERBS, *NO_VERBS, *beside}


@pytest.mark.parametrize(
    ("where", "further"),
    [((), {"order_by": Email.id.desc()}), ((), {"strategy": "candidates"}), ((Email.id > 1,), {})],
)
def test_the_statements_of_a_queue_take_nothing_that_it_states_itself(
    where: tuple[Any, ...], further: dict[str, Any]
) -> None:
    with pytest.raises(ArgumentError, match="strategy: give only dialect= with it"):
        claim_statements(JobQueue(Email), *where, dialect="sqlite", **further)
