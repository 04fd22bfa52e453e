"""An engine with empty tables of rounds, and steps between the chunks of a start."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from sqlalchemy import Engine

from sa_jobqueue.events import Event, listen, remove
from tests.contract.round_models import Subscriber, emptied

OnChunk = Callable[[Callable[[Event], object]], None]


@pytest.fixture
def engine(engine: Engine) -> Engine:
    return emptied(engine)


@pytest.fixture
def on_chunk() -> Iterator[OnChunk]:
    """Call a function after the commit of each chunk of subscribers."""
    called: list[Callable[[Event], object]] = []

    def call(function: Callable[[Event], object]) -> None:
        listen(Subscriber, "after_change", function)
        called.append(function)

    yield call
    for function in called:
        remove(Subscriber, "after_change", function)
