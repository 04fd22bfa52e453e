"""What a Worker and an AsyncWorker cannot use is refused at once, with the way out."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import create_async_engine

from sa_jobqueue import ArgumentError, JobQueue
from sa_jobqueue.asyncio import AsyncWorker
from sa_jobqueue.worker import Worker
from tests.contract.asyncio.worker_support import nothing
from tests.models import Email

SECOND = timedelta(seconds=1)
Make = Callable[..., Any]


@pytest.fixture(params=["Worker", "AsyncWorker"])
def make(request: pytest.FixtureRequest) -> Make:
    """Make a worker with these options; nothing connects."""
    if request.param == "Worker":
        engine = create_engine("sqlite://")
        return lambda **options: Worker(engine, JobQueue(Email), lambda email: None, **options)
    awaited = create_async_engine("sqlite+aiosqlite://")
    return lambda **options: AsyncWorker(awaited, JobQueue(Email), nothing, **options)


@pytest.mark.parametrize("name", ["grace", "poll", "interval", "max_runtime", "reap_every"])
@pytest.mark.parametrize("value", [5, 0.5, "5", -SECOND])
def test_a_duration_that_is_none_is_refused(make: Make, name: str, value: Any) -> None:
    with pytest.raises(
        ArgumentError, match=f"{name}= takes a timedelta .*{re.escape(repr(value))}"
    ):
        make(**{name: value})


@pytest.mark.parametrize("name", ["grace", "poll", "interval"])
def test_a_duration_that_has_to_be_there_is_not_none(make: Make, name: str) -> None:
    with pytest.raises(ArgumentError, match=f"{name}= takes a timedelta"):
        make(**{name: None})


def test_a_number_is_answered_by_the_timedelta_to_write(make: Make) -> None:
    with pytest.raises(ArgumentError, match=re.escape("not 5: write timedelta(seconds=5)")):
        make(grace=5)
    with pytest.raises(ArgumentError, match=re.escape("write timedelta(seconds=30)")):
        JobQueue(Email).handler(timeout=30)  # type: ignore[call-overload]  # a mistake


def test_zero_is_a_grace_and_an_interval_and_no_poll(make: Make) -> None:
    make(grace=timedelta(0), interval=timedelta(0))

    with pytest.raises(ArgumentError, match="poll= takes a timedelta longer than zero"):
        make(poll=timedelta(0))


@pytest.mark.parametrize("value", [1, "yes", "False"])
def test_delete_is_a_bool_or_none(make: Make, value: Any) -> None:
    with pytest.raises(
        ArgumentError, match="delete= takes True, False, or None for what the model"
    ):
        make(delete=value)
