"""The outbox of the examples, published to real brokers, under kills of workers and of the broker.

These tests run in the tox environment `brokers`, which has the clients of the brokers.
"""

from __future__ import annotations

import signal
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import pytest
from sqlalchemy import URL, Engine, func, select
from sqlalchemy.orm import Session

from sa_jobqueue import enqueue
from tests.brokers.publishing import example, publish
from tests.brokers.readers import READERS, Published
from tests.processes import Victim
from tests.servers.brokers import Broker, broker
from tests.support import make_engine, until

pytestmark = [pytest.mark.only_on("postgresql"), pytest.mark.timeout(600)]

Message = example("messages").Message

#: The publishers of the example, with their brokers; and how they are told the broker's URL.
PUBLISHERS = {
    "to_nats": "nats",
    "to_rabbitmq": "rabbitmq",
    "to_rabbitmq_async": "rabbitmq",
    "to_redis": "redis",
    "to_redis_async": "redis",
}
URLS = {
    "nats": ("NATS_URL", "nats://127.0.0.1:{}"),
    "rabbitmq": ("RABBITMQ_URL", "amqp://guest:guest@127.0.0.1:{}/"),
    "redis": ("REDIS_URL", "redis://127.0.0.1:{}/0"),
}

#: The brokers that drop a repeat themselves.
DROPPING = {"nats", "redis"}

KEYS = ["a", "b", "c", "d", "e", "f"]


@dataclass
class Outbox:
    """An outbox, its broker, and the workers that publish."""

    engine: Engine
    server: Broker
    publisher: str
    started: ExitStack

    def start(self, *, dies: bool = False) -> Victim:
        """Start a worker, which may die before it finishes what it has published."""
        variable, url = URLS[self.server.name]
        broker = url.format(self.server.port)
        victim = Victim(self.engine.url, publish, self.publisher, variable, broker, dies)
        return self.started.enter_context(victim)

    def add(self, bodies: list[str]) -> None:
        """Add each text once for each key, in their order."""
        with Session(self.engine) as session, session.begin():
            enqueue(
                session, Message, [{"key": key, "body": body} for body in bodies for key in KEYS]
            )

    @property
    def waiting(self) -> int:
        with Session(self.engine) as session:
            return session.scalar(select(func.count()).select_from(Message)) or 0

    def begins(self) -> None:
        """Wait until some of the waiting messages are published."""
        before = self.waiting
        until(lambda: self.waiting < before)

    def read(self) -> list[Published]:
        """Return what the broker has, once nothing waits."""
        until(lambda: not self.waiting, 200)
        return READERS[self.server.name](self.server.port)


@pytest.fixture(params=PUBLISHERS)
def outbox(request: pytest.FixtureRequest, fresh_database: URL) -> Iterator[Outbox]:
    engine = make_engine(fresh_database)
    Message.metadata.create_all(engine)
    with ExitStack() as started:
        server = started.enter_context(broker(PUBLISHERS[request.param]))
        yield Outbox(engine, server, request.param, started)
    engine.dispose()


def without_repeats(published: list[Published]) -> dict[str, list[str]]:
    """Return the texts of each key, as a consumer sees them that drops an id that it has seen."""
    seen: dict[int, Published] = {}
    texts: dict[str, list[str]] = defaultdict(list)
    for message in published:
        if message.number not in seen:
            texts[message.key].append(message.body)
        assert seen.setdefault(message.number, message) == message  # a repeat has the same id
    return texts


def test_a_worker_that_dies_after_publishing_leaves_a_repeat_with_the_same_id(
    outbox: Outbox,
) -> None:
    outbox.add(["first", "second"])
    for _ in range(2):
        outbox.start(dies=True).process.join(60)

    outbox.start()

    published = outbox.read()
    repeats = len(published) - len({message.number for message in published})
    assert without_repeats(published) == {key: ["first", "second"] for key in KEYS}
    assert (repeats > 0) is (outbox.server.name not in DROPPING)


def test_nothing_is_lost_and_each_key_is_in_order_while_workers_and_broker_are_killed(
    outbox: Outbox, full: bool
) -> None:
    workers = [outbox.start() for _ in range(2)]
    bodies: list[str] = []
    for fault in ["worker", "broker", "worker", "both"] * (5 if full else 1):
        some = [f"{len(bodies) + number:05}" for number in range(25)]
        bodies += some
        outbox.add(some)
        outbox.begins()
        if fault != "broker":
            workers.pop(0).signal(signal.SIGKILL)
            workers.append(outbox.start())
        if fault != "worker":
            outbox.server.restart()

    published = outbox.read()

    assert without_repeats(published) == dict.fromkeys(KEYS, bodies)
    if outbox.server.name in DROPPING:
        assert len(published) == len(bodies) * len(KEYS)
