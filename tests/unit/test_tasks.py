"""The conditions of an event loop's tasks."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from datetime import timedelta

from sqlalchemy.util import greenlet_spawn

from sa_jobqueue.asyncio.tasks import Condition

LONG = timedelta(seconds=30).total_seconds()


class Waiting:
    """Tasks that wait for one condition each time, and which of them were woken."""

    def __init__(self) -> None:
        self.condition = Condition()
        self.woken: list[str] = []
        self.tasks: set[asyncio.Task[None]] = set()

    async def start(self, *names: str, timeout: float | None = None) -> None:
        for name in names:
            work = greenlet_spawn(self._wait, name, timeout)
            self.tasks.add(asyncio.create_task(work))
            await self.settle()

    async def settle(self) -> None:
        for _ in range(10):
            await asyncio.sleep(0)

    async def end(self) -> None:
        self.condition.notify_all()
        await asyncio.wait_for(asyncio.gather(*self.tasks), LONG)

    def _wait(self, name: str, timeout: float | None) -> None:
        self.condition.wait(timeout)
        self.woken.append(name)


def test_a_notice_wakes_the_task_that_waits_longest_and_no_other() -> None:
    async def noticed() -> list[str]:
        waiting = Waiting()
        await waiting.start("first", "second", "third")

        waiting.condition.notify()

        await waiting.settle()
        woken = list(waiting.woken)
        await waiting.end()
        return woken

    assert asyncio.run(noticed()) == ["first"]


def test_a_notice_is_not_spent_on_a_task_whose_time_is_over() -> None:
    async def noticed() -> list[str]:
        waiting = Waiting()
        await waiting.start("brief", timeout=0.001)
        await asyncio.wait(waiting.tasks)
        await waiting.start("patient")

        waiting.condition.notify()

        await asyncio.wait_for(asyncio.gather(*waiting.tasks), LONG)
        return waiting.woken

    assert asyncio.run(noticed()) == ["brief", "patient"]


def test_another_thread_wakes_as_many_tasks_as_it_asks_for() -> None:
    async def noticed() -> list[str]:
        waiting = Waiting()
        await waiting.start("first", "second", "third")

        await in_thread(lambda: waiting.condition.notify(2))

        await waiting.settle()
        woken = list(waiting.woken)
        await waiting.end()
        return woken

    assert asyncio.run(noticed()) == ["first", "second"]


async def in_thread(work: Callable[[], None]) -> None:
    """Run work in a thread whose end the event loop waits for."""
    thread = threading.Thread(target=work)
    thread.start()
    while thread.is_alive():
        await asyncio.sleep(0.001)
