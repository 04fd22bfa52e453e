"""What a broker has of the outbox, in its order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import nats
import pika
from redis import Redis

from tests.servers.keeping import LOCALHOST


@dataclass(frozen=True)
class Published:
    """A message that a consumer gets.

    Attributes:
        number: the id of its row.
    """

    number: int
    key: str
    body: str


def read_nats(port: int) -> list[Published]:
    return asyncio.run(_read_nats(port))


async def _read_nats(port: int) -> list[Published]:
    client = await nats.connect(f"nats://{LOCALHOST}:{port}")
    stream = client.jetstream()
    state = (await stream.stream_info("OUTBOX")).state
    stored: list[Any] = [
        await stream.get_msg("OUTBOX", number)
        for number in range(state.first_seq, state.last_seq + 1)
    ]
    await client.close()
    return [
        Published(
            int(message.headers["Nats-Msg-Id"]),
            message.subject.removeprefix("outbox."),
            message.data.decode(),
        )
        for message in stored
    ]


def read_rabbitmq(port: int) -> list[Published]:
    connection = pika.BlockingConnection(pika.ConnectionParameters(LOCALHOST, port))
    channel, found = connection.channel(), []
    while (got := channel.basic_get("outbox", auto_ack=True))[0] is not None:
        _, properties, body = got
        number, key = int(properties.message_id), properties.headers["key"]
        found.append(Published(number, key, body.decode()))
    connection.close()
    return found


def read_redis(port: int) -> list[Published]:
    with Redis(LOCALHOST, port, decode_responses=True) as client:
        entries: Any = client.xrange("{outbox}")
    return [Published(int(fields["id"]), fields["key"], fields["body"]) for _, fields in entries]


READERS: dict[str, Callable[[int], list[Published]]] = {
    "nats": read_nats,
    "rabbitmq": read_rabbitmq,
    "redis": read_redis,
}
